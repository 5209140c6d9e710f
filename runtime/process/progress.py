"""Reports the progress of a thread's work to whoever watches the thread.

In a thread that is bound to nobody `beat` and `waiting` do nothing.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

SET_UP: Final = "set-up"  # the phase before a process does its actual work


class Watched(Protocol):
    """Receives the progress of a thread."""

    def beat(self, phase: str | None = None) -> None:
        """Notes progress in `phase`; None: in the current one."""

    def begin_wait(self) -> None:
        """Notes that the thread waits for another process, until its next beat."""


_here: Final = threading.local()


def bind(watched: Watched | None) -> None:
    """Sets who is told of this thread's progress; None: nobody."""
    _here.watched = watched


def beat(phase: str | None = None) -> None:
    """Reports progress of this thread; see `Watched.beat`."""
    watched: Watched | None = getattr(_here, "watched", None)
    if watched is not None:
        watched.beat(phase)


class _Waiting:
    """Reports that this thread waits for another process inside the block."""

    def __enter__(self) -> None:
        watched: Watched | None = getattr(_here, "watched", None)
        if watched is not None:
            watched.begin_wait()

    def __exit__(self, *_: object) -> None:
        beat()


waiting: Final = _Waiting()
