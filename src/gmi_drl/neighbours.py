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
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gmi_drl.gmi import usage
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
    """How many of these cores others than this process and its children keep busy.

    Blocks for `seconds`.
    """
    mine_s, all_s = usage.cpu_s(usage.with_children([os.getpid()])), _busy_s(cores)
    time.sleep(seconds)
    all_s = _busy_s(cores) - all_s
    mine_s = usage.cpu_s(usage.with_children([os.getpid()])) - mine_s
    return max(0.0, all_s - mine_s) / seconds


def _busy_s(cores: Collection[int]) -> float:
    """Seconds that these cores have worked since the machine's start."""
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _, _, irq, softirq = map(int, values[:7])
            ticks += user + nice + system + irq + softirq
    return ticks / os.sysconf("SC_CLK_TCK")


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
