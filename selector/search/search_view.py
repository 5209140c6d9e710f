"""Shows a search to a person: how far it is, the trials that run, the best; then a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group
from rich.text import Text

from gmi_drl.launcher.view.screen import Screen, ViewName, bar, duration, opened
from gmi_drl.launcher.view.tables import print_table, table_within
from gmi_drl.placement import Config, counted

from .ranges import text_of
from .trial_run import TrialRun

if TYPE_CHECKING:
    from .searching import SearchResult

_SHOWN: Final = 10  # trials of the table


@dataclass(frozen=True)
class SearchProgress:
    """Where a search stands."""

    done: int  # runs that ended or failed
    failed: int
    total: int  # runs there are at most
    running: Sequence[tuple[TrialRun, int, float | None, str]]  # run, steps, return, device
    best: Mapping[str, Any] | None  # its line of the record
    seconds: float


def open_search_view(
    name: ViewName, config: Config, total: int
) -> AbstractContextManager[SearchView]:
    """The view of a search on the screen `name`; it asks for `total` runs at most."""
    return opened(name, lambda screen: SearchView(screen, config, total))


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


def _left(progress: SearchProgress) -> str:
    """What is done and what is left; time by what runs took so far says little, as they grow."""
    text = f"{progress.done} of {progress.total} runs"
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{text}{failed}, {duration(progress.seconds)}"


class SearchView:
    """Is told how a search goes, and shows it: the running trials, the best, and a bar."""

    def __init__(self, screen: Screen, config: Config, total: int) -> None:
        self._screen = screen
        self._title = f"{config.run.name}: {config.env.id}, hyper-parameters"
        self._progress = SearchProgress(0, 0, total, (), None, 0.0)

    def note(self, text: str) -> None:
        """A line that stays."""
        self._screen.note(text)

    def show(self, progress: SearchProgress) -> None:
        """Where the search stands now."""
        self._progress = progress

    def ended(self, line: Mapping[str, Any], progress: SearchProgress) -> None:
        """A run of a trial ended or failed; its line of the record."""
        self._progress = progress
        if self._screen.is_live and line["kind"] == "failed":
            self._screen.note(_ended_text(line), "yellow")
        self._screen.line(f"[{_left(progress)}] {_ended_text(line)}")

    def render(self, width: int) -> Group:
        """A table of the running trials, the best, and a bar."""
        progress = self._progress
        rows = [
            [
                str(run.trial),
                device,
                f"{steps:,}",
                f"{run.steps:,}",
                returned(mean),
                shown(run.values),
            ]
            for run, steps, mean, device in progress.running
        ]
        columns = ["trial", "device", "steps", "of", "return", "values"]
        table = table_within(width, self._title, columns, rows, ("device", "of"))
        best = "best: none yet" if progress.best is None else f"best: {_ended_text(progress.best)}"
        done = bar(progress.total, progress.done, width)
        return Group(table, Text(best), Text(_left(progress)), done)


def print_search(console: Console, result: SearchResult) -> None:
    """The best trials, what failed, and where everything lies."""
    if result.recalled:
        console.out(f"{result.folder} was done before; --again begins anew", highlight=False)
    last: dict[int, Mapping[str, Any]] = {}  # the run of each trial that got furthest
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
        count = f"{result.failed} runs failed" if result.failed > 1 else "a run failed"
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
