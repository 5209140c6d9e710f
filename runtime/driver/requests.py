"""What processes say to the driver, and what is done about it."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.scheduler.scheduler import Unblocked
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Kind, Place

from .actor import Actor
from .task import Task

if TYPE_CHECKING:
    from .engine import Engine
    from .link import Process


class Requests:
    """Takes what comes from processes. The runtime's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, process: Process, message: framing.Message) -> None:
        kind = message.kind
        if kind == Kind.RESULT or kind == Kind.ERROR or kind == Kind.RESULTS:
            self._engine.tasks.answered(process, message)
        elif kind == Kind.RECORD:
            if process.actor is not None:
                self._record(process.actor, message)
        elif kind == Kind.SUBMIT:
            task = Task(*pickle.loads(message.body))
            self._engine.tasks.submit(task, process.number, process.device)
        elif kind == Kind.COUNTS:
            holder = ("process", process.number)
            for id, change in pickle.loads(message.body):
                if change > 0:
                    self._engine.objects.hold(id, holder)
                else:
                    self._engine.objects.release(id, holder)
        elif kind == Kind.UNPIN:
            for id in pickle.loads(message.body):
                if process.pins[id]:
                    process.pins[id] -= 1
                    self._engine.objects.unpin(id)
        elif kind == Kind.WANT:
            wanted, values = pickle.loads(message.body)
            self._engine.tasks.wants(process, wanted, values)
            self._engine.touched.add(process)
        elif kind == Kind.UNWANT:
            process.wanted.clear()
            self._maybe_unblocked(process)
        elif kind == Kind.REQUEST:
            method, args = pickle.loads(message.body)
            number = message.id

            def then(result: Any) -> None:
                if not process.dead:
                    failed = isinstance(result, BaseException)
                    process.send(Kind.REPLY, number, (failed, result))
                    self._engine.touched.add(process)

            try:
                self.answer(process, method, args, then)
            except Exception as error:
                then(error)
        elif kind == Kind.PUT:
            id, place, refs = pickle.loads(message.body)
            process.creating.discard(id)
            self.put(Slot(id, "put"), place, refs, process.number)
        elif kind == Kind.ITEM:
            self._engine.tasks.item(process, message)
        elif kind == Kind.FUNCTION:
            id, name, body = pickle.loads(message.body)
            row = self._engine.functions.add(id, name, body)
            if row is not None:
                self._engine.gcs.put(row)
        elif kind == Kind.RETURNED:
            self._engine.tasks.returned(process, pickle.loads(message.body))
        elif kind == Kind.CHECKPOINT:
            self._engine.actors.checkpointed(process, *pickle.loads(message.body))

    def found(self, process: Process) -> None:
        """One of the objects a process asked for has been sent to it."""
        self._engine.touched.add(process)
        self._maybe_unblocked(process)

    def _maybe_unblocked(self, process: Process) -> None:
        if process.blocked and not process.wanted:
            process.blocked = False
            self._engine.schedule(Unblocked(process.scheduled_as))

    def _record(self, actor: Actor, message: framing.Message) -> None:
        records = actor.records
        actor.dropped = message.id + max(0, len(records) + 1 - (records.maxlen or 0))
        records.append(message)

    def put(self, slot: Slot, place: Place, refs: Sequence[bytes], caller: int) -> None:
        if slot.id in self._engine.objects.slots:  # whoever put it was run again
            if caller:
                self._engine.objects.hold(slot.id, ("process", caller))
            return
        self._engine.objects.add(slot)
        if caller:
            self._engine.objects.hold(slot.id, ("process", caller))
        else:
            slot.held += 1
            self._engine.objects.hold(slot.id, 0)
        if isinstance(place, bytes):
            self._engine.objects.settle(slot, place, refs, None)
        else:
            slot.nbytes = place[1]
            self._engine.objects.settle(slot, None, refs, None)

    def answer(
        self, process: Process | None, method: str, args: Any, then: Callable[[Any], None]
    ) -> None:
        """What a process (None: the driver) asks for; `then` is called with the answer."""
        if method == "create":
            id, nbytes, label = args
            if process is not None:
                process.creating.add(id)
            self._engine.objects.create(id, nbytes, label, then)
        elif method == "abandon":
            (id,) = args
            if process is not None:
                process.creating.discard(id)
            self._engine.objects.abandon(id)
            then(None)
        elif method == "pin":
            (id,) = args

            def pinned(result: Any) -> None:
                if process is not None and not isinstance(result, BaseException):
                    if process.dead:
                        self._engine.objects.unpin(id)
                        return
                    process.pins[id] += 1
                then(result)

            self._engine.objects.pin(id, pinned)
        elif method == "actor":
            about = self._engine.actors.named(*args)
            if process is None:  # held from now on, so that it does not end before it is called
                self._engine.actors.count(about[0], 1)
            then(about)
        elif method == "nothing":
            then(None)
        elif method == "resources":
            then(self._engine.scheduler.resources())
        elif method == "names":
            then(sorted(self._engine.actors.names))
        elif method == "actors":
            then([actor.about() for actor in self._engine.actors.table.values()])
        elif method == "kill":
            id, no_restart, reason = args
            actor = self._engine.actors.table.get(id)
            if actor is not None:
                self._engine.actors.signal(actor, signal.SIGKILL, reason, restart=not no_restart)
            then(None)
        elif method == "cancel":
            id, force = args
            self._engine.tasks.cancel(id, force)
            then(None)
        elif method == "start":
            fields, *about = args
            actor = Actor(Task(*fields), *about)
            self._engine.actors.add(actor, process.number if process is not None else 0)
            then(None)
        else:
            raise ValueError(f"unknown request {method!r}")
