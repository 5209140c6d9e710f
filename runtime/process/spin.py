"""Spins for a moment before a thread goes to sleep.

A core that sleeps takes 20 to 50 us to wake, more than what it is woken for. Who did not wait long
the last time looks a little longer before it sleeps; who did sleeps at once, so that those who wait
do not take the cores from those who work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SPIN_S: Final = 60e-6
_SHORT_S: Final = 400e-6  # a wait, with the time others took to wake, that could be short


class Spin:
    """Decides whether to stay awake, from how long the last wait was. One thread's alone."""

    def __init__(self) -> None:
        self._short = True
        self._since_s = 0.0

    def until(self, ready: Callable[[], object]) -> bool:
        """Looks for what is waited for; returns False when it is time to sleep."""
        now_s = self._since_s = time.perf_counter()
        if not self._short:
            return False
        end_s = now_s + SPIN_S
        while now_s < end_s:
            if ready():
                return True
            now_s = time.perf_counter()
        return False

    def over(self) -> None:
        """Notes how long the wait was."""
        self._short = time.perf_counter() - self._since_s < _SHORT_S
