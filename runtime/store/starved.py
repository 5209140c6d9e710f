"""Requests for room in the object store that find none while others look at what is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from gmi_drl.runtime.errors import ObjectStoreFullError

PINNED_S: Final = 10.0  # how long a request waits for others to look away
_APART_S: Final = 1.0  # between two refusals: the first one's task may hold what the next wants


class Request:
    """Somebody wants room: for a value to be written, or for one to come back from disk."""

    __slots__ = ("again", "error", "id", "instead", "patient", "since_s", "then")

    def __init__(
        self,
        id: bytes,
        then: Callable[[Any], None],
        again: Callable[[Request], None],
        patient: bool = True,
        instead: Callable[[], Any] | None = None,
    ) -> None:
        self.id = id
        self.then = then  # called with where it is, or with an error
        self.again = again  # asks the store another time
        self.patient = patient  # it waits until others look away, for so long
        self.instead = instead  # where it can be else, if that was too long
        self.since_s = 0.0  # when the store said first that it has no room
        self.error: ObjectStoreFullError | None = None  # and why, the last time


class Starved:
    """Those that the store refused, in order. Used by the runtime's thread only."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._refused_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request, error: ObjectStoreFullError) -> None:
        """The store has refused it."""
        request.since_s = request.since_s or time.monotonic()
        request.error = error
        self._requests.append(request)

    def try_again(self) -> None:
        """Somebody has let go of memory."""
        requests, self._requests = self._requests, []
        for request in sorted(requests, key=lambda request: request.since_s):
            request.again(request)

    def late(self) -> Request | None:
        """The one that has waited longest, taken out, if that was too long."""
        now_s = time.monotonic()
        if not self._requests or now_s - self._refused_s < _APART_S:
            return None
        first = min(self._requests, key=lambda request: request.since_s)
        if now_s - first.since_s < PINNED_S:
            return None
        self._refused_s = now_s
        self._requests.remove(first)
        return first
