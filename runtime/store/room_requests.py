"""Keeps the requests that the object store has no room for, as all its memory is in use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gmi_drl.runtime.errors import ObjectStoreFullError

PINNED_S: Final = 10.0  # how long a request waits for others to unpin objects
_REFUSAL_INTERVAL_S: Final = 1.0  # as the first one's task may hold what the next one wants


@dataclass(eq=False, slots=True)
class RoomRequest:
    """Asks for room: for a value to be written, or for one to come back from disk."""

    id: bytes
    then: Callable[[Any], None]  # called with the block, or with an error
    retry: Callable[[RoomRequest], None]  # asks the store again
    patient: bool = True  # it waits until others unpin, for PINNED_S
    fallback: Callable[[], Any] | None = None  # gives another place after too long a wait
    since_s: float = 0.0  # when the store first refused it
    error: ObjectStoreFullError | None = None  # of the last refusal


class PendingRoomRequests:
    """Holds the requests that the store refused, in order. Used by the runtime's thread only."""

    def __init__(self) -> None:
        self._requests: list[RoomRequest] = []
        self._refused_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request: RoomRequest, error: ObjectStoreFullError) -> None:
        """Adds a request that the store has refused."""
        request.since_s = request.since_s or time.monotonic()
        request.error = error
        self._requests.append(request)

    def retry(self) -> None:
        """Asks the store again for all of them, as somebody has let go of memory."""
        requests, self._requests = self._requests, []
        for request in sorted(requests, key=lambda request: request.since_s):
            request.retry(request)

    def take_late(self) -> RoomRequest | None:
        """Removes and returns the oldest request, if it has waited too long."""
        now_s = time.monotonic()
        if not self._requests or now_s - self._refused_s < _REFUSAL_INTERVAL_S:
            return None
        oldest = min(self._requests, key=lambda request: request.since_s)
        if now_s - oldest.since_s < PINNED_S:
            return None
        self._refused_s = now_s
        self._requests.remove(oldest)
        return oldest
