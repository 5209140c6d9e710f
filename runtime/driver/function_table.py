"""Keeps pickled functions, with those that were used last in memory.

All functions are in the control store, from which one that was dropped from memory is read again.
"""

from __future__ import annotations

import threading
from typing import Final

from gmi_drl.runtime.gcs.database import GcsError
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import FunctionRow

from .event_loop import EventLoop

KEPT_BYTES: Final = 16 << 20  # here, and in each process that runs them


class FunctionTable:
    """Holds pickled functions by their ids. Used by any thread."""

    def __init__(self, loop: EventLoop, gcs: Gcs) -> None:
        self._loop, self._gcs = loop, gcs
        self._lock = threading.Lock()
        self._used: dict[bytes, tuple[str, bytes]] = {}  # the least recently used first
        self._recorded: set[bytes] = set()
        self.nbytes = 0

    def add(self, id: bytes, name: str, body: bytes) -> None:
        if id in self._used:
            return
        with self._lock:
            self._keep(id, name, body)
            if id not in self._recorded:
                self._recorded.add(id)
                self._loop.post(self._gcs.put, FunctionRow(id, name, body))

    def get(self, id: bytes) -> tuple[str, bytes]:
        """Returns a function's name and pickle; GcsError when the store cannot be read."""
        with self._lock:
            function = self._used.pop(id, None)
            if function is not None:
                self._used[id] = function
                return function
            row = self._gcs.get(FunctionRow, id)
            if row is None:
                raise GcsError(f"function {id.hex()} is not in the control store")
            self._keep(*row)
            return row.name, row.body

    def _keep(self, id: bytes, name: str, body: bytes) -> None:
        if id in self._used:
            return
        self._used[id] = name, body
        self.nbytes += len(body)
        while self.nbytes > KEPT_BYTES and len(self._used) > 1 and not self._gcs.failure:
            oldest = next(iter(self._used))
            self.nbytes -= len(self._used.pop(oldest)[1])
