"""Processes that are stopped, as by a debugger or an operator."""

import contextlib
import os
import signal
from pathlib import Path

from waits import until


def state_of(pid):
    """Returns the letter that the kernel has for what a process, or one of its threads, does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop(pid):
    """Stops a process; returns when none of its threads runs any more, which is some time later."""
    os.kill(pid, signal.SIGSTOP)
    until(
        lambda: _states(pid) <= {"T", "X", "Z"}, "all threads stopped", shown=lambda: _states(pid)
    )


@contextlib.contextmanager
def stopped(*pids):
    """Processes that are stopped as long as the block lasts."""
    try:
        for pid in pids:
            stop(pid)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _states(pid):
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            states.add(state_of(f"{pid}/task/{thread.name}"))
    return states
