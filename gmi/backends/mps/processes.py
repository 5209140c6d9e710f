"""The processes of one MPS daemon of ours, found by the pipe directory in their environment.

The directory is ours alone, so whoever has it there, and is one of NVIDIA's programs, is ours too:
no pid that was given to somebody else in the meantime is taken for one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

_PROGRAM: Final = b"nvidia-cuda-mps-"  # clients have the directory in their environment too
_LOOK_S: Final = 0.01  # between two looks


def of_pipe(pipe: Path) -> list[int]:
    """The pids of the daemon and servers of `pipe` that run."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _is(entry, pipe)]


def _is(pid: str, pipe: Path) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        if _PROGRAM not in Path("/proc", pid, "cmdline").read_bytes():
            return False
        variables = Path("/proc", pid, "environ").read_bytes().split(b"\0")  # of a zombie: none
    except OSError:  # it has just gone
        return False
    return f"CUDA_MPS_PIPE_DIRECTORY={pipe}".encode() in variables


def wait_gone(pipe: Path, timeout: timedelta) -> list[int]:
    """Waits until none of them runs; those that still do after `timeout`."""
    deadline_s = time.monotonic() + timeout.total_seconds()
    while (left := of_pipe(pipe)) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    return left


def signal_all(pipe: Path, number: int) -> None:
    """Sends a signal to each of them, and to nobody who has got a pid of theirs since."""
    for pid in of_pipe(pipe):
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if _is(str(pid), pipe):  # the handle is of the process that it is now
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)
