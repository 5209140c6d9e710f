"""Shows that the work of this thread makes progress, to who has asked to be told.

In a thread that is bound to nobody `beat` and `waiting` do nothing.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

SET_UP: Final = "set-up"  # the phase before a process does what it is for


class Watched(Protocol):
    """Is told of the progress of a thread."""

    def beat(self, phase: str | None = None) -> None:
        """Shows progress in `phase`; None: in the one that it was in."""

    def begin_wait(self) -> None:
        """Shows that the thread waits for another process, until its next beat."""


_here: Final = threading.local()


def bind(watched: Watched | None) -> None:
    """Has `watched` be told of this thread, or nobody."""
    _here.watched = watched


def beat(phase: str | None = None) -> None:
    """Shows progress of this thread; see `Watched.beat`."""
    watched: Watched | None = getattr(_here, "watched", None)
    if watched is not None:
        watched.beat(phase)


class _Waiting:
    """Inside the block this thread waits for another process."""

    def __enter__(self) -> None:
        watched: Watched | None = getattr(_here, "watched", None)
        if watched is not None:
            watched.begin_wait()

    def __exit__(self, *_: object) -> None:
        beat()


waiting: Final = _Waiting()
