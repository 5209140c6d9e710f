"""A private directory for one launcher's sockets and logs, and the sweeping of what dead ones left.

The directory is `<base>/gmi-drl-<pid>-<random>`, mode 0700, with `base` the user's
XDG_RUNTIME_DIR or /tmp (short: a socket's path may have 107 bytes). Its file `lock` is held with
flock by the launcher and by its fork server: a directory whose lock is free has no owner any more.
That holds across containers that share the file system, where pids mean nothing.
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


def create() -> tuple[Path, int]:
    """A new run directory and the descriptor that holds its lock. Keep the descriptor open."""
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base_directory()))
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path, lock


def remove(path: Path) -> None:
    """Removes a run directory with everything in it; a missing one is fine."""
    shutil.rmtree(path, ignore_errors=True)


def sweep() -> list[Path]:
    """Removes the run directories whose owners are gone, and returns them."""
    swept = []
    for path in base_directory().glob(f"{PREFIX}*-*"):
        with contextlib.suppress(OSError):
            if _abandoned(path):
                remove(path)
                swept.append(path)
    return swept


def _abandoned(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - status.st_mtime > _YOUNG_S
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def working_directory() -> str:
    """Where processes begin; the root, if this one's directory is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
