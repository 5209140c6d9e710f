"""Tells whether a process that wrote its id into shared memory still runs."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int, started: int) -> bool:
    """Tells whether the process `pid` that began at `started` can still write; not a later one."""
    return start_ticks(pid) == started


def start_ticks(pid: int) -> int | None:
    """Returns when a process began, in ticks since boot; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1:
            return None  # not collected yet, but no thread of it runs
    except OSError:
        return None
    return int(fields[19])
