"""Keeps the functions that a process has used last."""

from __future__ import annotations

import threading
from typing import Any

from gmi_drl.runtime.driver.function_table import KEPT_BYTES


class Functions:
    """Holds functions, or references to them, by their ids. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[bytes, tuple[Any, int]] = {}  # the least recently used first
        self.nbytes = 0

    def get(self, id: bytes) -> Any:
        """Returns a function; None if it was not kept."""
        with self._lock:
            kept = self._used.pop(id, None)
            if kept is None:
                return None
            self._used[id] = kept
            return kept[0]

    def keep(self, id: bytes, function: Any, nbytes: int) -> None:
        """Keeps a function, whose pickle has so many bytes, and drops others if they are many."""
        with self._lock:
            if id in self._used:
                return
            self._used[id] = function, nbytes
            self.nbytes += nbytes
            while self.nbytes > KEPT_BYTES and len(self._used) > 1:
                self.nbytes -= self._used.pop(next(iter(self._used)))[1]
