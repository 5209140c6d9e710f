"""Says which process writes some words of shared memory, and whether it still runs.

Its id is in one word, and when it began in the next one.
"""

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


def claim(words: memoryview, at: int) -> int:
    """Makes this process the one of the words from `at` on.

    Returns the id of the process that was it before and lives, which stays it; 0 if none does. It
    may be killed here at any point.
    """
    pid = words[at]
    if pid and is_alive(pid, words[at + 1]):
        return pid
    words[at + 1] = start_ticks(os.getpid()) or 0
    words[at] = os.getpid()
    return 0


def peer_text(words: memoryview, at: int, who: str) -> str:
    """Says what is known of the process of the words from `at` on, for an error."""
    process = words[at]
    if not process:
        return f"{who} has not opened its end yet; is it running?"
    if is_alive(process, words[at + 1]):
        return f"its process {process} is running."
    return f"its process {process} has ended and was not replaced."
