"""Knows how long iterations take, so that the one in flight is given time to end."""

from __future__ import annotations

import time
from typing import Final

_GRACE_S: Final = 10.0  # in which GMIs stop, on top of _ITERATIONS
_ITERATIONS: Final = 3  # times the longest iteration so far, as the one in flight may take longer


class IterationTimes:
    """Times the iterations of a gang, the first one from when all its GMIs are set up."""

    def __init__(self) -> None:
        self._noted_s = 0.0  # when the last one ended; 0: none has begun
        self._longest_s = 0.0  # 0: none has ended yet

    def begin(self) -> None:
        """Notes that the first iteration begins; does nothing from the second call on."""
        self._noted_s = self._noted_s or time.monotonic()

    def note(self) -> None:
        """Notes that an iteration has ended."""
        self.begin()
        now_s = time.monotonic()
        self._longest_s = max(self._longest_s, now_s - self._noted_s)
        self._noted_s = now_s

    def grace_s(self) -> float:
        """Returns how long the iteration in flight, and its checkpoint, may take from now on."""
        longest_s = self._longest_s and max(self._longest_s, time.monotonic() - self._noted_s)
        return _GRACE_S + _ITERATIONS * longest_s
