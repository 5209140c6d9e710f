"""Whether a run trains as fast as tuning has promised. Pure: it is told, and says when it is not.

A choice that was measured last month holds as long as the machine is what it was: a driver, a
neighbour or a warm summer change that, and then the choice is to be made anew.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

_OFF: Final = 0.25  # the share by which speed may differ from the promise
_PERIOD_S: Final = 20.0  # of training, that are judged together
_ITERATIONS: Final = 5  # of which there are so many or more
_IN_A_ROW: Final = 4  # periods that must all be off: a busy minute, at the start too, is fewer


@dataclass(frozen=True)
class Drifted:
    """A run that does other than promised."""

    promised: float  # environment steps a second
    steps_per_s: float  # of the iterations of the last period, their median

    def __str__(self) -> str:
        ratio = self.steps_per_s / self.promised - 1
        return (
            f"{self.steps_per_s:,.0f} steps/s, {abs(ratio):.0%} "
            f"{'less' if ratio < 0 else 'more'} than the {self.promised:,.0f} that tuning measured"
        )


class Drift:
    """Holds a run against a promise of `promised` environment steps a second.

    A run has drifted when all of these are off by more than a quarter, and to the same side: the
    median iteration of each of four periods in a row, of 20 s or more each, and all of the run so
    far. So neither a slow start nor a GMI that was started again counts, nor a busy minute,
    whether it is the first of a run or comes after hours that were fine.
    """

    def __init__(self, promised: float) -> None:
        assert promised > 0
        self._promised, self._told = promised, False
        self._last: tuple[int, float] | None = None
        self._steps, self._seconds = 0, 0.0  # of the run
        self._speeds: list[float] = []  # of the iterations of the period
        self._period_s = 0.0
        self._row = 0  # periods off one after the other: below zero those that were too slow

    def take(self, steps: int, time_s: float) -> Drifted | None:
        """After an iteration: environment steps and seconds of training, since any fixed start.

        What is found, once.
        """
        if self._told:
            return None
        last, self._last = self._last, (steps, time_s)
        if last is None:  # the first iteration warms up, and what was before it is not known
            return None
        if steps <= last[0] or time_s <= last[1]:  # gone back to an earlier state of training
            self._begin()
            return None
        self._steps += steps - last[0]
        self._seconds += time_s - last[1]
        self._speeds.append((steps - last[0]) / (time_s - last[1]))
        self._period_s += time_s - last[1]
        if self._period_s < _PERIOD_S or len(self._speeds) < _ITERATIONS:
            return None
        found = statistics.median(self._speeds)
        self._speeds, self._period_s = [], 0.0
        side = self._side(found)
        self._row = side if self._row * side <= 0 else self._row + side
        self._told = abs(self._row) >= _IN_A_ROW and side == self._side(self._steps / self._seconds)
        return Drifted(self._promised, found) if self._told else None

    def _side(self, speed: float) -> int:
        """-1 for too slow, 1 for too fast, 0 for as promised."""
        off = speed / self._promised - 1
        return 0 if abs(off) <= _OFF else (1 if off > 0 else -1)

    def _begin(self) -> None:
        self._steps, self._seconds = 0, 0.0
        self._speeds, self._period_s, self._row = [], 0.0, 0
