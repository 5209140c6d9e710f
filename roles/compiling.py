"""Environments whose kernels are compiled when they are first made: one GMI does it, others wait.

Adapters warp and mjx compile for half a minute and more, into caches that all processes of a user
share.
GMIs that start together would all do the same work, and those that are done first would wait for
the last at their first meeting, which has a deadline (`comm.timeout_s`). So the first to come makes
its environments alone, and the others theirs when it has: from the cache, at the same time. That is
so for each task and number of environments, as kernels may be compiled for them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

COMPILES: Final = frozenset({"warp", "mjx"})  # adapters that do so
_PATIENCE: Final = timedelta(minutes=10)
_LOOK_S: Final = 0.05


@contextmanager
def first_alone(path: Path, patience: timedelta = _PATIENCE) -> Iterator[None]:
    """The body runs alone until it has ended well for the first time, in any process or thread.

    `path` is a file that those who take part agree on; they are of one user. Waits while another
    is in its body, `patience` at most: then both run. Who is killed, or raises, lets the next in.
    """
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        mine = _taken(file, time.monotonic() + patience.total_seconds())
        yield
        if mine:
            os.pwrite(file, b"\1", 0)
    finally:
        os.close(file)  # and with it the lock


def _taken(file: int, deadline_s: float) -> bool:
    """Whether this one is the first: it has the lock. False when the first is done, or too late."""
    while not os.fstat(file).st_size:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_LOOK_S)
            continue
        if not os.fstat(file).st_size:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)  # the one before was done just now
    return False
