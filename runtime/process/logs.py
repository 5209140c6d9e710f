"""Logs of processes: the end of one for an error's text, and a bound for what prints for weeks.

A log that is too long goes to `<log>.1`, in place of what was there, and begins anew. It remains
the same file: processes, and what they have started, have it open for appending, native code too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

LOG_BYTES: Final = 16 << 20  # then it begins anew, so that twice as much is on the disk
PRIVATE_LOG_BYTES: Final = 1 << 20  # of one in a run directory, which goes with its process
LOOK_S: Final = 2.0  # between two looks at their sizes
LOG_TAIL_LINES: Final = 40
_TAIL_BYTES: Final = 1 << 16
_CATCH_UPS: Final = 8  # with what is written meanwhile


def log_tail(path: str | Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last `lines` lines of a log; empty when it cannot be read."""
    text = _end(path)
    if text.count("\n") < lines:  # it may have begun anew just now
        text = _end(f"{path}.1") + text
    return "\n".join(text.splitlines()[-lines:])


def _end(path: str | Path) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def bound(path: str, most_bytes: int) -> bool:
    """Lets a log begin anew that has more than so many bytes; whether it did.

    Its last `most_bytes` are then in `<path>.1`. A line written at the moment of the cut may be
    lost. Where there is no room for that, the log stays as it is.
    """
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(log)
            if stat.S_ISREG(status.st_mode) and status.st_size > most_bytes:
                _copy_end(log, f"{path}.1", most_bytes)
                os.ftruncate(log, 0)
                return True
        finally:
            os.close(log)
    return False


def _copy_end(log: int, path: str, most_bytes: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        done = max(0, os.fstat(log).st_size - most_bytes)
        for _ in range(_CATCH_UPS):
            sent = os.sendfile(copy, log, done, most_bytes)
            if not sent:
                break
            done += sent
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(copy)
