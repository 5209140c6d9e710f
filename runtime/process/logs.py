"""Reads the ends of processes' logs for the texts of errors, and bounds the sizes of logs.

A log that is too long is copied over `<log>.1`, and begins anew. It remains the same file, as
processes, their descendants and native code have it open for appending.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

from .child_setup import STACK_SIGNAL

LOG_BYTES: Final = 16 << 20  # a longer log begins anew, so that the disk has at most twice that
PRIVATE_LOG_BYTES: Final = 1 << 20  # of a log in a run directory, which is removed with its process
LOOK_S: Final = 2.0  # between two checks of their sizes
_TAIL_LINES: Final = 40
_TAIL_BYTES: Final = 1 << 16
_COPY_ROUNDS: Final = 8  # rounds of copying what was written meanwhile
_STACKS_LOOK_S: Final = 0.05
_QUIET_POLLS: Final = 4  # a log that did not grow for so many checks is complete


def log_tail(path: str | Path) -> str:
    """Returns the last 40 lines of a log; empty when it cannot be read."""
    text = _end(path)
    if text.count("\n") < _TAIL_LINES:  # it may just have begun anew
        text = _end(f"{path}.1") + text
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _end(path: str | Path) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def rotate(path: str, most_bytes: int) -> None:
    """Moves the last `most_bytes` of a longer log to `<path>.1` and begins it anew.

    A line written at that moment may be lost. On a full disk the log stays as it is.
    """
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(log)
            if stat.S_ISREG(status.st_mode) and status.st_size > most_bytes:
                _copy_end(log, f"{path}.1", most_bytes)
                os.ftruncate(log, 0)
        finally:
            os.close(log)


def _copy_end(log: int, path: str, most_bytes: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        offset = max(0, os.fstat(log).st_size - most_bytes)
        for _ in range(_COPY_ROUNDS):
            sent_bytes = os.sendfile(copy, log, offset, most_bytes)
            if not sent_bytes:
                break
            offset += sent_bytes
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(copy)


def write_stacks(pid: int, log: str, timeout: timedelta) -> bool:
    """Has a process write the Python stacks of its threads to its log; False if not in time.

    It works for a process that never releases the GIL, and not for a stopped one.
    """
    deadline_s = time.monotonic() + timeout.total_seconds()
    old_size = size = _size(log)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACK_SIGNAL)
        quiet_looks = 0
        while time.monotonic() < deadline_s and (size == old_size or quiet_looks < _QUIET_POLLS):
            time.sleep(_STACKS_LOOK_S)
            new_size = _size(log)
            quiet_looks = quiet_looks + 1 if new_size == size else 0
            size = new_size
    return size > old_size


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
