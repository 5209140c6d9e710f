"""Provides a queue that any number of tasks and actors put into and get from."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from gmi_drl.runtime.api.actors import RemoteClass
from gmi_drl.runtime.api.calls import get, kill, wait
from gmi_drl.runtime.api.options import ActorOptions, changed
from gmi_drl.runtime.api.refs import seconds

_AT_ONCE: Final = 1_000_000  # calls that wait in the queue's actor


class Empty(queue.Empty):
    """The queue had no item, or too few, or none in time."""


class Full(queue.Full):
    """The queue had no room, or not in time."""


class Queue:
    """First in, first out, kept by an actor with `actor_options`; it can be passed to calls.

    `maxsize` 0 has no bound. Items are lost with the actor, and an item that was being taken by a
    process that dies is lost.
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, Any] | None = None) -> None:
        chosen = changed(ActorOptions(), {"max_concurrency": _AT_ONCE, **(actor_options or {})})
        self.maxsize = maxsize
        self.actor = RemoteClass(_Items, chosen).remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Counts the items in it."""
        number: int = get(self.actor.size.remote())
        return number

    qsize = size

    def empty(self) -> bool:
        """Returns whether nothing is in it."""
        return self.size() == 0

    def full(self) -> bool:
        """Returns whether it has no room for one more."""
        return 0 < self.maxsize <= self.size()

    def put(self, item: Any, block: bool = True, timeout: timedelta | float | None = None) -> None:
        """Adds an item, and waits for room if `block`; Full if there is none in time."""
        _raise_if_full(get(self.actor.put.remote(item, _limit_s(block, timeout))))

    def get(self, block: bool = True, timeout: timedelta | float | None = None) -> Any:
        """Removes the oldest item, and waits for one if `block`; Empty if there is none in time."""
        return _raise_if_empty(get(self.actor.get.remote(_limit_s(block, timeout))))[0]

    async def put_async(
        self, item: Any, block: bool = True, timeout: timedelta | float | None = None
    ) -> None:
        """Does what `put` does, in async code."""
        _raise_if_full(await self.actor.put.remote(item, _limit_s(block, timeout)))

    async def get_async(self, block: bool = True, timeout: timedelta | float | None = None) -> Any:
        """Does what `get` does, in async code."""
        return _raise_if_empty(await self.actor.get.remote(_limit_s(block, timeout)))[0]

    def put_nowait(self, item: Any) -> None:
        """Adds an item; Full if there is no room."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Removes the oldest item; Empty if there is none."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Adds all of these, or none: Full if there is no room for all."""
        _raise_if_full(get(self.actor.put_all.remote(list(items))))

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Removes the oldest `num_items`, or none: Empty if there are fewer."""
        return list(_raise_if_empty(get(self.actor.get_all.remote(num_items))))

    def shutdown(self, force: bool = False, grace_period_s: float = 5.0) -> None:
        """Ends the queue; unless `force`, after the calls before this."""
        if not force:
            wait([self.actor.size.remote()], 1, grace_period_s)
        kill(self.actor, "its queue was shut down")


class _Items:
    """The actor of a queue. It returns False or None for errors, which would fill its log."""

    def __init__(self, maxsize: int) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def size(self) -> int:
        return self._items.qsize()

    async def put(self, item: Any, limit_s: float | None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._items.put(item)
                return True
        return False

    async def get(self, limit_s: float | None) -> tuple[Any] | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                return (await self._items.get(),)
        return None

    async def put_all(self, items: list[Any]) -> bool:
        if 0 < self._items.maxsize < self._items.qsize() + len(items):
            return False
        for item in items:
            self._items.put_nowait(item)
        return True

    async def get_all(self, number: int) -> list[Any] | None:
        if number > self._items.qsize():
            return None
        return [self._items.get_nowait() for _ in range(number)]


def _raise_if_full(there_was_room: bool) -> None:
    if not there_was_room:
        raise Full("the queue has no room. Get something from it, or wait longer.")


def _raise_if_empty(items: Sequence[Any] | None) -> Sequence[Any]:
    if items is None:
        raise Empty("the queue has not as many items. Put something into it, or wait longer.")
    return items


def _limit_s(block: bool, timeout: timedelta | float | None) -> float | None:
    limit_s = seconds(timeout)
    if limit_s is not None and limit_s < 0:
        raise ValueError(f"timeout={limit_s}; it must be zero or more, or None.")
    return limit_s if block else 0.0
