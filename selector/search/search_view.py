"""What a person sees of a search: how far it is, the trials that run, the best; then a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from gmi_drl.launcher.view.tables import print_table, table_within
from gmi_drl.launcher.view.view import ViewName, drawn, duration, is_live
from gmi_drl.placement import Config, counted

from .ranges import text_of
from .stint import Stint

if TYPE_CHECKING:
    from .searching import SearchResult

_SHOWN: Final = 10  # trials of the table


@dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    done: int  # stints that ended or failed
    failed: int
    total: int  # stints there are at most
    running: Sequence[tuple[Stint, int, float | None, str]]  # stint, steps, return, device
    best: Mapping[str, Any] | None  # its line of the record
    seconds: float


class SearchView(Protocol):
    """Shows a search as it goes."""

    def note(self, text: str) -> None:
        """A line that stays."""

    def show(self, progress: Progress) -> None:
        """Where it stands now."""

    def ended(self, line: Mapping[str, Any], progress: Progress) -> None:
        """A stint ended or failed; its line of the record."""


@contextmanager
def open_search_view(name: ViewName, config: Config, total: int) -> Iterator[SearchView]:
    """The view `name`; "auto" is live in a terminal and plain elsewhere."""
    if name == "none":
        yield _Silent()
    elif is_live(name):
        view = _LiveView(config, total)
        with drawn(view):
            yield view
    else:
        yield _PlainView()


def short(key: str) -> str:
    """A key as columns and pictures name it: learning_rate."""
    return key.rpartition(".")[2]


def shown(values: Mapping[str, Any]) -> str:
    """Values in a line: learning_rate 0.0003, epochs 4."""
    return ", ".join(f"{short(key)} {text_of(value)}" for key, value in values.items())


def returned(mean: float | None) -> str:
    """A mean return; "-" while no episode has ended."""
    return "-" if mean is None else f"{mean:.1f}"


def _ended_text(line: Mapping[str, Any]) -> str:
    if line["kind"] == "failed":
        return f"trial {line['trial']:3d}  failed: {line['text']}  ({shown(line['values'])})"
    return (
        f"trial {line['trial']:3d}  {line['reached']:>10,} steps  "
        f"return {returned(line['return_mean'])}  ({shown(line['values'])})"
    )


def _left(progress: Progress) -> str:
    """What is done and what is left; time by what stints took so far says little, as they grow."""
    text = f"{progress.done} of {progress.total} stints"
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{text}{failed}, {duration(progress.seconds)}"


class _Silent:
    def note(self, text: str) -> None:
        pass

    def show(self, progress: Progress) -> None:
        pass

    def ended(self, line: Mapping[str, Any], progress: Progress) -> None:
        pass


class _PlainView:
    """A line for each stint that ends."""

    def note(self, text: str) -> None:
        with suppress(OSError):  # nobody reads any more: the search is worth more than its screen
            print(text, flush=True)

    def show(self, progress: Progress) -> None:
        pass

    def ended(self, line: Mapping[str, Any], progress: Progress) -> None:
        self.note(f"[{_left(progress)}] {_ended_text(line)}")


class _LiveView:
    """A table of the running trials, redrawn in place; the best; a bar."""

    def __init__(self, config: Config, total: int) -> None:
        self._title = f"{config.run.name}: {config.env.id}, hyper-parameters"
        self._progress = Progress(0, 0, total, (), None, 0.0)
        self.console = Console()

    def note(self, text: str) -> None:
        self.console.print(Text(text))

    def show(self, progress: Progress) -> None:
        self._progress = progress

    def ended(self, line: Mapping[str, Any], progress: Progress) -> None:
        self._progress = progress
        if line["kind"] == "failed":
            self.console.print(Text(_ended_text(line), style="yellow"))

    def render(self) -> Group:
        """The present state as something rich can draw."""
        progress = self._progress
        rows = [
            [
                str(stint.trial),
                device,
                f"{steps:,}",
                f"{stint.steps:,}",
                returned(mean),
                shown(stint.values),
            ]
            for stint, steps, mean, device in progress.running
        ]
        width = self.console.width
        columns = ["trial", "device", "steps", "of", "return", "values"]
        table = table_within(width, self._title, columns, rows, ("device", "of"))
        best = "best: none yet" if progress.best is None else f"best: {_ended_text(progress.best)}"
        bar = ProgressBar(total=progress.total, completed=progress.done, width=min(60, width))
        return Group(table, Text(best), Text(_left(progress)), bar)


def print_search(console: Console, result: SearchResult) -> None:
    """The best trials, what failed, and where everything lies."""
    if result.recalled:
        console.out(f"{result.folder} was done before; --again begins anew", highlight=False)
    last: dict[int, Mapping[str, Any]] = {}  # the stint of each trial that got furthest
    for line in result.lines:
        if line["kind"] == "ended":
            before = last.get(line["trial"])
            if before is None or line["steps"] >= before["steps"]:
                last[line["trial"]] = line
    ranked = sorted(last.values(), key=_rank, reverse=True)
    keys = list(result.values)
    rows = [
        [
            str(line["trial"]),
            f"{line['reached']:,}",
            returned(line["return_mean"]),
            *(text_of(line["values"][key]) for key in keys),
        ]
        for line in ranked[:_SHOWN]
    ]
    more = f"; {len(ranked) - _SHOWN} more are not shown" if len(ranked) > _SHOWN else ""
    title = f"The best of {counted(len(ranked), 'trial')}, those that trained longest first{more}"
    print_table(console, title, ["trial", "steps", "return", *map(short, keys)], rows)
    if result.failed:
        first = next(line for line in result.lines if line["kind"] == "failed")
        count = f"{result.failed} stints failed" if result.failed > 1 else "a stint failed"
        console.out(f"{count}; the first, of trial {first['trial']}: {first['text']}",
                    highlight=False)  # fmt: skip
    console.out(
        f"{shown(result.values)}: return {returned(result.return_mean)} after {result.steps:,} "
        f"steps; the search took {duration(result.seconds)}",
        highlight=False,
    )
    for what, where in (
        ("config", f"{result.best_config}  (gmi-drl launch)"),
        ("policy", f"{result.checkpoint}"),
        ("picture", result.picture),
    ):
        if where is not None:
            console.out(f"{what}: {where}", highlight=False)


def _rank(line: Mapping[str, Any]) -> tuple[int, float]:
    mean = line["return_mean"]
    return line["steps"], float("-inf") if mean is None else mean
