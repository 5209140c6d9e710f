"""Opens files of folders that strangers may have written, and names folders without their path.

Nothing is opened that leads out of its folder, and no pipe, which would never end.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_MOST_BYTES: Final = 4 * 2**20  # of a file that is read whole


class OutsideFolder(OSError):
    """A file is not shown: it leads out of its folder, or is no plain file."""


@contextmanager
def open_inside(folder: Path, *names: str) -> Iterator[BinaryIO]:
    """Opens a plain file below `folder`; OSError if it is none, or lies elsewhere by a link.

    What has been opened is looked at, and not the path: a link that is changed meanwhile leads
    nowhere.
    """
    root, path = os.path.realpath(folder), os.path.join(folder, *names)
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OutsideFolder(f"{path} is no plain file, so it is not shown.")
        target = os.readlink(f"/proc/self/fd/{file}")
        if os.path.commonpath([root, target]) != root:
            raise OutsideFolder(f"{path} is a link that leads out of {folder}: it is not shown.")
        with open(file, "rb", closefd=False) as opened:
            yield opened
    finally:
        os.close(file)


def read_inside(folder: Path, *names: str) -> bytes:
    """Reads such a file whole; OSError if it is larger than any of ours."""
    with open_inside(folder, *names) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OutsideFolder(f"{folder.joinpath(*names)} is larger than {_MOST_BYTES:,} bytes.")
    return content


def signature(folder: Path, *names: str) -> tuple[int, int, int] | None:
    """Returns what changes when a file does: its inode, size and time; None if there is none."""
    try:
        status = os.stat(os.path.join(folder, *names))
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def id_of(path: Path) -> str:
    """Names a folder: of equal paths the same id, from which no path can be made."""
    return hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:16]
