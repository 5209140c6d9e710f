"""Locks a file for all processes of one launch together; others can inspect the lock.

It is an open file description lock (fcntl), freed by the kernel when the last holder is gone;
copies of the descriptor in forked children count. Unlike flock it can pass from one process to
several without being free in between. OSError where the file system has no such locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi4x")  # type, whence, start, length, pid; off_t has 64 bits


def begin(path: Path) -> int | None:
    """Returns the descriptor of a lock that nobody held, which others may `join`; else None."""
    return _locked(os.open(path, os.O_RDWR | os.O_CLOEXEC), fcntl.F_WRLCK, fcntl.F_RDLCK)


def join(path: Path) -> int | None:
    """Returns the descriptor of a lock that others may hold too; None while somebody begins."""
    return _locked(os.open(path, os.O_RDONLY | os.O_CLOEXEC), fcntl.F_RDLCK)


def release(file: int) -> None:
    """Releases the lock, also for copies of the descriptor, and closes it."""
    with contextlib.suppress(OSError):
        _set(file, fcntl.F_UNLCK)
    os.close(file)


def is_held(path: Path) -> bool:
    """Returns whether anybody holds the lock now, without taking it."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, request)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(file)


def holders(path: Path) -> list[int]:
    """Returns the pids of the lock's holders, as far as this process may see them."""
    status = os.stat(path)
    pids = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if any(_holds(process, file, status) for file in os.listdir(process / "fd")):
                    pids.append(int(process.name))
    return sorted(pids)


def _holds(process: Path, file: str, status: os.stat_result) -> bool:
    """Returns whether a process has this file open as descriptor `file`, with a lock."""
    try:
        is_same = os.path.samestat(os.stat(process / "fd" / file), status)
        return is_same and "OFDLCK" in (process / "fdinfo" / file).read_text()
    except OSError:
        return False


def _locked(file: int, *kinds: int) -> int | None:
    """Takes locks of these kinds on the file, one after the other; closes it if one fails."""
    try:
        for kind in kinds:
            _set(file, kind)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError | PermissionError):
            return None
        raise
    return file


def _set(file: int, kind: int) -> None:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
