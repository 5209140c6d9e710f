"""Makes the curves of groups: each metric against steps and seconds, with a band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gmi_drl.report.statistics import interquartile_bands

from .groups import Comparison, RunGroup
from .runs import ComparedRun, finite_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

AXES: Final = {"steps": "steps", "time_s": "seconds"}  # by the key of metrics
_POINTS: Final = 250  # of a curve; a screen shows no more
_DIGITS: Final = 6  # of a value
_DIGITS_OF_X: Final = 9
METRICS_SHOWN: Final = {  # those that runs have of these, with what each is
    "return_mean": "return (mean of the last 100 episodes)",
    "length_mean": "steps of an episode",
    "steps_per_s": "steps/s",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "actor_loss": "actor loss",
    "critic_loss": "critic loss",
    "q_mean": "mean Q",
    "entropy": "entropy",
    "kl": "KL of an update",
    "learning_rate": "learning rate",
    "noise_scale": "gradient noise scale (samples)",
    "policy_lag_mean": "policy lag (updates)",
}


def curves(comparison: Comparison) -> dict[str, Any]:
    """Returns what the page draws: by metric and axis, the curve of each group that has one.

    A curve has x and its middle, and of several seeds low, high and the values of each; null
    where it has none.
    """
    shown: dict[str, Any] = {}
    for metric in METRICS_SHOWN:
        drawn = {
            axis: [_curve(group, metric, axis) for group in comparison.groups] for axis in AXES
        }
        if any(curve is not None for curve in drawn["steps"]):
            shown[metric] = drawn
    return shown


def _curve(group: RunGroup, metric: str, axis: str) -> dict[str, Any] | None:
    """Returns the curve of a group; None if no run of it has this metric."""
    points = [_points(run, metric, axis) for run in group.runs]
    reached = [xs for xs, _ in points if len(xs)]
    if not reached:
        return None
    start, end = min(xs[0] for xs in reached), max(xs[-1] for xs in reached)
    grid = np.linspace(start, end, _POINTS) if end > start else np.array([start])
    values = np.full((len(points), len(grid)), np.nan)
    for row, (xs, ys) in zip(values, points, strict=True):
        if len(xs):
            inside = (grid >= xs[0]) & (grid <= xs[-1])
            row[inside] = np.interp(grid[inside], xs, ys)
    middle, low, high = np.full((3, len(grid)), np.nan)
    has = ~np.isnan(values)
    # The seeds that reach a point are the same ones over long stretches.
    for mask in np.unique(has, axis=1).T:
        columns = (has == mask[:, None]).all(axis=0)
        if mask.any():
            bands = interquartile_bands(values[np.ix_(mask, columns)])
            middle[columns], low[columns], high[columns] = bands
    curve: dict[str, Any] = {"x": _plain(grid, _DIGITS_OF_X), "middle": _plain(middle)}
    if len(points) > 1:
        curve |= {"low": _plain(low), "high": _plain(high), "seeds": [*map(_plain, values)]}
    return curve


def _points(run: ComparedRun, metric: str, axis: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the finite values of a metric and where they lie, in order."""
    pairs = [
        (x, y)
        for line in run.metrics
        if (y := finite_number(line, metric)) is not None
        and (x := finite_number(line, axis)) is not None
    ]
    array = np.array(sorted(pairs), dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _plain(values: NDArray[Any], digits: int = _DIGITS) -> Sequence[float | None]:
    """Returns values as JSON has them, which knows no NaN."""
    return [None if np.isnan(value) else float(f"{value:.{digits}g}") for value in values.tolist()]
