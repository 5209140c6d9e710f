"""A private directory for one launcher's sockets and logs, and the sweeping of what dead ones left.

The directory is `<base>/gmi-drl-<pid>-<random>`, mode 0700, with `base` the user's
XDG_RUNTIME_DIR or /tmp (short: a socket's path may have 107 bytes). The launcher and its fork
server hold a lock (flock) on it: a directory whose lock is free has no owner any more. That holds
across containers that share the file system, where pids mean nothing; and what tidies up in /tmp
passes over directories that are locked. Directories with another prefix, for what else must outlive
its launcher, are made and taken over in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from . import descendants

PREFIX = "gmi-drl-"
_LONGEST_BASE = 60  # leaves room for the name and a socket's file name in 107 bytes


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


def create(prefix: str = "", base: Path | None = None) -> tuple[Path, int]:
    """A new directory and the descriptor that holds its lock. Keep the descriptor open.

    `prefix` is what the name begins with (default: a run directory's); `base` is where it is made.
    """
    prefix = prefix or f"{PREFIX}{os.getpid()}-"
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=base or base_directory()))
        with contextlib.suppress(FileNotFoundError):
            lock = _locked(path)
            if lock is not None:
                return path, lock
        # Somebody swept it before it was locked: the next one is as new.


def remove(path: Path) -> None:
    """Removes a run directory with everything in it; a missing one is fine."""
    shutil.rmtree(path, ignore_errors=True)


def sweep() -> list[Path]:
    """Removes the run directories whose owners are gone, and returns them.

    What still runs of what was started there is ended first.
    """
    swept = []
    for path in base_directory().glob(f"{PREFIX}*-*"):
        with contextlib.suppress(OSError):
            lock = take_over(path)
            if lock is not None:
                descendants.kill_all(path)
                remove(path)
                os.close(lock)
                swept.append(path)
    return swept


def take_over(path: Path) -> int | None:
    """The descriptor of the lock of a directory whose owner is gone, held from now on.

    None when it has an owner, or is another user's; then it is not ours to touch. Close the
    descriptor when the directory is removed.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return None
    return _locked(path)


def _locked(path: Path) -> int | None:
    """The descriptor that holds the lock of a directory; None if somebody else holds it."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(lock)):  # else somebody has removed it
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def working_directory() -> str:
    """Where processes begin; the root, if this one's directory is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
