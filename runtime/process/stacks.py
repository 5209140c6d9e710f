"""Where a process that does not answer stands: the Python stacks of its threads, in its log."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final

from .child import STACK_SIGNAL

_LOOK_S: Final = 0.05
_QUIET_LOOKS: Final = 4  # a log that has not grown for so many looks has all of it


def write_stacks(pid: int, log: str, timeout: timedelta) -> bool:
    """Has process `pid` write its stacks to its log, which is `log`; whether it has by `timeout`.

    Works in a process that holds its interpreter for ever, and in none that is stopped.
    """
    deadline_s = time.monotonic() + timeout.total_seconds()
    before = size = _size(log)
    with suppress(ProcessLookupError):
        os.kill(pid, STACK_SIGNAL)
        quiet = 0
        while time.monotonic() < deadline_s and (size == before or quiet < _QUIET_LOOKS):
            time.sleep(_LOOK_S)
            now = _size(log)
            quiet = quiet + 1 if now == size else 0
            size = now
    return size > before


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
