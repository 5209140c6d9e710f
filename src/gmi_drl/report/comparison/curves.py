"""Makes the curves of groups: each metric against steps and seconds, with a band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gmi_drl.report.statistics import interquartile_bands

from .groups import Comparison, RunGroup
from .runs import AXES, METRICS, ComparedRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POINTS: Final = 250  # of a curve; a screen shows no more
_DIGITS: Final = 6  # of a value
_DIGITS_OF_X: Final = 9
_RESAMPLES: Final = 500  # for a band, which is drawn and not read off


def curves(comparison: Comparison) -> dict[str, Any]:
    """Returns what the page draws: by metric and axis, the curve of each group that has one.

    A curve has x and its middle, and of several seeds low, high and the values of each; null
    where it has none.
    """
    by_metric: dict[str, Any] = {}
    for metric in METRICS:
        by_axis = {
            axis: [_curve(group, metric, axis) for group in comparison.groups] for axis in AXES
        }
        if any(curve is not None for curve in by_axis["steps"]):
            by_metric[metric] = by_axis
    return by_metric


def _curve(group: RunGroup, metric: str, axis: str) -> dict[str, Any] | None:
    """Returns the curve of a group; None if no run of it has this metric."""
    points = [_points(run, metric, axis) for run in group.runs]
    ranges = [xs for xs, _ in points if len(xs)]
    if not ranges:
        return None
    start, end = min(xs[0] for xs in ranges), max(xs[-1] for xs in ranges)
    grid = np.linspace(start, end, _POINTS) if end > start else np.array([start])
    values = np.full((len(points), len(grid)), np.nan)
    for row, (xs, ys) in zip(values, points, strict=True):
        if len(xs):
            inside = (grid >= xs[0]) & (grid <= xs[-1])
            row[inside] = np.interp(grid[inside], xs, ys)
    middle, low, high = np.full((3, len(grid)), np.nan)
    is_known = ~np.isnan(values)
    # The seeds that reach a point are the same ones over long stretches.
    for mask in np.unique(is_known, axis=1).T:
        columns = (is_known == mask[:, None]).all(axis=0)
        if mask.any():
            bands = interquartile_bands(values[np.ix_(mask, columns)], _RESAMPLES)
            middle[columns], low[columns], high[columns] = bands
    curve: dict[str, Any] = {"x": _plain(grid, _DIGITS_OF_X), "middle": _plain(middle)}
    if len(points) > 1:
        curve |= {"low": _plain(low), "high": _plain(high), "seeds": [*map(_plain, values)]}
    return curve


def _points(run: ComparedRun, metric: str, axis: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the values of a metric and where they lie, in order."""
    xs, ys = run.columns[axis], run.columns[metric]
    known = ~np.isnan(ys)
    xs, ys = xs[known], ys[known]
    order = np.argsort(xs, kind="stable")
    return xs[order], ys[order]


def _plain(values: NDArray[Any], digits: int = _DIGITS) -> Sequence[float | None]:
    """Returns values as JSON has them, which knows no NaN."""
    return [None if np.isnan(value) else float(f"{value:.{digits}g}") for value in values.tolist()]
