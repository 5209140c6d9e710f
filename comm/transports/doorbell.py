"""A doorbell is one word of shared memory that one process sleeps on and others change to wake it.

A ringer, which has something for the sleeper, writes it, fences, and rings: if `asleep` is set it
changes the word and wakes. The sleeper sets `asleep` and reads the word, fences, looks whether
there is something, and sleeps if not, unless the kernel finds the word changed. So either the
ringer sees `asleep`, or the sleeper sees what the ringer has written before. Several may ring at
once: what they write, the monotonic clock's nanoseconds, only has to differ from what the sleeper
has read, and each had made its own thing visible before. Should a wake-up be lost even so, a sleep
ends after 20 ms: late, never a hang. A sleeper that is killed leaves `asleep` set, which costs its
ringers a call each until its successor clears it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gmi_drl.comm.shm.futex import Fence, Futex
from gmi_drl.runtime.process.progress import waiting
from gmi_drl.runtime.process.spin import Spin
from gmi_drl.runtime.store.memfd import Memfd

DOORBELL_BYTES: Final = 128  # the word and `asleep`, each in a line of its own
_ASLEEP: Final = 8
_SLEEP_S: Final = 0.020


@dataclass(frozen=True)
class DoorbellSpec:
    """The doorbell of one receiving process; passes through the arguments of an actor call."""

    memfd: Memfd

    def open(self) -> Doorbell:
        """Opens the doorbell in this process, to ring it or to sleep on it."""
        status = os.fstat(self.memfd.fd)
        return Doorbell(self.memfd.map(0, DOORBELL_BYTES), (status.st_dev, status.st_ino))


def create_doorbell() -> DoorbellSpec:
    """Makes a doorbell for one receiving process: give it to all links that end there.

    `wait_any` then sleeps on all of them at once. Its memory goes with the last process that has
    it.
    """
    return DoorbellSpec(Memfd.create("gmi-drl-doorbell", DOORBELL_BYTES))


class Doorbell:
    """One process's view of a doorbell, in the first DOORBELL_BYTES of `memory`.

    Not for several threads. Only one process at a time may wait on it. `key` is the same for every
    copy of one doorbell.
    """

    def __init__(self, memory: memoryview, key: tuple[int, int] = (0, 0)) -> None:
        self.key = key
        self._words = memory[:DOORBELL_BYTES].cast("Q")
        self._futex = Futex(memory, 0)
        self._fence = Fence()
        self._spin = Spin()

    def ring(self) -> None:
        """Wakes the sleeper, if it sleeps; write what it is to see before."""
        self._fence()
        if self._words[_ASLEEP]:
            self._words[0] = time.monotonic_ns()
            self._futex.wake()

    def wait(self, ready: Callable[[], object], timeout: timedelta) -> bool:
        """Returns when `ready` does not answer False any more, or False after `timeout`."""
        if ready() or self._spin.until(ready):
            return True
        words, deadline_s = self._words, time.monotonic() + timeout.total_seconds()
        try:
            with waiting:
                while True:
                    words[_ASLEEP] = 1
                    value = words[0]
                    self._fence()
                    if ready():
                        return True
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return False
                    self._futex.wait(value, min(_SLEEP_S, left_s))
        finally:
            words[_ASLEEP] = 0
            self._spin.over()
