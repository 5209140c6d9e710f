"""Merges the control stores of hosts into that of their run.

The launcher on a host keeps its own in the run's folder, `hosts/<epoch>-<host>.sqlite`: a file for
each start of GMIs, so that no host ever writes to one that another one had. When all have ended,
and when the run is gone on with, they are copied into gcs.sqlite and removed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gmi_drl import runtime

_FOLDER: Final = "hosts"


def store_of_host(folder: Path, epoch: int, host: int) -> Path:
    """Returns where the launcher on a host keeps what it records; makes the folder."""
    (folder / _FOLDER).mkdir(exist_ok=True)
    return folder / _FOLDER / f"{epoch}-{host}.sqlite"


@contextmanager
def merged_stores(folder: Path) -> Iterator[None]:
    """Merges what hosts have left in a run's folder, at the beginning and at the end."""
    _merge(folder)
    try:
        yield
    finally:
        _merge(folder)


def _merge(folder: Path) -> None:
    """Merges all stores that can be read, the oldest first; the others stay, and are warned of."""
    names = {
        path: re.fullmatch(r"(\d+)-(\d+)", path.stem)
        for path in (folder / _FOLDER).glob("*.sqlite")
    }
    stores = sorted((int(name[1]), int(name[2]), path) for path, name in names.items() if name)
    for _, host, path in stores:
        try:
            runtime.merge_gcs(path, f"host {host}: ")
        except runtime.GcsError as error:
            warnings.warn(f"{folder}: what a host has recorded is not in gcs.sqlite ({error})",
                          stacklevel=4)  # fmt: skip
    with suppress(OSError):
        (folder / _FOLDER).rmdir()
