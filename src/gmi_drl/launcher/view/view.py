"""Shows work to people while it goes on: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, Protocol, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from gmi_drl.placement import Config, Layout, counted
from gmi_drl.placement.slicing import memory_share

from .tables import printable_lines, table_within

ViewName = Literal["auto", "live", "plain", "none"]
_BAR: Final = 60  # columns of a bar


class Screen:
    """Shows a view: nowhere, as printed lines, or live in a terminal."""

    def __init__(self, name: ViewName = "none") -> None:
        if name == "auto":
            name = "live" if sys.stdout.isatty() else "plain"
        self.is_live, self._prints = name == "live", name == "plain"
        self.console = Console()

    def note(self, text: str, style: str = "") -> None:
        """Shows a line that stays; in a terminal above what is drawn."""
        with suppress(OSError):  # nobody reads any more: the work is worth more than its screen
            if self.is_live:
                self.console.print(Text(text, style))
            elif self._prints:
                print(text, flush=True)

    def line(self, text: str) -> None:
        """Shows a line of progress; where that is drawn, nothing."""
        if not self.is_live:
            self.note(text)


class Drawn(Protocol):
    """A view that can be drawn."""

    def render(self, width: int) -> Group:
        """Draws the present state in so many columns."""


V = TypeVar("V", bound=Drawn)


@contextmanager
def opened(name: ViewName, view_of: Callable[[Screen], V]) -> Iterator[V]:
    """Yields the view on the screen `name`; "auto" is live in a terminal and plain elsewhere.

    A live one is drawn four times a second, and as it is at the end.
    """
    screen = Screen(name)
    view, console = view_of(screen), screen.console
    if not screen.is_live:
        yield view
        return
    live = Live(
        get_renderable=lambda: view.render(console.width), refresh_per_second=4, console=console
    )
    live.start()
    try:
        yield view
    finally:
        with suppress(OSError):  # the terminal may be gone
            live.stop()


def bar(total: float, completed: float, width: int) -> ProgressBar:
    """Returns a bar of progress in a view that is so wide."""
    return ProgressBar(total=total, completed=completed, width=min(_BAR, width))


def duration(seconds: float) -> str:
    """Words seconds: 65.2 is 1:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


# What GMIs spend their time with. In mode async the first line is the agents', the second the
# trainers'; a trainer waits for experience.
PHASES: Final = (("simulate", "infer", "send"), ("wait", "train", "reduce"))
_ALL: Final = tuple(phase for side in PHASES for phase in side)

# Of the live table, what a narrow terminal leaves out, the first first.
_DROP: Final = ("cores", "device", "roles", "environments", "memory")
_EVERY_S: Final = 5.0  # between two plain lines

_KEYS = {
    "iteration": {"iteration", "steps", "steps_per_s", "return_mean", "gmi_seconds"},
    "warning": {"message"},
    "note": {"message"},
}
# What a record may have besides, as a line shows it.
_EXTRAS: Final = (
    ("policy_lag_mean", "lag {:.1f}"),
    ("predictions_per_s", "{:,.0f} predictions/s"),
    ("kl", "KL {:.4f}"),
    ("learning_rate", "lr {:.1e}"),
    ("noise_scale", "noise scale {:,.0f}"),
)


def is_for_view(record: Any) -> bool:
    """Says whether a record is one that views show; a role may report anything."""
    if not isinstance(record, dict):
        return False
    return any(record.get("kind") == kind and record.keys() >= _KEYS[kind] for kind in _KEYS)


def eta_s(config: Config, record: dict[str, Any]) -> float:
    """Returns seconds until the configured steps are done, at the present rate."""
    left = config.run.total_steps - int(record["steps"])
    return max(0.0, left / (float(record["steps_per_s"]) or 1.0))


def shares(seconds: Mapping[str, float]) -> dict[str, str]:
    """Returns each phase's share of the time, in percent."""
    total = sum(seconds.values()) or 1.0
    return {phase: f"{100 * s / total:.0f} %" for phase, s in seconds.items()}


def sides(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Lists the phases in metrics, apart for agents and trainers where these are GMIs apart."""
    present = [[p for p in side if f"{p}_s" in metrics] for side in PHASES]
    if "send_s" in metrics:
        return [side for side in present if side]
    return [[phase for side in present for phase in side]]


class RunView:
    """Shows the run and its GMIs as a table, or a line every few seconds."""

    def __init__(self, screen: Screen, config: Config, layout: Layout) -> None:
        self._screen, self._config, self._layout = screen, config, layout
        self._record: dict[str, Any] | None = None
        self._last_s = float("-inf")

    def show(self, record: dict[str, Any]) -> None:
        """Takes in one record of a GMI."""
        if record["kind"] != "iteration":
            warns = record["kind"] == "warning"
            text = printable_lines(record["message"])
            self._screen.note(f"warning: {text}" if warns else text, "yellow" if warns else "")
            return
        self._record = record
        if time.monotonic() - self._last_s >= _EVERY_S:
            self._last_s = time.monotonic()
            spent: dict[str, str] = {}
            for side in sides(record):
                spent |= shares({phase: record[f"{phase}_s"] for phase in side})
            parts = [f"{phase} {share}" for phase, share in spent.items()]
            lag = record.get("policy_lag_mean")
            if lag is not None:
                parts.insert(0, f"lag {lag:.1f}")
            self._screen.line(
                f"iteration {record['iteration']:5d}  steps {record['steps']:>10,}  "
                f"{record['steps_per_s']:>8,.0f} steps/s  {'  '.join(self._ends(record, parts))}"
            )

    def _ends(self, record: dict[str, Any], between: Sequence[str]) -> list[str]:
        """Returns what a line ends with: the return, `between`, and how long it will take."""
        mean = record["return_mean"]
        tail = f"ETA {duration(eta_s(self._config, record))}"
        if refused := record.get("refused"):
            tail = f"{refused} refused  {tail}"
        if dropped := record.get("dropped_steps"):
            tail = f"{dropped} steps dropped  {tail}"
        head = [f"return {'-' if mean is None else format(mean, 'z.1f')}"]
        if isinstance(rating := record.get("rating"), float):  # self-play's returns tell little
            head.append(f"rating {rating:z,.0f}")
        return [*head, *between, tail]

    def render(self, width: int) -> Group:
        """Draws the present state."""
        record, config = self._record, self._config
        title = f"{config.run.name}: {config.env.id}, {counted(len(self._layout.gmis), 'GMI')}"
        if record is None:
            return Group(Text(f"{title}  waiting for the first iteration ..."))
        phases = [p for p in _ALL if any(p in seconds for seconds in record["gmi_seconds"])]
        memory = peak_cells(record.get("gmi_mem_peak_bytes"), self._layout)
        rows = []
        for spec, seconds in zip(self._layout.gmis, record["gmi_seconds"], strict=True):
            parts = shares(seconds)
            row = [str(spec.gmi_id), ", ".join(spec.roles), str(spec.gpu_id)]
            row += [",".join(map(str, spec.cores)), str(spec.num_env or "-")]
            row += memory[spec.gmi_id : spec.gmi_id + 1]
            rows.append([*row, *(parts.get(phase, "-") for phase in phases)])
        columns = ["GMI", "roles", "device", "cores", "environments"]
        columns += [*(["memory"] if memory else []), *phases]
        extras = [form.format(record[key]) for key, form in _EXTRAS if record.get(key) is not None]
        line = [f"iteration {record['iteration']}", f"steps {record['steps']:,}"]
        line += [f"{record['steps_per_s']:,.0f} steps/s", *self._ends(record, extras)]
        table = table_within(width, title, columns, rows, _DROP)
        progress = bar(config.run.total_steps, record["steps"], width)
        return Group(table, Text("   ".join(line)), progress)


def bytes_text(nbytes: int) -> str:
    """Words a number of bytes: 1.25 GiB, 310 MiB."""
    if nbytes >= 1 << 30:
        return f"{nbytes / (1 << 30):.2f} GiB"
    return f"{nbytes / (1 << 20):.0f} MiB"


def peak_summary(peaks: Sequence[int]) -> str:
    """Names the GMI that held most: "1.25 GiB (GMI 3)"."""
    most = max(range(len(peaks)), key=peaks.__getitem__)
    return f"{bytes_text(peaks[most])} (GMI {most})"


def peak_cells(peaks: object, layout: Layout) -> list[str]:
    """Words what each GMI has held at most, of its share where it has one.

    Empty if `peaks` is no list of a number for each GMI.
    """
    if not isinstance(peaks, list) or len(peaks) != len(layout.gmis):
        return []
    if not all(isinstance(peak, int) for peak in peaks):
        return []
    shares = [memory_share(layout, gmi.gmi_id) for gmi in layout.gmis]
    return [
        bytes_text(peak) + ("" if share is None else f" of {bytes_text(share.nbytes)}")
        for peak, share in zip(peaks, shares, strict=True)
    ]
