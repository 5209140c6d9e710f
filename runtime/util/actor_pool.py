"""Distributes work among a fixed set of actors."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from gmi_drl.runtime.api.actors import ActorHandle
from gmi_drl.runtime.api.calls import get, wait
from gmi_drl.runtime.api.refs import ObjectRef, seconds
from gmi_drl.runtime.errors import GetTimeoutError

Call = Callable[[ActorHandle, Any], ObjectRef]


class ActorPool:
    """Passes values to idle actors; gives results in the order of the values, or as they come.

    `fn(actor, value)` calls a method and returns the reference. An actor whose result is ready gets
    the next value while somebody waits for a result, or submits more.
    """

    def __init__(self, actors: Iterable[ActorHandle]) -> None:
        self._idle = list(actors)
        self._busy: dict[ObjectRef, ActorHandle] = {}
        self._waiting: collections.deque[tuple[int, Call, Any]] = collections.deque()
        self._results: dict[int, ObjectRef] = {}  # by index of the value; not returned yet
        self._places = itertools.count()

    def map(self, fn: Call, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the results of all values in their order; drops values submitted before."""
        self._submit_all(fn, values)
        return self._drain(self.get_next)

    def map_unordered(self, fn: Call, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the results of all values as they come; drops values submitted before."""
        self._submit_all(fn, values)
        return self._drain(self.get_next_unordered)

    def submit(self, fn: Call, value: Any) -> None:
        """Submits a value to the next idle actor."""
        self._waiting.append((next(self._places), fn, value))
        self._settle(0.0)

    def get_next(
        self, timeout: timedelta | float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """Returns the next result in the order of `submit`, or raises what the call raised.

        StopIteration if none is pending; GetTimeoutError if it is late, which may drop it.
        """
        return self._get(lambda places: places[:1], timeout, ignore_if_timedout)

    def get_next_unordered(
        self, timeout: timedelta | float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """Returns the first result that is ready; else as `get_next`."""
        return self._get(lambda places: places, timeout, ignore_if_timedout)

    def has_next(self) -> bool:
        """Returns whether results are pending."""
        return bool(self._results or self._waiting)

    def has_free(self) -> bool:
        """Returns whether an actor is idle, and no value waits."""
        self._settle(0.0)
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> ActorHandle | None:
        """Removes and returns an idle actor; None if all are busy."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: ActorHandle) -> None:
        """Adds an actor."""
        if actor in self._idle or actor in self._busy.values():
            raise ValueError(f"{actor!r} is in this pool already. Give another one.")
        self._idle.append(actor)
        self._settle(0.0)

    def _submit_all(self, fn: Call, values: Iterable[Any]) -> None:
        self._waiting.clear()
        self._results.clear()
        for value in values:
            self.submit(fn, value)

    def _drain(self, get_next: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield get_next()

    def _get(
        self, choose: Callable[[list[int]], list[int]], timeout: Any, ignore_if_timedout: bool
    ) -> Any:
        if not self.has_next():
            raise StopIteration("there are no results to come")
        limit_s = seconds(timeout)
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            keys = choose(list(self._results))
            place = next((key for key in keys if self._results[key] not in self._busy), None)
            if place is not None:
                return get(self._results.pop(place))
            if not self._busy:
                raise ValueError("the pool has no actor for what was submitted. push() one.")
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not self._settle(left_s):
                break
        if ignore_if_timedout and keys:
            del self._results[keys[0]]
        raise GetTimeoutError(
            f"get_next timed out after {limit_s:g} s: no result that it may give is there. Give it "
            "more time."
        )

    def _settle(self, timeout: float | None) -> bool:
        """Waits for an actor to be idle, and passes waiting values; False if none was in time."""
        busy = list(self._busy)
        done = wait(busy, 1, timeout)[0] if busy and timeout != 0.0 else []
        if busy:
            done = wait(busy, len(busy), 0.0)[0]
        for ref in done:
            self._idle.append(self._busy.pop(ref))
        while self._waiting and self._idle:
            place, fn, value = self._waiting.popleft()
            ref = fn(self._idle[0], value)  # if that raises, the actor stays idle
            self._busy[ref] = self._idle.pop(0)
            self._results[place] = ref
        return bool(done)
