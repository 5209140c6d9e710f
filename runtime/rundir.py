"""A private directory for one launcher's sockets and logs, and the sweeping of what dead ones left.

The directory is `<base>/gmi-drl-<pid>-<random>`, mode 0700, with `base` the user's
XDG_RUNTIME_DIR or /tmp (short: a socket's path may have 107 bytes). Its file `lock` is held with
flock by the launcher and by its fork server: a directory whose lock is free has no owner any more.
That holds across containers that share the file system, where pids mean nothing. Directories with
another prefix, for what else must outlive its launcher, are made and taken over in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

PREFIX = "gmi-drl-"
_LOCK = "lock"
_LONGEST_BASE = 60  # leaves room for the name and a socket's file name in 107 bytes
_YOUNG_S = 60.0  # a directory without a lock may be about to get one


def base_directory() -> Path:
    """Where run directories go: XDG_RUNTIME_DIR if it is ours and short, else /tmp."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and len(given) <= _LONGEST_BASE:
        try:
            status = os.stat(given)
        except OSError:
            return Path("/tmp")
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            return Path(given)
    return Path("/tmp")


def create(prefix: str = "") -> tuple[Path, int]:
    """A new directory and the descriptor that holds its lock. Keep the descriptor open.

    `prefix` is what the name begins with (default: a run directory's).
    """
    prefix = prefix or f"{PREFIX}{os.getpid()}-"
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=base_directory()))
    new = path / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new.rename(path / _LOCK)  # whoever sees it finds it held
    return path, lock


def remove(path: Path) -> None:
    """Removes a run directory with everything in it; a missing one is fine."""
    shutil.rmtree(path, ignore_errors=True)


def sweep() -> list[Path]:
    """Removes the run directories whose owners are gone, and returns them."""
    swept = []
    for path in base_directory().glob(f"{PREFIX}*-*"):
        with contextlib.suppress(OSError):
            lock = take_over(path)
            if lock is not None:
                remove(path)
                os.close(lock)
                swept.append(path)
    return swept


def take_over(path: Path) -> int | None:
    """The descriptor of the lock of a directory whose owner is gone, held from now on.

    None when it has an owner, may be about to get one, or is another user's; then it is not ours to
    touch. Close the descriptor when the directory is removed.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return None
    # Without a lock it was left while it was made.
    old = 0 if time.time() - status.st_mtime <= _YOUNG_S else os.O_CREAT
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | old, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    if not os.fstat(lock).st_nlink:  # somebody else took it over and removed it
        os.close(lock)
        return None
    return lock


def working_directory() -> str:
    """Where processes begin; the root, if this one's directory is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
