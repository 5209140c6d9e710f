"""Giving calls to processes, with what they need of the object store pinned in memory before.

A worker is given calls ahead of the one it runs. While there is plenty of memory their inputs are
pinned at once; else each call's when its turn has come, so that those that run have room for what
they make. One whose inputs find no room waits as long as somebody else runs who may free some,
and for a while if it is only looked at what is in its way.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime.api.refs import PENDING, Slot
from gmi_drl.runtime.errors import ActorRuntimeError, ObjectStoreFullError
from gmi_drl.runtime.gcs.database import GcsError
from gmi_drl.runtime.scheduler.scheduler import Finished
from gmi_drl.runtime.store import room_requests
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Kind, Place

from . import task as states
from .function_table import KEPT_BYTES
from .task import Task

if TYPE_CHECKING:
    from .actor import Actor
    from .engine import Engine
    from .link import Process

_ONE_CPU: Final = {"CPU": 1.0}
_PLAIN_BYTES: Final = 2048
_PLENTY: Final = 2  # of the store's memory, one part in so many may be in use


def is_plain(task: Task, actor: Actor) -> bool:
    """Whether a call needs nothing but to be sent."""
    return (
        not (
            task.inputs or task.refs or task.keep or task.body_id or actor.options.checkpoint_every
        )
        and len(task.arguments) <= _PLAIN_BYTES
    )


def run_frame(
    task: Task,
    number: int,
    arguments: Place,
    inputs: Sequence[tuple[bytes, Place]],
    replayed: bool,
    about: Any,
) -> bytes:
    """A call as a process gets it."""
    body = pickle.dumps(
        (task.id, task.name, task.function, task.returns, arguments, inputs, task.sequence,
         task.attempts, task.failures, replayed, about), 5,
    )  # fmt: skip
    return framing.frame(Kind.RUN, number, body, len(task.keep or ()))


class Entry:
    """A call that waits until it can be sent to its process."""

    __slots__ = ("asked", "first_s", "places", "replayed", "since_s", "stored", "task")

    def __init__(self, task: Task, replayed: bool, stored: list[bytes]) -> None:
        self.task = task
        self.replayed = replayed
        self.stored = stored  # what it needs of the store
        self.places: dict[bytes, tuple[int, int]] = {}  # where that lies, as far as it is pinned
        self.asked: object = None  # for it to be pinned: a new one each time
        self.first_s = 0.0  # when it found first that there is no room; -1: that was told
        self.since_s = 0.0  # when it found first that only others' views are in its way


class Handing:
    """What is to be sent to each process, in order. Used by the runtime's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._starved: list[Process] = []  # the next call of theirs finds no room for its inputs

    def hand(self, task: Task, process: Process, replayed: bool = False) -> None:
        """Gives a call to a process, after those it was given before."""
        objects = self._engine.objects
        slots = [objects.slots[id] for id in task.inputs]
        if any(slot.state == PENDING or slot.failed for slot in slots) and not task.actor:
            # Lost since it was queued. Not from within a decision of the scheduler's.
            self._engine.defer(lambda: self._take_back(task, process, slots))
            return
        stored = [slot.id for slot in slots if slot.stored or slot.state == PENDING]
        if task.body_id:
            stored.append(task.body_id)
        if not stored and not process.to_send:
            self._send(task, process, {}, replayed)
            return
        entry = Entry(task, replayed, list(dict.fromkeys(stored)))
        process.to_send.append(entry)
        if process.actor is not None or self._is_plenty:
            self._pin(entry, process)
        self.proceed(process)

    def left_out(self, task_id: bytes, process: Process) -> None:
        """The scheduler's worker will not run this."""
        self._engine.schedule(Finished(task_id, process.number, 0.0))

    def proceed(self, process: Process) -> None:
        """Sends what can be sent, and sees to what the next one needs when its turn has come."""
        waiting = process.to_send
        while waiting and not process.dead:
            entry = waiting[0]
            if not entry.replayed and self._engine.tasks.live.get(entry.task.id) is not entry.task:
                waiting.popleft()  # it was cancelled
                self._unpin(entry, process)
                if not entry.task.actor:
                    self.left_out(entry.task.id, process)
            elif len(entry.places) == len(entry.stored):
                try:
                    self._send(entry.task, process, entry.places, entry.replayed)
                finally:
                    waiting.popleft()  # while it is there no call of the driver's overtakes it
            else:
                if entry.asked is None and (not process.calls or self._is_plenty):
                    self._pin(entry, process)
                return

    def room(self) -> None:
        """Somebody has let go of memory."""
        processes, self._starved = self._starved, []
        for process in processes:
            self._engine.defer(lambda process=process: self.proceed(process))  # type: ignore[misc]

    @property
    def _is_plenty(self) -> bool:
        objects = self._engine.objects
        return objects.store.used_bytes * _PLENTY < objects.nbytes

    def _pin(self, entry: Entry, process: Process) -> None:
        asked = entry.asked = object()
        for id in entry.stored:
            self._engine.objects.pin(
                id,
                lambda result, id=id: self._pinned(entry, asked, process, id, result),  # type: ignore[misc]
                patient=False,  # while it waits it holds nothing of what others may need
            )

    def _pinned(self, entry: Entry, asked: object, process: Process, id: bytes, got: Any) -> None:
        if process.dead or entry.asked is not asked or entry not in process.to_send:
            if not isinstance(got, BaseException):
                self._engine.objects.unpin(id)
        elif not isinstance(got, BaseException):
            process.pins[id] += 1
            entry.places[id] = got
            if len(entry.places) == len(entry.stored):
                self.proceed(process)
        elif isinstance(got, ObjectStoreFullError) and self._may_wait(entry, process, got):
            self._unpin(entry, process)
            if not process.calls:  # else it is tried again when its turn has come
                self._starved.append(process)
        else:
            self._fail(entry, process, got)

    def _may_wait(self, entry: Entry, process: Process, error: ObjectStoreFullError) -> bool:
        """As long as calls run that will let go of memory, and a while for others to look away."""
        now_s = time.monotonic()
        if process.calls or self._others_run(process):
            entry.since_s = 0.0
            entry.first_s = entry.first_s or now_s
            if not process.calls and 0 < entry.first_s < now_s - room_requests.PINNED_S:
                entry.first_s = -1.0
                print(
                    f"gmi-drl: {entry.task.name} waits until calls that run leave room for its "
                    f"arguments: {error}",
                    file=sys.stderr,
                )
            return True
        entry.since_s = entry.since_s or now_s
        return now_s - entry.since_s < room_requests.PINNED_S

    def _others_run(self, process: Process) -> bool:
        """Whether calls run that will let go of memory when they are over."""
        return any(
            other.calls and not other.blocked and any(other.pins.values())
            for other in self._engine.processes.values()
            if other is not process
        )

    def _unpin(self, entry: Entry, process: Process) -> None:
        entry.asked = None
        places, entry.places = entry.places, {}
        for id in places:
            process.pins[id] -= 1
            self._engine.objects.unpin(id)

    def _fail(self, entry: Entry, process: Process, error: BaseException) -> None:
        process.to_send.remove(entry)
        self._unpin(entry, process)
        if not entry.task.actor:
            self.left_out(entry.task.id, process)
        self._engine.tasks.fail(entry.task, error)
        self.proceed(process)

    def _give_up(
        self, task: Task, process: Process, places: Iterable[bytes], error: GcsError
    ) -> None:
        """Its function is not to be had. Not from within a decision of the scheduler's."""
        for id in places:
            process.pins[id] -= 1
            self._engine.objects.unpin(id)
        self._engine.defer(lambda: self.left_out(task.id, process))
        text = f"{task.name} cannot be run, as its function cannot be read: {error}"
        self._engine.tasks.fail(task, ActorRuntimeError(text))

    def _take_back(self, task: Task, process: Process, inputs: Sequence[Slot]) -> None:
        """It cannot run yet, or not at all."""
        tasks = self._engine.tasks
        self.left_out(task.id, process)
        if tasks.live.get(task.id) is not task:
            return
        for slot in inputs:
            if slot.failed:
                tasks.fail(task, slot.error())
                return
        task.state = states.WAITING
        for slot in inputs:
            if slot.state == PENDING:
                tasks.await_input(task, slot)
        if not task.missing:
            tasks.queue(task)

    def _tell(self, process: Process, function: bytes) -> None:
        """Sees to it that a worker knows a function, and not too many others."""
        known = process.functions
        if function in known:
            return
        name, body = self._engine.functions.get(function)
        if process.function_bytes + len(body) > KEPT_BYTES:
            used = {task.function for task in process.calls.values()}
            for id in [id for id in known if id not in used]:
                process.function_bytes -= known.pop(id)
                process.send(Kind.FUNCTION, 0, (id, "", b""))
        process.send(Kind.FUNCTION, 0, (function, name, body))
        known[function] = len(body)
        process.function_bytes += len(body)

    def _send(
        self, task: Task, process: Process, places: dict[bytes, tuple[int, int]], replayed: bool
    ) -> None:
        objects, function = self._engine.objects, task.function
        if not task.actor:
            assert isinstance(function, bytes)
            try:
                self._tell(process, function)
            except GcsError as error:
                self._give_up(task, process, places, error)
                return
        inputs: list[tuple[bytes, Place]] = []
        for id in task.inputs:
            place: Place | None = places.get(id)
            inputs.append((id, bytes(objects.slots[id].body) if place is None else place))
        arguments: Place = places[task.body_id] if task.body_id else task.arguments
        about: Any = None
        if task.actor:
            about = task.options
        elif task.demand != _ONE_CPU:
            about = task.demand, process.gpu_ids if "GPU" in task.demand else ()
        number = next(process.numbers)
        process.channel.queue(
            run_frame(task, number, arguments, inputs, replayed, about),
            [memfd.fd for memfd in task.keep or ()],
            task.keep,
        )
        if process.actor is not None:
            self._engine.actors.passed_on(task, process.actor)
        self._engine.tasks.runs(task, process, number)
        self._engine.touched.add(process)
