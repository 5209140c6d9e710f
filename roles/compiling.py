"""Environments whose kernels are compiled when they are first used: one GMI does it, others wait.

Adapter warp compiles when a batch is made, mjx at its first `reset`, both for half a minute and
more, into caches that all processes of a user share.
GMIs that start together would all do the same work, and those that are done first would wait for
the last at their first meeting, which has a deadline (`comm.timeout_s`). So the first to come
compiles alone, and the others when it has: from the cache, at the same time. That is so for each
task and number of environments, as kernels may be compiled for them. GMIs without environments, and
those that are done, wait for the others by `await_set_up`.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from .graphs import ONE_AT_A_TIME

COMPILES: Final = frozenset({"warp", "mjx"})  # adapters that do so
AT_RESET: Final = frozenset({"mjx"})  # those whose batches do so at their first reset
_PATIENCE: Final = timedelta(minutes=10)
_LOOK_S: Final = 0.05


@contextmanager
def first_alone(
    path: Path, patience: timedelta = _PATIENCE, told: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """The body runs alone until it has ended well for the first time, in any process or thread.

    `path` is a file that those who take part agree on; they are of one user. Waits while another
    is in its body, `patience` at most: then both run. Who is killed, or raises, lets the next in.
    `told` is called before the body of one that is alone.
    """
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        mine = _taken(file, time.monotonic() + patience.total_seconds())
        if mine:
            told()
        yield
        if mine:
            os.pwrite(file, b"\1", 0)
    finally:
        os.close(file)  # and with it the lock


@contextmanager
def compiling(
    folder: Path | None, what: str, on_gpu: bool, told: Callable[[], object]
) -> Iterator[None]:
    """Round what compiles `what`, among GMIs that have the same `folder`; None: it is alone.
    `told` is called when this one is the first.

    Environments on a GPU wait for all of it meanwhile, which would break off what another GMI that
    is a thread of this process captures.
    """
    alone: AbstractContextManager[None] = nullcontext()
    if folder is not None:  # `what` may hold a path
        name = re.sub(r"[^\w.-]", "_", what)[-100:]
        alone = first_alone(folder / f"compiled-{name}", told=told)
    in_turn: AbstractContextManager[Any] = ONE_AT_A_TIME if on_gpu else nullcontext()
    with alone, in_turn:
        yield


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
