"""Connects a backend of torch.distributed and waits for its operations, without a hang.

A backend can say neither who is late nor that a process was replaced. So this thread looks up every
20 ms whether there is still something to wait for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch.distributed

from gmi_drl.runtime.process.progress import waiting

dist: Any = torch.distributed  # much of what is used here has no types

LOOK_S: Final = 0.020


def connected(make: Callable[[], Any], look: Callable[[], None]) -> Any:
    """Returns what `make` connects beside this thread, which calls `look` meanwhile.

    RuntimeError says why it cannot be connected. What `look` raises ends the wait.
    """
    outcome: list[Any] = []
    done, given_up = threading.Event(), threading.Event()

    def connect() -> None:
        try:
            outcome.append(make())
        except Exception as error:  # torch's are of several kinds, and nobody is above
            outcome.append(error)
        if given_up.is_set():
            outcome.clear()
        done.set()

    # Not a thread to wait for: what it waits for may be a process that is gone.
    threading.Thread(target=connect, daemon=True, name="backend's begin").start()
    try:
        with waiting:
            while not done.wait(LOOK_S):
                look()
    except BaseException:
        given_up.set()
        raise
    if isinstance(outcome[0], Exception):
        raise RuntimeError(first_line(outcome[0]))
    return outcome[0]


def gloo(store: Any, index: int, size: int, timeout: timedelta, **device: str) -> Any:
    """Connects a gloo backend; `device` is a `hostname` or an `interface`."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(**device)]
    options._timeout, options._threads = timeout, 1
    return dist.ProcessGroupGloo(store, index, size, options)


def wait(work: Any, look: Callable[[], None]) -> None:
    """Waits until an operation of gloo is done; RuntimeError if it fails."""
    while True:
        is_completed = work.is_completed()
        try:
            work.wait(timedelta(seconds=LOOK_S))
            return
        except RuntimeError:
            if is_completed:  # else only the 20 ms were over
                raise
        look()


def drop(held: list[Any]) -> None:
    """Closes the connections of backends that nobody holds but this list.

    The end of a gloo backend waits for its operation, if one was given up: at most until the
    time-out that it has itself. So the last that holds it is a thread nobody waits for.
    """
    threading.Thread(target=_end, args=(held,), daemon=True, name="backend's end").start()


def first_line(error: Exception) -> str:
    """Returns the first line of an error; what follows in torch's are C++ frames."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _end(backends: list[Any]) -> None:
    with contextlib.suppress(RuntimeError):
        backends.clear()
