"""Holds the objects and actors on Ray to which a process has references.

References and handles keep their ids; beside each id there is Ray's own reference or handle. These
travel beside every packed value, so that Ray counts them on all hosts.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray

from gmi_drl.runtime import ids
from gmi_drl.runtime.api.refs import HERE, Slot
from gmi_drl.runtime.driver.task import TaskSpec
from gmi_drl.runtime.errors import GetTimeoutError, NotOnThisEngine, NotRunningError
from gmi_drl.runtime.wire import packing

from . import failures, interrupts
from .calls import Raised, part_of, to_value
from .keeper import KeeperClient, Value

_FETCH_S: Final = 30.0  # beyond the deadline, for a value that is there, on another host
# Ray 2.60 lost one in seven cancellations that came within the first millisecond of a task.
_SUBMISSION_S: Final = 0.05


@dataclass(slots=True, eq=False)
class Entry:
    """Holds what this process has of one object or actor."""

    slot: Slot
    thing: Any = None  # Ray's reference or handle; an exception in place of one
    actor: str = ""  # Ray's id of the actor whose method gives it
    count: int = 0  # references to it
    submitted_s: float = 0.0  # when its call was, if it was from here


class GeneratorStream:
    """Ray's generator of one call; its results are numbered from 1, as they are taken."""

    def __init__(self, task: bytes, call: str, actor: str, generator: Any) -> None:
        self.task, self.call, self.actor, self.generator = task, call, actor, generator
        self.taken = 0
        self.ended = False
        self.lock = threading.RLock()

    @property
    def end(self) -> bytes:
        """Returns the id of its end, whose value is the number of results."""
        return ids.result(self.task)

    def items(self) -> list[bytes]:
        """Returns the ids of the results taken so far."""
        return [ids.result(self.task, number) for number in range(1, self.taken + 1)]

    def next(self) -> Any:
        """Returns Ray's reference of the next result, which is ready; None at the end.

        The last one raises the generator's exception, if there is one.
        """
        try:
            reference = next(self.generator)
        except StopIteration:
            self.ended = True
            return None
        self.taken += 1
        return reference


class RayObjects:
    """Holds them by their ids; its methods may be called from any thread."""

    def __init__(self, keeper: KeeperClient) -> None:
        self._keeper = keeper
        self._lock = threading.RLock()  # a collected reference may be released while it is held
        self._streams: dict[bytes, GeneratorStream] = {}  # by the id of the generator's call
        self._local = threading.local()
        self.entries: dict[bytes, Entry] = {}

    def note(self, id: bytes, change: int, soon: bool = True) -> None:
        with self._lock:
            entry = self.entries.get(id)
            if entry is None:
                return
            entry.count += change
            if entry.count <= 0:
                del self.entries[id]
                stream = self._streams.get(ids.producer(id))
                if stream is not None and id == stream.end:
                    del self._streams[stream.task]
                    for item in stream.items():  # drop those without references
                        if item in self.entries and not self.entries[item].count:
                            del self.entries[item]

    def slot(self, id: bytes, call: str) -> Slot:
        """Returns the slot of an id; it may be that of a generator's next result."""
        return self.hold(id, call, None, "", 0).slot

    def hold(self, id: bytes, call: str, thing: Any, actor: str, count: int) -> Entry:
        """Notes what there is of an id, unless that is known, and counts references to it."""
        with self._lock:
            entry = self.entries.get(id)
            if entry is None:
                entry = self.entries[id] = Entry(Slot(id, call))
            if entry.thing is None:
                entry.thing, entry.actor = thing, actor
                if isinstance(thing, BaseException):
                    entry.slot.fail(thing)
            entry.count += count
            return entry

    def keep(self, slots: Sequence[Slot], things: Sequence[Any], actor: str = "") -> None:
        """Keeps the results of a call, each counted as one reference."""
        now_s = time.monotonic()
        with self._lock:
            for slot, thing in zip(slots, things, strict=True):
                self.entries[slot.id] = Entry(slot, thing, actor, 1, now_s)

    def keep_stream(self, task: TaskSpec, slots: Sequence[Slot], results: Any, actor: str) -> None:
        """Keeps the generator of a call."""
        self._streams[task.id] = GeneratorStream(task.id, task.name, actor, results)
        self.keep(slots, [results], actor)

    def adopt(self, mentions: Mapping[bytes, Any]) -> None:
        """Adopts the references in a value, until this thread adopts those of the next one.

        By then the value was unpacked, and references hold what is still needed.
        """
        previous = getattr(self._local, "adopted", ())
        for id, (thing, call, actor) in mentions.items():
            self.hold(id, call, thing, actor, 1)
        self._local.adopted = list(mentions)
        for id in previous:
            self.note(id, -1)

    def mentions(self, mentioned: Iterable[bytes]) -> dict[bytes, Any]:
        """Returns what has to travel beside a value that holds these references."""
        with self._lock:
            entries = {id: self.entries[id] for id in mentioned}
        for entry in entries.values():
            if isinstance(entry.thing, ray.ObjectRefGenerator):
                raise NotOnThisEngine(
                    f"the generator of {entry.slot.call} can be read by its caller only, on engine "
                    "ray. Send what it yields."
                )
        return {id: (entry.thing, entry.slot.call, entry.actor) for id, entry in entries.items()}

    def take_inputs(self, task: TaskSpec) -> list[Any]:
        """Returns what Ray has of a call's inputs, and gives up what holds its arguments."""
        inputs = ([task.body_id] if task.body_id else []) + list(task.inputs)
        with self._lock:
            things = [self.entries[id].thing for id in inputs]
        self.note(task.body_id, -1)
        return things

    def to_value(self, packed: packing.Packed) -> Value:
        """Returns a packed value with what it mentions, as it travels."""
        return to_value(packed, self.mentions(packed.refs))

    def put(self, id: bytes, packed: packing.Packed, what: str) -> Slot:
        """Stores a value; returns its slot, counted as one reference."""
        slot = Slot(id, what)
        try:
            self.keep([slot], [ray.put(self.to_value(packed))])
        except ray.exceptions.RayError as error:
            raise failures.error_of_get(self._keeper, error, slot, "") from None
        _settle(slot)
        return slot

    def stored(self, slot: Slot, deadline_s: float | None) -> packing.Part:
        """Fetches a value; raises its call's exception, or how it was lost."""
        limit_s = None
        if deadline_s is not None:
            limit_s = max(0.0, deadline_s - time.monotonic()) + _FETCH_S
        with self._lock:
            entry = self.entries[slot.id]
        try:
            value = interrupts.get(entry.thing, limit_s)
            if isinstance(value[0], Raised):
                raise value[0]
        except ray.exceptions.GetTimeoutError:
            raise GetTimeoutError(
                f"get timed out: {slot.call} has answered, but {_FETCH_S:g} s after the deadline "
                "its value has not come. Give it more time."
            ) from None
        except Exception as error:
            raise failures.error_of_get(self._keeper, error, slot, entry.actor) from None
        self.adopt(value[1])
        return part_of(value)

    def source(self, slot: Slot) -> tuple[Any, Callable[[], None]]:
        """Returns Ray's reference that is ready when a slot can be filled, and what fills it."""
        stream = self._streams.get(ids.producer(slot.id))
        if stream is not None and not stream.ended:
            return stream.generator, functools.partial(self._advance, stream)
        entry = self.entries.get(slot.id)
        return (None if entry is None else entry.thing), functools.partial(_settle, slot)

    def _advance(self, stream: GeneratorStream) -> None:
        """Takes the next result of a generator that is ready, or its end."""
        with stream.lock:
            thing = stream.next()
            if thing is None:
                end = self.entries.get(stream.end)
                if end is not None:
                    end.slot.resolve(stream.taken)
                return
            id = ids.result(stream.task, stream.taken)
            _settle(self.hold(id, stream.call, thing, stream.actor, 0).slot)

    def cancel(self, id: bytes, force: bool) -> None:
        """Cancels the call that gives a result, a moment after it was submitted at the earliest."""
        entry = self.entries[id]
        if not isinstance(entry.thing, BaseException):
            time.sleep(max(0.0, entry.submitted_s + _SUBMISSION_S - time.monotonic()))
            ray.cancel(entry.thing, force=force and not entry.actor, recursive=True)

    def close(self) -> None:
        """Fails what is pending."""
        for entry in list(self.entries.values()):
            if entry.slot.state != HERE:
                text = f"the runtime has ended before {entry.slot.call} had answered."
                entry.slot.fail(NotRunningError(text))
        self.entries.clear()


def _settle(slot: Slot) -> None:
    slot.stored = True
    slot.arrived()
