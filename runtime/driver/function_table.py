"""Keeps pickled functions, with those that were used last in memory.

All functions are in the control store, from which one that was dropped from memory is read again.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from gmi_drl.runtime.gcs.database import GcsError
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import FunctionRow

from .event_loop import EventLoop

KEPT_BYTES: Final = 16 << 20  # here, and in each process that runs them


class RecentFunctions:
    """Holds the functions that were used last, or what stands for them. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[bytes, tuple[Any, int]] = {}  # the least recently used first
        self.nbytes = 0

    def __contains__(self, id: bytes) -> bool:
        return id in self._used

    def get(self, id: bytes) -> Any:
        """Returns a function; None if it was not kept."""
        with self._lock:
            kept = self._used.pop(id, None)
            if kept is None:
                return None
            self._used[id] = kept
            return kept[0]

    def keep(self, id: bytes, function: Any, nbytes: int, may_drop: bool = True) -> None:
        """Keeps a function, whose pickle has so many bytes, and drops others if they are many."""
        with self._lock:
            if id in self._used:
                return
            self._used[id] = function, nbytes
            self.nbytes += nbytes
            while may_drop and self.nbytes > KEPT_BYTES and len(self._used) > 1:
                self.nbytes -= self._used.pop(next(iter(self._used)))[1]


class FunctionTable:
    """Holds pickled functions by their ids. Used by any thread."""

    def __init__(self, loop: EventLoop, gcs: Gcs) -> None:
        self._loop, self._gcs = loop, gcs
        self.recent = RecentFunctions()
        self._recorded: set[bytes] = set()

    def add(self, id: bytes, name: str, body: bytes) -> None:
        if id in self.recent:
            return
        self._keep(id, name, body)
        if id not in self._recorded:
            self._recorded.add(id)
            self._loop.post(self._gcs.put, FunctionRow(id, name, body))

    def get(self, id: bytes) -> tuple[str, bytes]:
        """Returns a function's name and pickle; GcsError when the store cannot be read."""
        function: tuple[str, bytes] | None = self.recent.get(id)
        if function is None:
            row = self._gcs.get(FunctionRow, id)
            if row is None:
                raise GcsError(f"function {id.hex()} is not in the control store")
            self._keep(*row)
            function = row.name, row.body
        return function

    def _keep(self, id: bytes, name: str, body: bytes) -> None:
        # While the control store fails, one that is dropped could not be read again.
        self.recent.keep(id, (name, body), len(body), may_drop=not self._gcs.failure)
