"""Puts together what GMIs did: segments of an asynchronous run, lines of a served one, traces."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gmi_drl.comm.shm.tally import Tally
from gmi_drl.gmi.process import grouped
from gmi_drl.placement import Config, Layout
from gmi_drl.roles.telemetry.phases import FIRST, FOLDER, LAST, SUFFIX, rounded

_STATUSES: Final = ("trained", "stale", "incomplete", "missing", "repeated")


@dataclass(frozen=True)
class SegmentCounts:
    """Counts what became of the segments of one launch, at both ends, over all GMIs.

        begun = unsent + trained + stale + incomplete + missing + left + unheard

    Agents count what they begin to send, in memory that outlives them; trainers count what they
    were sent (docs/async.md). What does not add up is an error of this program, and said.
    """

    begun: int  # agents began to send them
    sent: int  # whole, as agents know
    lost: int  # given up at the end of the run, when a part was sent
    unsent: int  # given up before any part was
    trained: int  # and in the policy
    stale: int  # older than experience.max_policy_lag
    incomplete: int  # a part came, and the rest never will
    missing: int  # nothing came, or it was undone
    undone: int  # trained on by a trainer without peers, and lost with it
    repeated: int  # given twice to a trainer that was restarted, and not trained on again
    left: int  # came too late for the last update
    unheard: int  # the rest: begun by agents that were killed, or undone (docs/async.md)
    agent_deaths: int
    at_hand: int  # at most so many were given back and not counted yet when trainers were killed

    @property
    def add_up(self) -> bool:
        """Says whether both ends agree."""
        forgotten = max(0, self.undone + self.at_hand - self.missing)
        return 0 <= self.unheard <= self.agent_deaths + forgotten

    def as_json(self) -> dict[str, Any]:
        """Returns what run.json has."""
        return asdict(self) | {"add_up": self.add_up}

    def __str__(self) -> str:
        parts = [f"{self.begun:,} sent", f"{self.trained:,} trained on"]
        for name in ("stale", "incomplete", "missing", "undone", "repeated", "unheard"):
            if count := getattr(self, name):
                parts.append(f"{count:,} {name}")
        if rest := self.left + self.unsent:
            parts.append(f"{rest:,} left at the end")
        return ", ".join(parts)


def segment_counts_of(
    layout: Layout, tally: Tally, answers: list[Any], batch_segments: int
) -> SegmentCounts | None:
    """Counts by the agents' counters and the trainers' answers; None if these do not say."""
    agents = [tally.row(gmi.gmi_id) for gmi in layout.holding("agent")]
    trained = [answers[gmi.gmi_id] for gmi in layout.holding("trainer")]
    if not trained or not all(isinstance(gmi, dict) and "experience" in gmi for gmi in trained):
        return None
    sent = {name: sum(row[name] for row in agents) for name in ("begun", "sent", "lost", "unsent")}
    statuses = {name: sum(gmi["experience"][name] for gmi in trained) for name in _STATUSES}
    trainers = [tally.row(gmi.gmi_id) for gmi in layout.holding("trainer")]
    left = sum(gmi["experience"]["under_way"] for gmi in trained)
    counted = sum(statuses.values()) - statuses["repeated"] + left + sent["unsent"]
    return SegmentCounts(
        **sent,
        **statuses,
        left=left,
        unheard=sent["begun"] - counted,
        undone=sum(row["undone"] for row in trainers),
        agent_deaths=sum(row["lives"] - 1 for row in agents),
        at_hand=batch_segments * sum(row["lives"] - 1 for row in trainers),
    )


_WINDOW: Final = 100  # episodes a reported return is the mean of
_EVERY_S: Final = 1.0
_KEYS: Final = {
    "gmi_id", "steps", "began_s", "until_s", "seconds", "episodes", "return_sum", "length_sum"
}  # fmt: skip


class ServingMetrics:
    """Merges the records of serving GMIs, and writes a line of metrics every second or so.

    Serving GMIs do not reduce anything together, so that only the launcher hears of all of them.
    """

    def __init__(
        self, layout: Layout, folder: Path, held: Callable[[], dict[str, list[int]]] = dict
    ) -> None:
        self._layout, self._path = layout, folder / "metrics.jsonl"
        self._held = held  # what each GMI has of its device; see `memory_held`
        self._simulators = [gmi.gmi_id for gmi in layout.holding("simulator")]
        self._steps: dict[int, int] = {}
        self._began_s, self._until_s = float("inf"), 0.0  # over all GMIs and their processes
        self._seconds: list[dict[str, float]] = [{} for _ in layout.gmis]
        self._episodes: deque[tuple[int, float, float]] = deque()
        self._ended, self._written = 0, 0
        self._before = (0, 0.0)  # steps and seconds at the last line
        self._due_s = time.monotonic() + _EVERY_S

    def take(self, record: Any) -> dict[str, Any] | None:
        """Takes in a GMI's record; returns what to show once a second, else None."""
        served = isinstance(record, dict) and record.get("kind") == "served"
        if not served or not record.keys() >= _KEYS:
            return None
        gmi_id = record["gmi_id"]
        self._steps[gmi_id] = record["steps"]
        self._began_s = min(self._began_s, record["began_s"])
        self._until_s = max(self._until_s, record["until_s"])
        totals = self._seconds[gmi_id]
        for phase, seconds in record["seconds"].items():
            totals[phase] = totals.get(phase, 0.0) + seconds
        if episodes := record["episodes"]:
            self._episodes.append((episodes, record["return_sum"], record["length_sum"]))
            self._ended += episodes
        while sum(row[0] for row in list(self._episodes)[1:]) >= _WINDOW:
            self._episodes.popleft()
        return self.line() if time.monotonic() >= self._due_s else None

    def line(self) -> dict[str, Any] | None:
        """Makes the next line of metrics, written down too; None if nothing has come since."""
        steps = sum(self._steps.get(gmi_id, 0) for gmi_id in self._simulators)
        if steps <= self._before[0]:
            return None
        time_s = self._until_s - self._began_s
        delta = (steps - self._before[0], max(time_s - self._before[1], 1e-9))
        self._before, self._due_s = (steps, time_s), time.monotonic() + _EVERY_S
        self._written += 1
        phases = sorted({phase for seconds in self._seconds for phase in seconds})
        spent = {phase: [s[phase] for s in self._seconds if phase in s] for phase in phases}
        count = sum(row[0] for row in self._episodes)
        metrics: dict[str, Any] = {
            "iteration": self._written,
            "steps": steps,
            "time_s": time_s,
            "steps_per_s": delta[0] / delta[1],
            "return_mean": sum(row[1] for row in self._episodes) / count if count else None,
            "length_mean": sum(row[2] for row in self._episodes) / count if count else None,
            "episodes": self._ended,
            **{f"{phase}_s": sum(values) / len(values) for phase, values in spent.items()},
        }
        metrics["gmi_seconds"] = [rounded(seconds) for seconds in self._seconds]
        figures = self._held()
        if peaks := figures.get("mem_peak_bytes", []):
            metrics |= {"mem_peak_bytes": max(peaks), "gmi_mem_peak_bytes": peaks}
        self._ended = 0
        gmi_figures = {"gmi_mem_peak_bytes": peaks, "gmi_sm_count": figures.get("sm_count", [])}
        record = {"kind": "iteration", **metrics, **gmi_figures}
        self._seconds = [{} for _ in self._layout.gmis]
        with suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")  # a full disk: serving is worth more
        return record


PROFILED: Final = (
    f"profiled: iterations {FIRST} to {LAST} of each GMI are recorded. They take longer, and so "
    "does what waits for them: do not go by this run's steps/s."
)


def traced_gmis(config: Config, layout: Layout) -> frozenset[int]:
    """Names the GMIs that record a trace: of each process the first."""
    if not config.run.profile:
        return frozenset()
    processes = grouped(layout, [gmi.gmi_id for gmi in layout.gmis])
    return frozenset(specs[0].gmi_id for specs in processes)


@contextmanager
def new_traces(config: Config, folder: Path) -> Iterator[Callable[[], tuple[Path, ...]]]:
    """Yields a function that finds the traces which processes write in this block.

    They are in the order of their GMIs, without those of an earlier launch. Files that killed
    processes left incomplete are removed at the end. No fault of the disk ends the run.
    """
    if not config.run.profile:
        yield tuple
        return
    mtimes = _written(folder)
    try:
        yield lambda: tuple(
            path for path, mtime_ns in _written(folder).items() if mtimes.get(path) != mtime_ns
        )
    finally:
        with suppress(OSError):
            for path in (folder / FOLDER).glob(f".gmi*{SUFFIX}.*"):
                path.unlink()


def where(traces: Sequence[Path]) -> str:
    """Says in a line where traces are and how to open them."""
    number = "1 file" if len(traces) == 1 else f"{len(traces)} files"
    return f"{traces[0].parent}: {number}, for https://ui.perfetto.dev (docs/profiling.md)"


def _written(folder: Path) -> dict[Path, int]:
    """Finds the traces in a run's folder, in the order of their GMIs, and when each was written."""
    paths = (folder / FOLDER).glob(f"gmi*{SUFFIX}")
    numbers = {path: path.name.removeprefix("gmi").removesuffix(SUFFIX) for path in paths}
    traces = [path for path, number in numbers.items() if number.isdecimal() and path.is_file()]
    traces.sort(key=lambda path: int(numbers[path]))
    return {path: path.stat().st_mtime_ns for path in traces}
