"""Sums up a figure over seeds: mean, deviation, and interquartile mean with its interval.

The interquartile mean is the mean of the middle half, as rliable has it (Agarwal et al. 2021): a
quarter of the values, rounded down, is left out at each end. The interval is the percentile
bootstrap's: what 95 % of the means lie in when runs are drawn again with replacement. The drawing
is seeded, so that the same runs have the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RESAMPLES: Final = 2000
_PERCENTILES: Final = (2.5, 97.5)
_AT_ONCE: Final = 4_000_000  # values that are drawn and sorted at a time


@dataclass(frozen=True)
class Estimate:
    """Sums up one figure over runs."""

    count: int
    mean: float
    std: float | None  # of a sample; None of a single run
    iqm: float
    low: float | None  # of the interval of `iqm`; None of a single run
    high: float | None


def estimate(values: Sequence[float]) -> Estimate | None:
    """Returns the estimate of a figure, None without any value; NaN makes all of it NaN."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)[:, None]
    several = len(values) > 1
    with np.errstate(invalid="ignore", over="ignore"):  # a return may be infinite
        middle, low, high = interquartile_bands(array)
        return Estimate(
            count=len(values),
            mean=float(array.mean()),
            std=float(array.std(ddof=1)) if several else None,
            iqm=float(middle[0]),
            low=float(low[0]) if several else None,
            high=float(high[0]) if several else None,
        )


def interquartile_mean(values: Sequence[float]) -> float:
    """Returns the mean of the middle half of one value or more."""
    return float(_interquartile_mean(np.asarray(values, dtype=np.float64)[None, :, None])[0, 0])


def interquartile_bands(
    values: NDArray[Any], resamples: int = _RESAMPLES
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns the interquartile mean of each column of [runs, points], and both ends of it."""
    runs, points = values.shape
    middle = _interquartile_mean(values[None])[0]
    if runs == 1:
        return middle, middle, middle
    low, high = np.empty(points), np.empty(points)
    drawn = np.random.default_rng(0).integers(runs, size=(resamples, runs))
    step = max(1, _AT_ONCE // (resamples * runs))
    for start in range(0, points, step):
        part = slice(start, start + step)
        means = _interquartile_mean(values[:, part][drawn])
        low[part], high[part] = np.percentile(means, _PERCENTILES, axis=0)
    return middle, low, high


def _interquartile_mean(values: NDArray[Any]) -> NDArray[Any]:
    """Returns the mean of the middle half of [resamples, runs, points] over the runs."""
    runs = values.shape[1]
    cut = runs // 4
    if cut:
        values = np.sort(values, axis=1)[:, cut : runs - cut]
    mean: NDArray[Any] = values.mean(axis=1)
    return mean
