"""The runtime of this process: starting it, ending it, and ending it when nobody did."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from .ending import stop_links
from .errors import ActorRuntimeError, NotRunningError
from .protocol import Ready
from .refs import ObjectRef, get_value, seconds

if TYPE_CHECKING:
    from .driver import Runtime

_runtime: Runtime | None = None
_changing = threading.RLock()


def init(preload: Sequence[str] = ()) -> None:
    """Starts the process that forks the actors, and returns at once.

    It imports the modules named in `preload` once, for all actors; one that does not import is
    skipped. Ends with `shutdown`, which also runs when the interpreter exits.
    """
    from .driver import Runtime  # not at the top: actors, who import this too, never need it

    global _runtime
    with _changing:
        if _runtime is not None:
            raise ActorRuntimeError("init() was called before. Call shutdown() first.")
        _runtime = Runtime(preload)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` has not."""
    return _runtime is not None


def shutdown(grace: timedelta = timedelta(seconds=1)) -> None:
    """Stops every actor and the fork server; nothing is left. Does nothing when not running."""
    global _runtime
    with _changing:
        if _runtime is None:
            return
        try:
            if _runtime.ready.done:  # else no actor has been forked yet
                stop_links(_runtime, _runtime.links(), grace, "the runtime was shut down")
        finally:
            runtime, _runtime = _runtime, None
            runtime.close()


def preloaded(timeout: timedelta | float | None = None) -> Ready:
    """What the fork server has imported; waits until it has."""
    limit_s = seconds(timeout)
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    ready: Ready = get_value(ObjectRef(running().ready), deadline_s, limit_s)
    return ready


def run_directory() -> Path:
    """A private directory (0700) with a short path, for sockets; it goes with the runtime."""
    return running().server.directory


def current() -> Runtime | None:
    """The runtime of this process, if it has one."""
    return _runtime


def running() -> Runtime:
    """The runtime of this process; NotRunningError if it has none."""
    if _runtime is None:
        raise NotRunningError("the runtime is not running. Call gmi_drl.runtime.init() first.")
    return _runtime


@atexit.register
def _at_exit() -> None:
    if _runtime is not None and _runtime.owner_pid == os.getpid():
        shutdown()


def _after_fork() -> None:
    global _runtime, _changing
    if _runtime is not None:
        with contextlib.suppress(OSError):
            _runtime.forget()
    _runtime, _changing = None, threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
