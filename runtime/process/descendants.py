"""Finds processes that those of a runtime have started, by a variable that they inherit.

A process may leave its group and its session, and its parents may die; the environment it was
started with stays, and can be read in /proc by its user.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "GMI_DRL_PROCESS"
_DEATH_S: Final = 2.0  # how long processes may take to die of SIGKILL


def mark(directory: Path | str, number: int | None = None) -> dict[str, str]:
    """Returns a variable: what a process starts goes with it (`number`), or with the runtime."""
    return {VARIABLE: f"{directory}:{'' if number is None else number}"}


def marked(pid: int) -> tuple[str, int | None]:
    """Returns the directory and the number that a process was started with; "" without any."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:  # it is over, or another user's
        return "", None
    prefix = f"{VARIABLE}=".encode()
    for variable in variables:
        if variable.startswith(prefix):
            text = os.fsdecode(variable[len(prefix) :])
            directory, _, number = text.rpartition(":")
            return directory, int(number) if number.isdecimal() else None
    return "", None


def kill_all(directory: Path) -> None:
    """Kills all that was started in a runtime whose own processes are dead; waits until it is gone.

    It looks again until there is none, as one may have started something meanwhile.
    """
    deadline_s = time.monotonic() + _DEATH_S
    while any([_kill(pid, str(directory)) for pid in pids()]) and time.monotonic() < deadline_s:
        time.sleep(0.005)  # for them to die


def _kill(pid: int, directory: str) -> bool:
    """Kills one of them; the descriptor keeps its pid from being another's."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if marked(pid)[0] != directory or pid == os.getpid():
            return False
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        return True
    finally:
        os.close(fd)


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
