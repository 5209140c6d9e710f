"""Finds the descendants of a runtime's processes by a variable that they inherit.

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
_EXEC_S: Final = 1.0  # how long an exec may take on a busy core


def mark(directory: Path | str, number: int | None = None) -> dict[str, str]:
    """Returns the variable that ties descendants to a process (`number`) or to the runtime."""
    return {VARIABLE: f"{directory}:{'' if number is None else number}"}


def marked(pid: int) -> tuple[str, int | None]:
    """Returns the directory and number in a process's variable; "" without one."""
    try:
        environment = _environment(pid)
    except OSError:  # it is over, or another user's
        return "", None
    prefix = f"{VARIABLE}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(prefix):
            text = os.fsdecode(variable[len(prefix) :])
            directory, _, number = text.rpartition(":")
            return directory, int(number) if number.isdecimal() else None
    return "", None


def _environment(pid: int) -> bytes:
    """Returns a process's environment; of one within exec it waits for the new one.

    Until the kernel has read the new program there is none, and Popen may return before that.
    """
    path = Path(f"/proc/{pid}/environ")
    deadline_s = time.monotonic() + _EXEC_S
    while not (data := path.read_bytes()) and _in_exec(pid) and time.monotonic() < deadline_s:
        time.sleep(0.001)  # gives up the core meanwhile
    return data or path.read_bytes()  # it may have appeared since the last read


def _in_exec(pid: int) -> bool:
    """Returns whether a process is within exec: it has memory but no end of an environment yet.

    A kernel's thread or a zombie has no memory. The end is field 51 of /proc/[pid]/stat.
    """
    memory = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # from the third
    return memory[0] != "0" and fields[51 - 3] == b"0"


def kill_all(directory: Path) -> None:
    """Kills all descendants of a runtime whose own processes are dead; waits until they are gone.

    It looks again until there is none, as some may have started others meanwhile.
    """
    deadline_s = time.monotonic() + _DEATH_S
    while any([_kill(pid, str(directory)) for pid in pids()]) and time.monotonic() < deadline_s:
        time.sleep(0.005)  # for them to die


def _kill(pid: int, directory: str) -> bool:
    """Kills a process if it is marked so; its descriptor keeps the pid from being reused."""
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
