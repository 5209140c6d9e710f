"""Exponential averages of what was measured: run times, and the bandwidth between devices."""

from __future__ import annotations

from typing import Final

WEIGHT: Final = 0.2  # of the newest measurement
FIRST_BYTES_PER_S: Final = 4e9  # until a transfer has been measured
MOST_BYTES_PER_S: Final = 1e12  # a clock that hardly moved must not make it infinite


class RunTimes:
    """The mean run time of each function on one device."""

    __slots__ = ("get", "means_s")

    def __init__(self) -> None:
        self.means_s: dict[bytes, float] = {}
        self.get = self.means_s.get

    def add(self, function: bytes, run_s: float) -> None:
        mean_s = self.get(function)
        self.means_s[function] = run_s if mean_s is None else mean_s + WEIGHT * (run_s - mean_s)


class Bandwidth:
    """How fast bytes go from one device to another."""

    __slots__ = ("_measured", "bytes_per_s")

    def __init__(self) -> None:
        self.bytes_per_s = FIRST_BYTES_PER_S
        self._measured = False

    def add(self, nbytes: int, seconds: float) -> None:
        if nbytes <= 0 or seconds <= 0:
            return  # says nothing about speed
        rate = min(nbytes / seconds, MOST_BYTES_PER_S)
        if self._measured:
            self.bytes_per_s += WEIGHT * (rate - self.bytes_per_s)
        else:
            self.bytes_per_s, self._measured = rate, True

    def seconds(self, nbytes: int) -> float:
        return nbytes / self.bytes_per_s
