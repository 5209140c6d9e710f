"""Estimates how fast a run is, by what it says after each iteration, and how sure that is. Pure.

A rate is environment steps over seconds of several iterations, its error the standard error of that
ratio. Three things would make the error a lie: the first iterations are slower: so many are left
out as make the error of the others least, at most half (White 1997, "An effective truncation
heuristic for bias reduction in simulation output": the marginal standard error rule); neighbours
are alike: short iterations are taken together in batches, and what is left of their correlation
counts; few numbers show too little: Student's t.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

ENOUGH: Final = 0.02  # relative error at which nothing more is measured
_LEAST: Final = 3  # iterations behind an error that is believed
# Less than this is noise of the machine, however alike its iterations are.
_LEAST_S: Final = 0.5
_FINEST: Final = 1e-3  # no machine is as steady as a few equal iterations may look
_ALONE: Final = 0.5  # error of a single iteration: it says nothing of its spread
_PAIR: Final = 0.05  # least error of a single iteration that is like the first
_BATCHES: Final = 48  # iterations are taken together in pairs until there are no more than these
# First iterations are a warm-up when the error without them is less than so many times that with
# them; else the lucky among equals would be chosen, and the error be too small.
_GAIN: Final = 0.6
_CUTS: Final = 12  # numbers of first iterations that are tried as the warm-up
# The t of 84 %, one standard deviation, for 1, 2 ... degrees of freedom; then 1 + 0.5 / them.
_STUDENT: Final = (1.84, 1.32, 1.20, 1.14)


@dataclass(frozen=True)
class Reading:
    """Holds what a stream says after an iteration: of all GMIs that train, or one that serves."""

    steps: int  # environment steps so far
    time_s: float  # so far, on any clock
    seconds: tuple[Mapping[str, float], ...]  # by phase, of each of its GMIs, in this iteration


@dataclass(frozen=True)
class SpeedEstimate:
    """Holds what was measured, warm-up left out."""

    steps_per_s: float  # of all streams together
    error: float  # relative standard error
    iterations: int  # of the stream that has fewest
    seconds: float  # of the stream that has most
    phases: Mapping[str, float]  # share of the time, mean over GMIs; they add up to 1

    @property
    def is_enough(self) -> bool:
        """Tells whether measuring on would tell little."""
        return self.error <= ENOUGH and self.iterations >= _LEAST and self.seconds >= _LEAST_S


_Stretch = tuple[int, float]  # steps and seconds of iterations of a stream taken together


@dataclass(frozen=True)
class _Rate:
    value: float
    error: float  # absolute
    iterations: int
    seconds: float


def estimate(
    streams: Sequence[Sequence[Reading]], others: Sequence[Sequence[Reading]] = ()
) -> SpeedEstimate | None:
    """Estimates the streams of a run together; None until each has two readings.

    The first reading's own iteration is the warm-up's. `others` are streams whose steps are in
    `streams` already: only their phases count.
    """
    if not streams or any(len(readings) < 2 for readings in streams):
        return None
    rates = [_rate_of(readings) for readings in streams]
    value = sum(rate.value for rate in rates)
    error = math.sqrt(sum(rate.error**2 for rate in rates)) / value if value else _ALONE
    return SpeedEstimate(
        steps_per_s=value,
        error=max(error, _FINEST),
        iterations=min(rate.iterations for rate in rates),
        seconds=max(rate.seconds for rate in rates),
        phases=_phases(
            [gmi for readings in (*streams, *others) for gmi in _seconds_by_gmi(readings)]
        ),
    )


def _rate_of(readings: Sequence[Reading]) -> _Rate:
    pairs = itertools.pairwise(readings)
    stretches = [(b.steps - a.steps, b.time_s - a.time_s) for a, b in pairs]
    if len(stretches) == 1:  # held against the first, which has the warm-up in it
        first, rate = readings[0], _ratio(stretches)
        if first.time_s > 0 and rate.value:
            deviation = abs(first.steps / first.time_s / rate.value - 1)
            return replace(rate, error=rate.value * min(max(deviation, _PAIR), _ALONE))
        return rate
    batch_size = 1  # iterations in a batch
    while len(stretches) > _BATCHES:
        stretches = stretches[len(stretches) % 2 :]  # an odd one out is the oldest
        couples = zip(stretches[::2], stretches[1::2], strict=True)
        stretches = [(a[0] + b[0], a[1] + b[1]) for a, b in couples]
        batch_size *= 2
    most = max(0, min(len(stretches) // 2, len(stretches) - _LEAST - 1))
    cuts = sorted({most * part // _CUTS for part in range(_CUTS + 1)})
    rates = [_ratio(stretches[cut:]) for cut in cuts]
    best = min(rates, key=_relative)
    if _relative(best) > _GAIN * _relative(rates[0]):
        best = rates[0]
    return replace(best, iterations=best.iterations * batch_size)


def _relative(rate: _Rate) -> float:
    return rate.error / rate.value if rate.value else _ALONE


def _ratio(stretches: Sequence[_Stretch]) -> _Rate:
    """Steps over seconds, and the standard error of a ratio of two sums (Cochran, 6.4)."""
    number, seconds = len(stretches), sum(s for _, s in stretches)
    if seconds <= 0:
        return _Rate(0.0, 0.0, number, 0.0)
    rate = sum(steps for steps, _ in stretches) / seconds
    if number < 2:
        return _Rate(rate, _ALONE * rate, number, seconds)
    residuals = [steps - rate * s for steps, s in stretches]
    variance = sum(x * x for x in residuals) / (number - 1)
    if variance and number > len(_STUDENT):  # of fewer, the correlation is noise
        rho = sum(a * b for a, b in itertools.pairwise(residuals)) / sum(x * x for x in residuals)
        rho = min(max(rho, 0.0), 0.9)
        variance *= (1 + rho) / (1 - rho)
    student = _STUDENT[number - 2] if number <= len(_STUDENT) + 1 else 1 + 0.5 / (number - 1)
    spread = student * math.sqrt(variance / number)
    return _Rate(rate, spread / (seconds / number), number, seconds)


def _seconds_by_gmi(readings: Sequence[Reading]) -> list[dict[str, float]]:
    """Sums the seconds by phase of each GMI of a stream, over all its iterations but the first."""
    sums: list[dict[str, float]] = [{} for _ in readings[-1].seconds] if readings else []
    for reading in readings[1:] or readings:  # a stream with one reading has the first alone
        for total, seconds in zip(sums, reading.seconds, strict=True):
            for phase, value in seconds.items():
                total[phase] = total.get(phase, 0.0) + value
    return sums


def _phases(gmis: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean share of each phase; GMIs that have reported nothing are left out."""
    busy = [(gmi, total) for gmi in gmis if (total := sum(gmi.values())) > 0]
    names = dict.fromkeys(phase for gmi, _ in busy for phase in gmi)
    return {name: sum(gmi.get(name, 0.0) / s for gmi, s in busy) / len(busy) for name in names}
