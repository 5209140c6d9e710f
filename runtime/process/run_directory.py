"""Makes a private directory for one launcher's sockets and logs, and sweeps what dead ones left.

The directory is `<base>/gmi-drl-<pid>-<8 characters>`, mode 0700, with `base` the user's
XDG_RUNTIME_DIR or /tmp (short: a socket's path may have 107 bytes). The launcher and its fork
server hold a lock (flock) on it: a directory whose lock is free has no owner any more. That works
across containers that share the file system, where pids mean nothing; and programs that clean up
/tmp skip locked directories. Directories of another kind are made in the same way.

Only what was made here is ever removed: a directory of this user, of mode 0700, with exactly such a
name and the file `MARKER` in it, or empty, as its maker died before it could write that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gmi_drl.runtime.errors import ActorRuntimeError

from . import descendants

MARKER: Final = ".made-by-gmi-drl"
_TEXT: Final = b"gmi-drl removes this directory when the process that made it is gone.\n"
_RANDOM: Final = "[a-z0-9_]{8}"  # what tempfile puts after a prefix
_TMP: Final = Path("/tmp")
_LONGEST_BASE: Final = 60  # leaves room for the name and a socket's file name in 107 bytes
_ROOM_BYTES: Final = 1 << 20  # for logs and the control store's file


def bases() -> tuple[Path, ...]:
    """Returns where run directories may go: XDG_RUNTIME_DIR if it is ours and short, then /tmp."""
    configured = os.environ.get("XDG_RUNTIME_DIR", "")
    if configured and len(configured) <= _LONGEST_BASE:
        with contextlib.suppress(OSError):
            status = os.stat(configured)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                return Path(configured), _TMP
    return (_TMP,)


def create(prefix: str = "", where: Sequence[Path] = ()) -> tuple[Path, int]:
    """Makes a directory; the descriptor that comes with it holds its lock as long as it is open.

    `prefix` is what the name begins with (default: a run directory's). It is made in the first of
    `where` (default: `bases`) that can be written and has room; ActorRuntimeError if none has.
    """
    prefix, where = prefix or f"gmi-drl-{os.getpid()}-", where or bases()
    faults = []
    for base in where:
        try:
            return _create(prefix, base)
        except OSError as error:
            faults.append(f"{base}: {error.strerror}")
    raise ActorRuntimeError(
        f"no private directory can be made ({'; '.join(faults)}): a launcher needs one that it may "
        f"write to, with {_ROOM_BYTES >> 20} MiB. Free some space in {where[-1]}"
        + (", or let XDG_RUNTIME_DIR name another directory of yours." if where == bases() else ".")
    )


def _create(prefix: str, base: Path) -> tuple[Path, int]:
    status = os.statvfs(base)
    if status.f_bavail * status.f_frsize < _ROOM_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        lock = None
        with contextlib.suppress(FileNotFoundError):
            lock = _locked(path)
        if lock is None:  # it was swept before it was locked: make another one
            continue
        try:
            (path / MARKER).write_bytes(_TEXT)
        except BaseException:
            remove(path)
            os.close(lock)
            raise
        return path, lock


def remove(path: Path) -> None:
    """Removes a directory that `create` made, with everything in it; a missing one is fine.

    The marker goes last, so that the next sweep goes on with what is interrupted.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MARKER:
                with contextlib.suppress(OSError):
                    os.unlink(entry)
        if os.listdir(path) == [MARKER]:
            os.unlink(path / MARKER)
        os.rmdir(path)


def sweep() -> None:
    """Removes run directories without owner, and ends what runs there first."""
    for base in bases():
        for path in named(r"gmi-drl-\d+-", base):
            with contextlib.suppress(OSError):
                lock = take_over(path)
                if lock is None:
                    continue
                try:
                    descendants.kill_all(path)
                    remove(path)
                finally:
                    os.close(lock)


def named(prefix: str, base: Path) -> Iterator[Path]:
    """Yields paths with names as `create` makes them; `prefix` is a regular expression."""
    name = re.compile(prefix + _RANDOM)
    with contextlib.suppress(OSError):
        yield from (base / entry for entry in sorted(os.listdir(base)) if name.fullmatch(entry))


def take_over(path: Path) -> int | None:
    """Locks a directory whose owner is gone; None when it has one, or `create` did not make it.

    Close the descriptor when the directory is removed.
    """
    status = path.lstat()
    private = stat.S_ISDIR(status.st_mode) and status.st_mode & 0o777 == 0o700
    if not private or status.st_uid != os.getuid():
        return None
    lock = _locked(path)
    if lock is None or (path / MARKER).is_file():
        return lock
    with contextlib.suppress(OSError):
        path.rmdir()  # if it is empty
    os.close(lock)
    return None


def _locked(path: Path) -> int | None:
    """Returns the descriptor that holds the lock of a directory; None if somebody else holds it."""
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
    """Returns this process's working directory, or the root if that is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
