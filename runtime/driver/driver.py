"""Assembles the runtime in the process that calls `init`, and is the interface to its threads.

One thread, the event loop's, has all tables and sockets; the other threads post commands to it and
wait on slots. `scheduler` and `store` decide without doing; the tables and `dispatch` do.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gmi_drl.runtime.api.options import check_host
from gmi_drl.runtime.api.refs import HERE, Gate, ObjectRef, Slot, wait_for
from gmi_drl.runtime.errors import ActorDiedError, GetTimeoutError
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.process.connection import place_value
from gmi_drl.runtime.process.forkserver_process import ForkServerProcess
from gmi_drl.runtime.scheduler import events
from gmi_drl.runtime.scheduler.scheduler import Scheduler
from gmi_drl.runtime.store.arena import Arena
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.closures import Code
from gmi_drl.runtime.wire.protocol import Kind

from .actor_table import ActorTable
from .dispatch import Dispatch, is_plain, run_frame
from .event_loop import EventLoop
from .function_table import FunctionTable
from .gpus import Gpus
from .lineage import Lineage
from .object_table import ObjectTable
from .processes import Actor
from .requests import Requests
from .shortages import Shortages
from .spawner import Spawner
from .task import TaskSpec
from .task_table import TaskTable
from .unretrieved_errors import UnretrievedErrors

_RESTORE_S: Final = 30.0  # beyond the deadline, for a value that was there and went to disk
_BACKLOG: Final = 100_000  # unwritten rows of the control store, from which on submitters wait
_TERM_S: Final = 0.5  # between SIGTERM and SIGKILL
_DEATH_S: Final = 5.0  # how long a process may take to die of SIGKILL
_TICK_S: Final = 0.005
_ORPHANS_S: Final = 0.05
_POLL_S: Final = 0.1
_RECORD_S: Final = 0.5  # how late the control store may know of what is not over
_SUBMISSIONS_PER_CHECK: Final = 64  # submissions, then it is looked how many rows are unwritten


class Driver:
    """Is the runtime of the process that called `init`; methods may be called from any thread."""

    is_driver = True
    reads = True  # the runtime's thread fills every slot by itself

    def __init__(
        self, preload: Sequence[str], devices: Mapping[int, Mapping[str, float]],
        cores: Mapping[int, tuple[int, ...]], object_store_bytes: int, gcs_path: Path | None,
        *, gcs_replicas: int, namespace: str,
    ) -> None:  # fmt: skip
        self.namespace = namespace  # the default one, for actors' names
        self.scheduler = Scheduler(devices)
        with contextlib.ExitStack() as on_error:
            self.arena = arena = Arena.create(object_store_bytes)
            on_error.callback(arena.close)
            self.server = server = ForkServerProcess(preload, arena)
            on_error.callback(server.remove)
            on_error.callback(server.end, at_once=True)
            gcs = Gcs(gcs_path or server.directory / "gcs.sqlite", replicas=gcs_replicas)
            on_error.pop_all()

        # Each part keeps references to parts made before it, and reaches later ones through self.
        self.gcs, self.loop = gcs, EventLoop(self)
        self.post = self.loop.post
        self.spawner = Spawner(self, cores)
        self.processes = self.spawner.processes
        self.objects = ObjectTable(self)
        self.tasks = TaskTable(self)
        self.functions = FunctionTable(self.loop, gcs)
        self.dispatch = Dispatch(self)
        self.actors = ActorTable(self)
        self.gpus = Gpus(devices, self.processes, self.actors.table)
        self.unretrieved = UnretrievedErrors(self.objects.slots, self.actors.table)
        self.shortages = Shortages(self.scheduler, self.tasks.live, self.actors.table)
        self.lineage = Lineage(gcs, self.objects, self.tasks)
        self.requests = Requests(self)
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Run: self.dispatch.run,
            events.Recall: self.dispatch.recall,
            events.StartWorker: self.spawner.start_worker,
            events.StopWorker: self.spawner.stop_worker,
            events.StartActor: self.actors.start,
            events.Infeasible: self.actors.infeasible,
        }
        self._num_submitted = 0
        self._printed_failure = ""  # of the control store
        self._ticks = False  # whether the scheduler wants to be told of time
        self._ticked_s = self._looked_s = self._recorded_s = 0.0
        self._look_again = True  # whether there is work for the next look
        self.loop.start()

    @property
    def ready(self) -> Slot:
        """Returns a slot that is filled when the fork server has imported its modules."""
        return self.spawner.ready

    def close(self) -> None:
        """Ends the thread and the fork server, which kills what still lives."""
        self.loop.stop()
        self.spawner.close()
        for actor in self.all_actors():
            if not actor.dead:
                actor.end_reason = self.spawner.broken
                self.actors.end_unstarted(actor, actor.end_reason)
        error = self.spawner.unavailable()
        for task in list(self.tasks.live.values()):
            self.tasks.fail(task, error)
        for slot in list(self.objects.slots.values()):
            if slot.state != HERE:
                slot.fail(error)
        self.ready.fail(ActorDiedError("fork server", reason=self.spawner.broken))
        self.objects.close()
        self.gcs.close()
        self.server.remove()
        self.arena.close()

    def forget(self) -> None:
        """Closes this copy's descriptors after a fork of the launcher, and touches nothing else."""
        self.loop.forget()
        self.server.forget()
        self.spawner.forget()
        self.arena.close()

    # What references need.

    def note(self, id: bytes, change: int, soon: bool = True) -> None:
        self.loop.commands.append((self.objects.count, (id, change)))
        if soon and self.loop.asleep:
            self.loop.wake()

    def slot(self, id: bytes, call: str) -> Slot:
        slots = self.objects.slots
        return slots.get(id) or slots.setdefault(id, Slot(id, call))

    def want(self, slots: Sequence[Slot], values: bool) -> None:
        """Does nothing, as every slot of the driver is filled by itself."""

    def unwant(self, slots: Sequence[Slot]) -> None:
        """Does nothing, as nothing was wanted."""

    def notify(self, slots: Sequence[Slot]) -> None:
        """Does nothing, as every slot of the driver is filled by itself."""

    def taken(self, id: bytes, generator: bytes) -> None:
        """Notes that the one reader of a generator has got a result."""
        self.post(self.tasks.taken, id, generator)

    check = staticmethod(check_host)
    block = staticmethod(Gate.wait)

    def stored(self, slot: Slot, deadline_s: float | None) -> packing.Part:
        id = slot.id  # the view keeps `unpin`, which must not keep the slot and its task

        def unpin(_: object = None) -> None:
            self.post(self.objects.unpin, id)

        def check() -> None:
            if deadline_s is not None and time.monotonic() > deadline_s + _RESTORE_S:
                raise GetTimeoutError(
                    f"get timed out: {slot.call} has answered, but {_RESTORE_S:g} s after the "
                    "deadline its value is not back from disk, or not made again. Give it more "
                    "time, or object_store_bytes more."
                )

        place = self.loop.ask(lambda then: self.objects.pin(id, then), check, unpin)
        return packing.view(self.arena, place, unpin)

    # What users call.

    def submit(self, task: TaskSpec, code: Code | None = None) -> list[Slot]:
        """Submits a call, of a function with its code.

        Returns the slots of its results, each counted as one reference.
        """
        if code is not None:
            self.functions.add(code.id, task.name, code.body)
        task.slots = [Slot(id, task.name, task) for id in task.result_ids()]
        actor = self.actors.table.get(task.actor) if task.actor else None
        if actor is None:
            self.post(self.tasks.submit, task, 0, 0)
        else:
            self._call(actor, task)
        if task.body_id:
            self.note(task.body_id, -1)  # the call holds it now
        self._num_submitted += 1
        if not self._num_submitted % _SUBMISSIONS_PER_CHECK:
            # Callers wait while the control store lags behind, so that memory stays bounded.
            while self.gcs.backlog > _BACKLOG and not self.gcs.failure and self.loop.running:
                time.sleep(0.005)  # the writer takes thousands of rows at once
        return task.slots

    def _call(self, actor: Actor, task: TaskSpec) -> None:
        """Sends a small call directly to the actor if none is queued before it; else submits it.

        It is noted before it is sent, so that the runtime's thread knows of it when it reads the
        answer. An interrupt in between leaves a call that nobody waits for.
        """
        with actor.sending:
            process = actor.process
            straight = process is not None and not actor.unsent_calls and not process.to_send
            if process is not None and straight and is_plain(task, actor):
                number = next(process.numbers)
                frame = run_frame(task, number, task.arguments, (), False, details=task.options)
                self.loop.commands.append((self.dispatch.sent, (task, process, number)))
                if not process.channel.send_now(frame):
                    self.post(self.loop.touched.add, process.channel)
                return
            actor.unsent_calls += 1
            self.post(self.tasks.submit, task, 0, 0)

    def put(self, id: bytes, packed: packing.Packed, what: str) -> Slot:
        """Stores a value; returns its slot, counted as one reference."""
        slot = Slot(id, what)
        place = place_value(self, id, packed, what)
        if isinstance(place, bytes):
            slot.fill(place)
        self.post(self.requests.put, slot, place, packed.refs, 0)
        if not isinstance(place, bytes):
            slot.stored = True
            slot.arrived()
        return slot

    def request(self, method: str, *args: Any) -> Any:
        """Makes a request as a process would, from the driver itself."""

        def give_back(_: object) -> None:
            if method == "create":  # room for a value that is not written, after an interrupt
                self.objects.abandon(args[0])

        return self.loop.ask(
            lambda then: self.requests.answer(None, method, args, then), unwanted=give_back
        )

    def start_actor(self, creation: TaskSpec, **details: Any) -> Actor:
        """Adds a new actor, counted as one handle; returns at once."""
        actor = Actor(creation, **details)

        def add(then: Callable[[None], None]) -> None:
            self.actors.add(actor, 0)
            then(None)

        try:
            if actor.registered:  # the name may be taken
                self.loop.ask(add)
            else:
                self.actors.table[actor.id] = actor
                self.post(self.actors.add, actor, 0)
        finally:
            if creation.body_id:
                self.note(creation.body_id, -1)
        return actor

    def actor(self, id: bytes) -> Actor | None:
        """Returns what this process knows of an actor besides its name."""
        return self.actors.table.get(id)

    def ask_actor(self, actor: Actor, kind: Kind, reason: str = "") -> None:
        """Sends ASK_STOP or CLOSE; returns at once."""
        self.post(self.actors.ask, actor, kind, reason)

    def stop_actors(
        self, actors: Sequence[Actor], grace: timedelta, reason: str,
        before_signals: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Asks, waits for `grace`, then SIGTERM, then SIGKILL, each to the whole process group."""
        for actor in actors:
            self.ask_actor(actor, Kind.CLOSE, reason)
        _await_deaths(actors, grace.total_seconds())
        if before_signals is not None and not all(actor.dead for actor in actors):
            before_signals()
        self.signal_actors(actors, signal.SIGTERM, reason, _TERM_S)
        self.signal_actors(actors, signal.SIGKILL, reason)

    def signal_actors(
        self, actors: Sequence[Actor], number: int, reason: str, wait_s: float = _DEATH_S
    ) -> None:
        """Signals the process groups of living actors, without restart, and waits for their end."""
        alive = [actor for actor in actors if not actor.dead]
        for actor in alive:
            self.post(self.actors.signal, actor, number, reason)
        _await_deaths(alive, wait_s)

    def drop_dead(self, actor: Actor) -> None:
        """Forgets a dead actor whose records were fetched, unless a handle is left."""
        self.post(self.actors.forget, actor)

    def all_actors(self) -> list[Actor]:
        """Lists every actor that lives or has unfetched records."""
        return list(self.actors.table.values())

    # In the event loop's thread.

    def tell(self, event: events.Event) -> None:
        """Tells the scheduler of an event, and carries out its instructions."""
        now_s = time.monotonic()
        if not self._ticks:  # the next tick decides whether another follows
            self._ticks, self._ticked_s = True, now_s
        for instruction in self.scheduler.handle(event, now_s):
            self._handlers[instruction.__class__](instruction)

    def tick(self) -> None:
        """Tells the scheduler that time has passed, if it wants that and it is due."""
        if self._ticks and (now_s := time.monotonic()) - self._ticked_s >= _TICK_S:
            self._ticked_s = now_s
            self.tell(events.Ticked())
            self._ticks = self.scheduler.wants_tick

    def timeout_s(self) -> float:
        """Returns how long the loop may sleep; -1: until something arrives."""
        if self.spawner.orphans:
            return _ORPHANS_S
        if self._ticks:
            return _TICK_S
        if self._look_again:
            return _POLL_S
        return _RECORD_S if self.tasks.live or self.objects.room_requests else -1

    def after_round(self) -> None:
        """Does periodic work that is due, after a round of the loop."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _POLL_S:
            self._looked_s = now_s
            self._look(now_s)
        else:
            self._look_again = True
        if self.spawner.orphans:
            self.spawner.give_up_orphans()

    def _look(self, now_s: float) -> None:
        self.objects.refuse_late()
        self._look_again = self.objects.give_back()
        if now_s - self._recorded_s > _RECORD_S:
            self._recorded_s = now_s
            self.tasks.record()
            self.shortages.look(now_s)
            self.dispatch.room_freed()  # so that calls whose wait is too long fail
        failure = self.gcs.failure
        if failure != self._printed_failure and (failure or not self.gcs.backlog):
            self._printed_failure = failure  # once, though some rows may find room in between
            if failure:
                print(f"gmi-drl: {failure}", file=sys.stderr)


def _await_deaths(actors: Sequence[Actor], wait_s: float) -> None:
    if actors:
        wait_for([ObjectRef(actor.death_slot) for actor in actors], len(actors), wait_s)
