"""Spins for a moment before a thread goes to sleep.

A sleeping core takes 20 to 50 us to wake, longer than the work it is woken for. A thread whose last
wait was short spins a little before it sleeps; one whose wait was long sleeps at once, so that
waiting threads do not take the cores from working ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SPIN_S: Final = 60e-6
_SHORT_S: Final = 400e-6  # the longest wait, with others' time to wake, that counts as short


class Spin:
    """Decides by the length of the last wait whether to spin. Used by one thread only."""

    def __init__(self) -> None:
        self._short = True
        self._since_s = 0.0

    def until(self, ready: Callable[[], object]) -> bool:
        """Polls `ready`; returns False when it is time to sleep."""
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
        """Notes the end of a wait, and how long it was."""
        self._short = time.perf_counter() - self._since_s < _SHORT_S
