"""The runtime as the driver's own threads use it: what they call, what their references need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gmi_drl.runtime.api.refs import Gate, Slot
from gmi_drl.runtime.errors import ActorRuntimeError, GetTimeoutError
from gmi_drl.runtime.process.connection import INLINE_BYTES
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.protocol import Kind, Place

from .actor import Actor
from .dispatch import is_plain, run_frame
from .engine import Engine
from .task import Task

_RESTORE_S: Final = 30.0  # beyond the deadline, for a value that was there and went to disk
_BACKLOG: Final = 100_000  # unwritten rows of the control store, from which on submitters wait


class Driver(Engine):
    """An engine, with what may be called from any thread."""

    reads = True  # the engine's thread fills every slot as soon as that can be

    def note(self, id: bytes, change: int, soon: bool = True) -> None:
        self._commands.append((self.objects.count, (id, change)))
        if soon and self._asleep:
            self._wake()

    def slot(self, id: bytes, call: str) -> Slot:
        slots = self.objects.slots
        return slots.get(id) or slots.setdefault(id, Slot(id, call))

    def want(self, slots: Sequence[Slot], values: bool) -> None:
        pass  # every slot of the driver is filled as soon as it can be

    def unwant(self) -> None:
        pass

    def block(self, gate: Gate, timeout_s: float | None) -> bool:
        return gate.wait(timeout_s)

    def stored(self, slot: Slot, deadline_s: float | None) -> packing.Part:
        id = slot.id
        found: list[Any] = []
        gate, wanted = Gate(1), True

        def pinned(result: Any) -> None:
            if wanted:
                found.append(result)
                gate.arrived()
            elif not isinstance(result, BaseException):
                self.objects.unpin(id)

        def give_up() -> None:
            nonlocal wanted
            wanted = False
            if found and not isinstance(found[0], BaseException):
                self.objects.unpin(id)

        self.post(self.objects.pin, id, pinned)
        try:
            self._await_value(gate, slot, deadline_s)
        except BaseException:
            self.post(give_up)
            raise
        if isinstance(found[0], BaseException):
            raise found.pop()
        return packing.view(self.arena, found[0], lambda: self.post(self.objects.unpin, id))

    def _await_value(self, gate: Gate, slot: Slot, deadline_s: float | None) -> None:
        while not gate.wait(1.0):
            if not self.running:
                raise ActorRuntimeError("the runtime was shut down")
            if deadline_s is not None and time.monotonic() > deadline_s + _RESTORE_S:
                raise GetTimeoutError(
                    f"get timed out: {slot.call} has answered, but {_RESTORE_S:g} s after the "
                    "deadline its value is not back from disk, or not made again. Give it more "
                    "time, or object_store_bytes more."
                )

    def submit(self, task: Task) -> list[Slot]:
        """Takes a call; its results' slots, each counted as one reference."""
        task.slots = [Slot(id, task.name, task) for id in task.result_ids()]
        actor = self.actors.table.get(task.actor) if task.actor else None
        if actor is None:
            self.post(self.tasks.submit, task, 0, 0)
        else:
            self._call(actor, task)
        if task.body_id:
            self.note(task.body_id, -1)  # from here on the call holds it
        if self.gcs.backlog > _BACKLOG:
            self._hold_back()
        return task.slots

    def _call(self, actor: Actor, task: Task) -> None:
        """Sends a small call straight to the actor if nothing is before it; else as others go.

        Noted first and sent then, so that the runtime's thread knows of it when it reads the
        answer, by which it is woken. An interrupt in between leaves a call that nobody waits for.
        """
        with actor.sending:
            process = actor.process
            straight = process is not None and not actor.indirect and not process.to_send
            if process is not None and straight and is_plain(task, actor):
                number = next(process.numbers)
                frame = run_frame(task, number, task.arguments, (), False, task.options)
                self._commands.append((self.tasks.sent, (task, process, number)))
                if not process.channel.send_now(frame):
                    self.post(self.touched.add, process)
                return
            actor.indirect += 1
            self.post(self.tasks.submit, task, 0, 0)

    def add_function(self, id: bytes, name: str, body: bytes) -> None:
        """Makes a function known."""
        row = self.functions.add(id, name, body)
        if row is not None:
            self.post(self.gcs.put, row)

    def put(self, id: bytes, packed: packing.Packed, what: str) -> Slot:
        """Keeps a value; its slot, counted as one reference."""
        slot = Slot(id, what)
        place = self.place(id, packed, what, slot)
        if isinstance(place, bytes):
            slot.fill(place)
        self.post(self.requests.put, slot, place, packed.refs, 0)
        if not isinstance(place, bytes):
            slot.stored = True
            slot.arrived()
        return slot

    def place(
        self, id: bytes, packed: packing.Packed, what: str, slot: Slot | None = None
    ) -> Place:
        """The bytes of a small value, or where a large one now lies."""

        if packed.nbytes <= INLINE_BYTES:
            return packed.body
        where = self.ask(lambda then: self.objects.create(id, packed.nbytes, what, then))
        if where is None:  # it is there already
            return 0, packed.nbytes
        try:
            packing.write(self.arena, where, packed, what)
        except BaseException:
            self.post(self.objects.abandon, id)
            raise
        return 0 if isinstance(where, str) else where, packed.nbytes

    def request(self, method: str, *args: Any) -> Any:
        """One of the requests that a process can make, from the driver itself."""
        return self.ask(lambda then: self.requests.answer(None, method, args, then))

    def start_actor(self, creation: Task, *about: Any) -> Actor:
        """Takes a new actor, counted as one handle; returns at once."""
        actor = Actor(creation, *about)

        def add(then: Callable[[None], None]) -> None:
            self.actors.add(actor, 0)
            then(None)

        try:
            if actor.registered:  # the name may be taken
                self.ask(add)
            else:
                self.actors.table[actor.id] = actor
                self.post(self.actors.add, actor, 0)
        finally:
            if creation.body_id:
                self.note(creation.body_id, -1)
        return actor

    def actor(self, id: bytes) -> Actor | None:
        """What this process knows of an actor besides its name."""
        return self.actors.table.get(id)

    def ask_actor(self, actor: Actor, kind: Kind, reason: str = "") -> None:
        """Sends ASK_STOP or CLOSE; returns at once."""
        self.post(self.actors.ask, actor, kind, reason)

    def signal_actor(self, actor: Actor, number: int, reason: str) -> None:
        """Signals the actor's process group for good, unless it has ended; returns at once."""
        self.post(self.actors.signal, actor, number, reason)

    def all_actors(self) -> list[Actor]:
        """Every actor that lives, or whose records nobody has fetched."""
        return list(self.actors.table.values())

    def drained(self, actor: Actor) -> None:
        """Nobody will ask for this dead actor's records again."""
        if actor.dead and not actor.records:
            self.post(self.actors.forget, actor)

    def _hold_back(self) -> None:
        """The control store is behind: whoever submits more waits, so that memory has a bound."""
        while self.gcs.backlog > _BACKLOG and not self.gcs.failure and self.running:
            time.sleep(0.005)  # the writer takes thousands of rows at once
