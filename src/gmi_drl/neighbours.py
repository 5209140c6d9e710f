"""Who else works on this machine: launches, tuners and searches of this user, told by a lock.

Of other programs only their load is known (`busy_cores`).

Whoever trains holds a shared record lock (fcntl) on one file in the cache, and the kernel tells who
holds it too. It is gone the moment its holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import platform
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

import psutil

from gmi_drl.selector.record import records_folder

_FLOCK: Final = "hhqqi4x"  # type, whence, start, length, pid: struct flock where off_t has 64 bits


class _Presence:
    """This process's lock. Record locks are the process's, and go when it closes any descriptor of
    the file: so there is one, for however many that work in it at once."""

    file: int | None = None
    users = 0


@contextmanager
def at_work() -> Iterator[None]:
    """Lets others know, while the block runs. Never waits, and never raises for want of a lock."""
    mine = _Presence
    if not mine.users:
        mine.file = _locked()
    mine.users += 1
    try:
        yield
    finally:
        mine.users -= 1
        if not mine.users and mine.file is not None:
            file, mine.file = mine.file, None
            os.close(file)


def other_at_work() -> str:
    """One of the other processes that work on this machine now, in words; "" if there is none.

    Those that keep another cache are not seen. Returns at once.
    """
    if _Presence.file is None:
        return ""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(_Presence.file, fcntl.F_GETLK, asked)
    except OSError:  # a file system without locks
        return ""
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    if kind == fcntl.F_UNLCK:
        return ""
    return f"process {pid}" if pid > 0 else "a process of another container"


def busy_cores(cores: Collection[int], seconds: float = 0.5) -> float:
    """How many of these cores are busy now, by whomever. Blocks for `seconds`."""
    each = psutil.cpu_percent(seconds, percpu=True)
    return sum(each[core] for core in cores if core < len(each)) / 100


def _locked() -> int | None:
    """The file, with the lock; None where none can be had."""
    try:
        path = records_folder() / f"{platform.node() or 'machine'}.running"
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, RuntimeError):  # no home, or none that can be written
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
