"""Asks a run for a checkpoint while it trains: by a file in its folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE: Final = "checkpoint_requested"


def is_requested(run: Path) -> bool:
    """Says whether somebody has asked for a checkpoint that was not begun yet."""
    return (run / FILE).is_file()


def make_request(run: Path) -> None:
    """Asks for a checkpoint at the end of the iteration; OSError if it cannot be asked for."""
    folder = os.open(run, os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # of a file that is there nothing is opened: it may be a link
        with suppress(FileExistsError):
            os.close(os.open(FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=folder))
    finally:
        os.close(folder)


def take_request(run: Path) -> None:
    """Notes that the checkpoint is begun: a request from here on is for another one."""
    with suppress(OSError):
        os.unlink(run / FILE)
