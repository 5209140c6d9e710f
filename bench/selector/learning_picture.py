"""Draws what learning.py has measured: return against seconds, a panel for each task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from learning_page import band
from learning_raw import GIVEN, RawFile, TrainingRun
from learning_rows import target_of
from report import save_picture

from gmi_drl.selector.plots.tune_picture import INK, PALE, titled

_WAYS: Final = {
    GIVEN: ("as given", INK),
    "learning": ("tuned", "#0072B2"),
    "steps": ("tuned for steps/s", "#E69F00"),
    "paper": ("Algorithm 2", "#CC79A7"),
}
_COLUMNS: Final = 3


def draw(raw: RawFile, tasks: Sequence[str], folder: Path, where: str) -> None:
    """Draws the tasks that have runs, as png and svg; `where` names the machines."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ways_of_task = {task: curves for task in tasks if (curves := _curves(raw, task))}
    if not ways_of_task:
        return
    columns = min(_COLUMNS, len(ways_of_task))
    lines = -(-len(ways_of_task) // columns)
    figure = Figure(figsize=(1.0 + 4.0 * columns, 0.8 + 3.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for panel, (task, ways) in zip(panels, ways_of_task.items(), strict=False):
        titled(panel, task)
        for way, curves in ways.items():
            label, colour = _WAYS[way]
            seconds, low, middle, high = band(curves, 0.25, 0.75)
            panel.plot(seconds, middle, color=colour, label=label)
            panel.fill_between(seconds, low, high, color=colour, alpha=0.18, linewidth=0)
        target = target_of(_runs(raw, task, GIVEN))
        if target is not None:
            panel.axhline(target, color=PALE, linewidth=0.9, linestyle=":")
        panel.grid(alpha=0.25)
        panel.set_xlim(0, None)
    for panel in panels[len(ways_of_task) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(ways_of_task) - columns) : len(ways_of_task)]:
        panel.set_xlabel("seconds of training", color=INK)
    for panel in panels[::columns]:
        panel.set_ylabel("return (last 100 episodes)", color=INK)
    ways_drawn = dict.fromkeys(way for ways in ways_of_task.values() for way in ways)
    handles = [Line2D([], [], color=_WAYS[way][1]) for way in ways_drawn]
    names = [_WAYS[way][0] for way in ways_drawn]
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
    figure.text(0.01, -0.01, where, fontsize=8, color=PALE, va="top")
    save_picture(figure, folder, "learning")


def _runs(raw: RawFile, task: str, way: str) -> list[TrainingRun]:
    return [run for run in raw.runs if (run.task, run.way) == (task, way)]


def _curves(raw: RawFile, task: str) -> dict[str, list[list[list[float]]]]:
    """Returns (seconds, return) of the runs of each way; no way whose runs have no return."""
    ways = {
        way: [[[at_s, mean] for at_s, _, mean in run.points] for run in _runs(raw, task, way)]
        for way in _WAYS
    }
    nonempty = {way: [curve for curve in curves if curve] for way, curves in ways.items()}
    return {way: curves for way, curves in nonempty.items() if curves}
