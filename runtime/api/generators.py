"""Gives the results of generators as they are yielded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from gmi_drl.runtime import ids
from gmi_drl.runtime.errors import ActorRuntimeError

from .refs import ObjectRef, Slot, arrival, get_value, received, running, unwant, wait_for


class ObjectRefGenerator:
    """Iterates over references to a generator's results as they are yielded.

    `next()` waits for the next one, and `async for` lets other coroutines run meanwhile. The last
    reference raises what the generator has raised.
    """

    def __init__(self, end: ObjectRef) -> None:
        self._end = end  # its value is the number of results
        self._index = 0  # of the last reference that was returned
        self._upcoming: ObjectRef | None = None
        self._failed = False  # and the reference to the error was returned
        self._is_shared = False  # others may read it, too

    @property
    def id(self) -> bytes:
        """Returns the id of its end, for `cancel`."""
        return self._end.id

    def __iter__(self) -> Iterator[ObjectRef]:
        return self

    def __next__(self) -> ObjectRef:
        if self._failed:
            raise StopIteration
        self._await_next()
        ref = self._next()
        try:
            if not ref.slot.done and self._index >= get_value(self._end):
                raise StopIteration
        except ActorRuntimeError:  # the last reference will raise the reason
            self._failed = True
            return self._end
        self._index, self._upcoming = self._index + 1, None
        if not self._is_shared:
            running().taken(ref.id, self.id)
        return ref

    def __aiter__(self) -> AsyncIterator[ObjectRef]:
        return self

    async def __anext__(self) -> ObjectRef:
        await arrival(self.awaited())
        await asyncio.to_thread(self._await_next)  # a caller that is cancelled here takes no result
        ref = next(self, None)
        if ref is None:
            raise StopAsyncIteration
        return ref

    def _await_next(self) -> None:
        """Returns when `next()` does not have to wait."""
        ref = self._next()
        if not ref.slot.done:
            wait_for([ref, self._end], 1, None)
        if not ref.slot.done:
            with contextlib.suppress(ActorRuntimeError):
                get_value(self._end)

    def awaited(self) -> list[Slot]:
        """Returns the slots of the next result and of the end; `next()` waits for either."""
        return [self._next().slot, self._end.slot]

    def _next(self) -> ObjectRef:
        if self._upcoming is None:
            id = ids.result(ids.producer(self._end.id), self._index + 1)
            self._upcoming = received(id, self._end.slot.call)
        return self._upcoming

    def __getstate__(self) -> dict[str, Any]:
        self._is_shared = True
        return self.__dict__

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._end.slot.call}, {self._index} given out)"


def wait_for_mixed(
    waited: Sequence[ObjectRef | ObjectRefGenerator], num_returns: int,
    timeout: timedelta | float | None,
) -> tuple[list[ObjectRef | ObjectRefGenerator], list[ObjectRef | ObjectRefGenerator]]:  # fmt: skip
    """Does what `wait_for` does, where some references are generators."""
    runtime = running()
    stand_ins: list[ObjectRef] = []
    watched: list[tuple[Slot, Callable[[], None]]] = []  # with callbacks for when they are ready
    for item in waited:
        if isinstance(item, ObjectRef):
            stand_ins.append(item)
            continue
        stand_ins.append(ObjectRef(Slot(b"", repr(item))))
        watched += [(slot, stand_ins[-1].slot.arrived) for slot in item.awaited()]
    for slot, arrived in watched:
        if not slot.watch(arrived):
            arrived()
    runtime.want([slot for slot, _ in watched if not slot.done], False)
    try:
        wait_for(stand_ins, num_returns, timeout)
    finally:
        for slot, arrived in watched:
            slot.unwatch(arrived)
        unwant([slot for slot, _ in watched])
    ready: list[ObjectRef | ObjectRefGenerator] = []
    pending: list[ObjectRef | ObjectRefGenerator] = []
    for item, stand_in in zip(waited, stand_ins, strict=True):
        (ready if stand_in.slot.done and len(ready) < num_returns else pending).append(item)
    return ready, pending
