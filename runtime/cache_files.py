"""Keeps files between runs in $XDG_CACHE_HOME/gmi-drl, and locks them.

A lock is the kernel's (flock), which frees it at once however its holder dies. The file names the
holder, for people, and means nothing without the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Final

_POLL_S: Final = 0.05
_LONGEST_NAME: Final = 500  # bytes of a lock's file that are read


@dataclass(frozen=True)
class FileLock:
    """Tells whether a lock is `held`; else `holder` names who has it, if that is known."""

    held: bool
    holder: str = ""


def cache_folder() -> Path:
    """Returns the folder: in $XDG_CACHE_HOME, else in ~/.cache, or for temporary files."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"gmi-drl-{os.getuid()}"
    return base / "gmi-drl"


def replace_file(
    path: Path, content: str | bytes | memoryview | Callable[[IO[bytes]], object]
) -> None:
    """Writes a file whole: readers see the old or the new one, and on OSError the old one stays.

    `content` may be a function that writes it into the file that it is given.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


@contextlib.contextmanager
def locked(
    path: Path,
    timeout: timedelta,
    name: str = "",
    on_wait: Callable[[str], None] = lambda holder: None,
) -> Iterator[FileLock]:
    """Holds the lock of the file `path` while the block runs, if it can be had by `timeout`.

    `on_wait` is called once with another holder's name; `name` is this one's, for others.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a cache that cannot be written keeps nothing, and needs no lock
        yield FileLock(False)
        return
    try:
        outcome = _take(lock, time.monotonic() + timeout.total_seconds(), on_wait)
        if outcome.held:
            with contextlib.suppress(OSError):  # on a full disk the lock is held all the same
                os.ftruncate(lock, 0)
                os.pwrite(lock, name.encode(), 0)
        yield outcome
    finally:
        os.close(lock)


def _take(lock: int, deadline_s: float, on_wait: Callable[[str], None]) -> FileLock:
    reported = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(lock)
            if time.monotonic() >= deadline_s:
                return FileLock(False, holder)
            if not reported:
                on_wait(holder)
                reported = True
            time.sleep(_POLL_S)  # flock has no deadline of its own
        except OSError:  # a file system without locks
            return FileLock(False)
        else:
            return FileLock(True)


def _holder(lock: int) -> str:
    try:
        text = os.pread(lock, _LONGEST_NAME, 0).decode(errors="replace").strip()
    except OSError:
        text = ""
    return text or "another process"
