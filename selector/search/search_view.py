"""Shows a search to a person: how far it is, the trials that run, the best; then a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group
from rich.text import Text

from gmi_drl.launcher.view.tables import print_table, table_within
from gmi_drl.launcher.view.view import Screen, bar, duration
from gmi_drl.placement import Config, counted
from gmi_drl.selector.record.search_folder import score_of

from .ranges import text_of
from .trial_run import TrialRun

if TYPE_CHECKING:
    from .searching import SearchResult

_SHOWN: Final = 10  # trials of the table


@dataclass(frozen=True)
class SearchProgress:
    """Holds where a search stands."""

    done: int  # runs that ended or failed
    failed: int
    total: int  # runs there are at most
    running: Sequence[tuple[TrialRun, int, float | None, str]]  # run, steps, return, device
    best: Mapping[str, Any] | None  # its line of the record
    seconds: float


def short(key: str) -> str:
    """Returns a key as columns and pictures name it: learning_rate."""
    return key.rpartition(".")[2]


def shown(values: Mapping[str, Any]) -> str:
    """Returns values in a line: learning_rate 0.0003, epochs 4."""
    return ", ".join(f"{short(key)} {text_of(value)}" for key, value in values.items())


def returned(mean: float | None) -> str:
    """Returns a mean return; "-" while no episode has ended."""
    return "-" if mean is None else f"{mean:.1f}"


def _ended_text(line: Mapping[str, Any]) -> str:
    if line["kind"] == "failed":
        text = f"failed: {line['text']}"
    else:
        text = f"{line['reached']:>10,} steps  return {returned(line['return_mean'])}"
    return f"trial {line['trial']:3d}  {text}  ({shown(line['values'])})"


def _left(progress: SearchProgress) -> str:
    """Says what is done, and for how long; no forecast, as later runs take longer."""
    text = f"{progress.done} of {progress.total} runs"
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{text}{failed}, {duration(progress.seconds)}"


class SearchView:
    """Shows how a search goes: the running trials, the best, and a bar."""

    def __init__(self, config: Config, total: int, screen: Screen) -> None:
        self._screen = screen
        self._title = f"{config.run.name}: {config.env.id}, hyper-parameters"
        self._progress = SearchProgress(0, 0, total, (), None, 0.0)

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        self._screen.note(text)

    def show(self, progress: SearchProgress) -> None:
        """Takes in where the search stands now."""
        self._progress = progress

    def ended(self, line: Mapping[str, Any], progress: SearchProgress) -> None:
        """Shows that a run of a trial has ended or failed, by its line of the record."""
        self._progress = progress
        if self._screen.is_live and line["kind"] == "failed":
            self._screen.note(_ended_text(line), "yellow")
        self._screen.line(f"[{_left(progress)}] {_ended_text(line)}")

    def render(self, width: int) -> Group:
        """Draws a table of the running trials, the best, and a bar."""
        progress = self._progress
        rows = []
        for run, steps, mean, device in progress.running:
            cells = [str(run.trial), device, f"{steps:,}", f"{run.steps:,}", returned(mean)]
            rows.append([*cells, shown(run.values)])
        columns = ["trial", "device", "steps", "of", "return", "values"]
        table = table_within(width, self._title, columns, rows, ("device", "of"))
        best = "best: none yet" if progress.best is None else f"best: {_ended_text(progress.best)}"
        done = bar(progress.total, progress.done, width)
        return Group(table, Text(best), Text(_left(progress)), done)


def print_search(console: Console, result: SearchResult) -> None:
    """Prints the best trials, what failed, and where everything lies."""
    say = partial(console.out, highlight=False)
    if result.recalled:
        say(f"{result.folder} was done before; --again begins anew")
    last: dict[int, dict[str, Any]] = {}  # the run of each trial that got furthest
    for line in sorted(result.lines, key=lambda line: int(line["steps"])):
        if line["kind"] == "ended":
            last[line["trial"]] = line
    ranked = sorted(last.values(), key=lambda line: (line["steps"], score_of(line)), reverse=True)
    keys = list(result.values)
    rows = []
    for line in ranked[:_SHOWN]:
        values = [text_of(line["values"][key]) for key in keys]
        rows.append(
            [str(line["trial"]), f"{line['reached']:,}", returned(line["return_mean"]), *values]
        )
    hidden = f"; {len(ranked) - _SHOWN} more are not shown" if len(ranked) > _SHOWN else ""
    title = f"The best of {counted(len(ranked), 'trial')}, those that trained longest first{hidden}"
    print_table(console, title, ["trial", "steps", "return", *map(short, keys)], rows)
    if result.failed:
        failure = next(line for line in result.lines if line["kind"] == "failed")
        count = f"{result.failed} runs failed" if result.failed > 1 else "a run failed"
        say(f"{count}; the first, of trial {failure['trial']}: {failure['text']}")
    say(
        f"{shown(result.values)}: return {returned(result.return_mean)} after {result.steps:,} "
        f"steps; the search took {duration(result.seconds)}"
    )
    say(f"config: {result.best_config}  (gmi-drl launch)")
    say(f"policy: {result.checkpoint}")
    if result.picture is not None:
        say(f"picture: {result.picture}")
