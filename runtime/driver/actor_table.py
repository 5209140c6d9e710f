"""Keeps the table of actors: how they start, are called, come back after a crash, and end.

The calls of one caller reach an actor in the order they were made. A call whose inputs are not
ready holds up later calls of the same caller, unless the actor runs several calls at once.

An actor that may be restarted and runs one call at a time keeps a log: the calls it has answered
since its last checkpoint. When its process dies, a new one is built (from the checkpoint, if there
is one). It runs the logged calls again to restore its state, without sending their answers, and
then the calls that were not answered: the stateful edges of the Ray paper, figure 4.
"""

from __future__ import annotations

import collections
import dataclasses
import signal
import time
from typing import TYPE_CHECKING, Any

from gmi_drl.runtime import errors, ids
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.errors import ActorDiedError, TaskError
from gmi_drl.runtime.gcs.tables import EventRow
from gmi_drl.runtime.scheduler.events import ActorGone, ActorSubmitted, Infeasible, StartActor
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Build, Exited, Kind, Place

from .processes import Actor, Process
from .task import CANCELLED, TaskSpec
from .task_table import cancelled_error
from .unretrieved_errors import NOBODY

if TYPE_CHECKING:
    from .driver import Driver


class ActorTable:
    """Holds every actor that lives or has unfetched records. Used by the runtime's thread only."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._loop, self._gcs = driver, driver.loop, driver.gcs
        self._tell, self._spawner = driver.tell, driver.spawner
        self._objects, self._dispatch = driver.objects, driver.dispatch
        self._tasks, self._live = driver.tasks, driver.tasks.live
        self.table: dict[bytes, Actor] = {}  # by id
        self.names: dict[tuple[str, str], Actor] = {}  # by namespace and name

    def add(self, actor: Actor, caller: int) -> None:
        """Adds a new actor that the process `caller` asked for."""
        objects, creation = self._objects, actor.creation
        existing = self.table.get(actor.id, actor)
        if existing is not actor and not existing.dead:  # its caller is run again
            objects.hold(actor.id, ("process", caller))
            return
        if actor.registered:
            if actor.registered in self.names:
                raise errors.NameTakenError(
                    f"name={actor.name!r}: an actor that lives has this name. Choose another one, "
                    "or get its handle by get_actor() or with get_if_exists=True."
                )
            self.names[actor.registered] = actor
        self.table[actor.id] = actor
        process = self._spawner.processes.get(caller)
        if self._tasks.is_kept_for_caller(creation, process):
            objects.hold(actor.id, ("task", creation.parent))
        objects.hold_for(caller, actor)
        slot = Slot(ids.result(creation.id), f"{actor.name}.__init__", creation)
        objects.slots[slot.id] = slot
        creation.slots, creation.actor = [slot], actor.id
        for id in (slot.id, *creation.refs, *creation.inputs, *filter(None, (creation.body_id,))):
            objects.hold(id, ("actor", actor.id))
        self._record(actor, "starting")
        if actor.is_scheduled:
            self._tell(ActorSubmitted(actor.id, 0, actor.demand, actor.options.device))
        else:
            actor.device = 0
        self._tasks.begin(creation)

    def named(self, namespace: str, name: str) -> tuple[Any, ...]:
        """Returns the fields of a handle to the living actor of this name."""
        actor = self.names.get((namespace, name))
        if actor is None:
            names = ", ".join(sorted(name for space, name in self.names if space == namespace))
            raise ValueError(
                f"no actor is named {name!r} in namespace {namespace!r}. There are: "
                f"{names or 'none'}."
            )
        return actor.id, actor.name, actor.class_name, actor.methods

    def start(self, start: StartActor) -> None:
        """Starts an actor on the device that the scheduler has chosen."""
        actor = self.table.get(start.actor)
        if actor is not None and not actor.dead:
            actor.device = start.device
            if num_gpus := actor.demand.get("GPU"):
                actor.gpu_ids = self._driver.gpus.choose(start.device, num_gpus)
            self._start_if_ready(actor)

    def _start_if_ready(self, actor: Actor) -> None:
        """Starts an actor as soon as it has a device and the inputs of `__init__`."""
        if actor.device < 0 or actor.creation.missing or actor.process is not None:
            return
        process = self._spawn(actor)
        if process is None:
            return
        while actor.backlog:
            task = actor.backlog.popleft()
            if self._live.get(task.id) is task:  # else cancelled
                actor.number(task)
                self._dispatch.add(task, process)
        self._loop.post(self._allow_direct_calls, actor)

    def infeasible(self, infeasible: Infeasible) -> None:
        """Fails an actor or a task that demands more than any device has."""
        actor = self.table.get(infeasible.subject)
        task = self._live.get(infeasible.subject)
        error = errors.OutOfResources(infeasible.reason)
        if actor is not None:
            self.end_unstarted(actor, infeasible.reason, error)
        elif task is not None:
            self._tasks.fail(task, error)

    def _spawn(self, actor: Actor) -> Process | None:
        """Spawns the actor's process; on failure ends the actor and returns None."""
        options, creation = actor.options, actor.creation
        with actor.sending:
            actor.unsent_calls += 1  # no call is sent directly before Build and the creation
        try:
            keep_log = options.log is not None
            process = self._spawner.spawn(actor.request, keep_log, actor.device, actor)
        except errors.ForkServerError as error:
            self.end_unstarted(actor, str(error))
            return None
        actor.process = process
        if actor.stop_requested:
            self._loop.send(process.urgent, framing.frame(Kind.ASK_STOP, 0))
        slot = actor.checkpoint_slot
        build = Build(
            device=actor.device, namespace=self._driver.namespace, actor=actor.id,
            name=actor.name, setup=actor.setup, cls=actor.cls,
            max_concurrency=options.max_concurrency or 1, restarts=actor.restarts,
            checkpoint_every=options.checkpoint_every, sequence=actor.checkpoint,
            state=bytes(slot.body) if slot is not None else b"", resources=actor.demand,
            gpu_ids=actor.gpu_ids, concurrency_groups=options.concurrency_groups,
            max_task_retries=options.max_task_retries,
        )  # fmt: skip
        process.send(Kind.BUILD, 0, build)
        self._dispatch.add(creation, process)
        return process

    def checkpointed(
        self, process: Process, sequence: int, place: Place, refs: list[bytes]
    ) -> None:
        """Notes an actor's checkpoint, and drops the logged calls that it covers."""
        actor, objects = process.actor, self._objects
        if actor is None:
            return
        slot = Slot(ids.result(actor.id, sequence), f"a checkpoint of {actor.name}")
        objects.slots[slot.id] = slot
        previous_slot, actor.checkpoint_slot = actor.checkpoint_slot, slot
        objects.hold(slot.id, ("actor", actor.id))
        process.creating.discard(slot.id)
        objects.settle(slot, place if isinstance(place, bytes) else None, refs, None)
        if previous_slot is not None:
            objects.release(previous_slot.id, ("actor", actor.id))
        actor.checkpoint = sequence
        while actor.log and actor.log[0].sequence <= sequence:
            self._tasks.let_go(actor.log.popleft())
        self._record(actor, "alive")

    # Calls of methods.

    def call(self, task: TaskSpec) -> None:
        """Sends a method's call to the actor once its inputs are ready and its turn has come."""
        actor = self.table.get(task.actor)
        if actor is not None and task is actor.creation:
            self._start_if_ready(actor)
            return
        if actor is None:
            name = task.name.partition(".")[0]
            reason = "nobody had its handle any more, or its runtime was shut down"
            self._tasks.fail(task, ActorDiedError(name, reason=reason))
            return
        if actor.dead:
            actor.death_seen = True
            self._tasks.fail(task, actor.death())
            return
        line = actor.line(task)
        queue = actor.waiting.get(line)
        if queue is None and not task.missing:
            self._send(actor, task)
            return
        if queue is None:
            queue = actor.waiting[line] = collections.deque()
        queue.append(task)

    def ready(self, task: TaskSpec) -> None:
        """Advances the queue of a call whose inputs are ready."""
        actor = self.table[task.actor]
        if task is actor.creation:
            self._start_if_ready(actor)
        else:
            self._advance(actor, actor.line(task))

    def skipped(self, task: TaskSpec) -> None:
        """Takes a call out of its queue that will not be run."""
        actor = self.table.get(task.actor)
        if actor is not None and task is actor.creation:
            if actor.process is None:
                self.end_unstarted(actor, "", task.slots[0].error())
        elif actor is not None and not actor.dead:
            actor.sent(task)
            actor.unanswered.pop(task.sequence, None)
            # Deferred, as the next in its queue may be skipped, too.
            self._loop.defer(lambda: self._skip_on(actor, actor.line(task)))

    def _skip_on(self, actor: Actor, line: int | bytes) -> None:
        self._advance(actor, line)
        self._maybe_end(actor)

    def _advance(self, actor: Actor, line: int | bytes) -> None:
        queue = actor.waiting.get(line)
        live = self._live
        while queue and not (queue[0].missing and live.get(queue[0].id) is queue[0]):
            task = queue.popleft()
            if live.get(task.id) is task:  # else one of its inputs failed, or it was cancelled
                self._send(actor, task)
        if not queue:
            actor.waiting.pop(line, None)

    def _send(self, actor: Actor, task: TaskSpec) -> None:
        if actor.process is None:
            actor.backlog.append(task)
            return
        actor.number(task)
        self._dispatch.add(task, actor.process)

    def answered(self, process: Process, task: TaskSpec, failure: bytes | None) -> bool:
        """Tells whether to pass an answer on; not if the caller had it before the crash."""
        actor = process.actor
        assert actor is not None
        if task is actor.creation:
            rebuilt = task.slots[0].done
            if failure is None:
                self._record(actor, "alive")
            elif rebuilt:  # building it again would fail, too
                actor.rebuilding_failed = Slot(b"", task.name)
                actor.rebuilding_failed.fill(failure, failed=True)
            return not rebuilt
        actor.unanswered.pop(task.sequence, None)
        if self._live.get(task.id) is not task:  # replayed, or cancelled
            return False
        # What a call had done when it was cancelled is not known: it is not run again.
        if actor.keeps_log and not (failure is not None and task.state == CANCELLED):
            actor.log.append(task)
        if actor.unreferenced and not actor.unanswered:
            self._loop.defer(lambda: self._maybe_end(actor))
        return True

    def keeps(self, task: TaskSpec) -> bool:
        """Tells whether an answered call, with its inputs, is kept to be run again."""
        actor = self.table.get(task.actor) if task.actor else None
        logged = actor is not None and actor.keeps_log and not actor.dead
        return logged and task.state != CANCELLED

    # Ends.

    def process_gone(self, process: Process, exited: Exited) -> None:
        """Restarts an actor whose process has ended, or ends the actor."""
        actor = process.actor
        assert actor is not None
        if actor.process is not process or actor.dead:
            return
        creation_failed = actor.creation.slots[0].failed or actor.rebuilding_failed is not None
        exhausted = 0 <= actor.options.max_restarts <= actor.restarts and not process.never_forked
        on_purpose = bool(actor.end_reason) or exited.exit_code == 0
        broken = self._spawner.broken
        if creation_failed or on_purpose or exhausted or broken:
            self._end(actor, exited, actor.end_reason or process.end_reason or broken)
            return
        given_up: dict[TaskSpec, BaseException] = {}
        if not process.never_forked:
            death = actor.death_by(exited, process.end_reason)
            actor.deaths.append(death)
            actor.restarts += 1
            text = str(death).splitlines()[0]
            self._gcs.put(EventRow(time.time(), "actor restarted", actor.id, text))
            self._record(actor, "restarting")
            given_up = self._given_up(actor, death)
        calls = [*process.calls.values(), *(call.task for call in process.to_send)]
        process.calls, process.to_send = {}, collections.deque()
        unanswered = sorted(
            (
                task
                for task in calls
                if task is not actor.creation and self._live.get(task.id) is task
            ),
            key=lambda task: task.sequence,
        )
        successor = self._spawn(actor)
        if successor is None:
            return
        for task in actor.log:
            self._dispatch.add(task, successor, replayed=True)
        for task in unanswered:
            task.process = None
            if task not in given_up:
                self._dispatch.add(task, successor)
        for task, error in given_up.items():  # last, so that no later call overtakes those above
            self._tasks.fail(task, error)
        # First the calls are handled that went directly to the dead process.
        self._loop.post(self._allow_direct_calls, actor)

    def _given_up(self, actor: Actor, death: ActorDiedError) -> dict[TaskSpec, BaseException]:
        """Counts a crash for the calls that were running; returns errors of those not run again."""
        given_up: dict[TaskSpec, BaseException] = {}
        for task in actor.begun():
            if self._live.get(task.id) is not task:
                continue
            task.retries += 1
            if task.state == CANCELLED:  # what it had done is not known
                given_up[task] = cancelled_error(task)
            elif 0 <= (limit := actor.retries(task)) < task.retries:
                reason = ActorDiedError.given_up(task.name, limit)
                given_up[task] = dataclasses.replace(death, reason=reason)
        return given_up

    def _allow_direct_calls(self, actor: Actor) -> None:
        with actor.sending:
            actor.unsent_calls -= 1

    def _end(
        self, actor: Actor, exited: Exited, reason: str, cause: BaseException | None = None
    ) -> None:
        objects, tasks, slot = self._objects, self._tasks, actor.creation.slots[0]
        failed_slot = slot if slot.failed else actor.rebuilding_failed
        if cause is None and failed_slot is not None:
            error = failed_slot.error()
            cause = error if isinstance(error, TaskError) else None
        death = actor.death_by(exited, reason, cause)
        actor.die(death)
        if actor.process is not None:
            actor.process.remove_log()
        # Its name and process are in the row.
        self._record(actor, "dead", death.how() if cause is None else str(death).splitlines()[0])
        self._free_name(actor)
        if actor.is_scheduled:
            self._tell(ActorGone(actor.id))
        calls = [*actor.unanswered.values(), *actor.backlog]
        calls += [task for queue in actor.waiting.values() for task in queue]
        actor.unanswered, actor.waiting = {}, {}
        actor.backlog.clear()
        if not slot.done:
            objects.fail(slot, None, actor.death())
        tasks.live.pop(actor.creation.id, None)
        actor.creation.keep = None  # it is not built again, so its memfds may go
        has_references = (slot.id in objects.slots for task in calls for slot in task.slots)
        actor.death_seen = actor.death_seen or any(has_references)
        for task in calls:
            tasks.fail(task, actor.death())
        while actor.log:
            tasks.let_go(actor.log.popleft())
        objects.holder_gone(("actor", actor.id))
        objects.holder_gone(("task", actor.id))  # what __init__ was called with, and called
        actor.death_slot.resolve(actor.death())
        if actor.unreferenced:
            self._driver.unretrieved.died(actor)
        self.forget(actor)

    def _free_name(self, actor: Actor) -> None:
        if actor.registered and self.names.get(actor.registered) is actor:
            del self.names[actor.registered]

    def forget(self, actor: Actor) -> None:
        """Drops a dead actor that nobody will ask about any more."""
        if actor.dead and not actor.records and not self._objects.references.held(actor.id):
            self.table.pop(actor.id, None)

    def ask(self, actor: Actor, kind: Kind, reason: str) -> None:
        """Sends ASK_STOP, which is repeated to a replacement of the process, or CLOSE."""
        if actor.dead:
            return
        actor.stop_requested = True
        if kind == Kind.CLOSE:
            actor.end_reason = actor.end_reason or reason
        if actor.process is not None:
            self._loop.send(actor.process.urgent, framing.frame(kind, 0))
        elif kind == Kind.CLOSE:
            self.end_unstarted(actor, actor.end_reason)

    def signal(self, actor: Actor, number: int, reason: str, restart: bool = False) -> None:
        """Signals the actor's process group, unless it has ended; for good, unless `restart`."""
        if actor.dead or self._spawner.broken:
            return
        if not restart:
            actor.end_reason = actor.end_reason or reason
        if actor.process is None:
            if not restart or not actor.options.max_restarts:
                self.end_unstarted(actor, reason)
        else:
            actor.process.end_reason = reason
            self._spawner.signal(actor.process, number)

    def cannot_build(self, actor: Actor, task: TaskSpec, error: BaseException) -> None:
        """Ends an actor whose creation, or a call that restores its state, cannot be sent."""
        reason = f"it could not be built, as {task.name} cannot be run: {error}"
        self.signal(actor, signal.SIGKILL, reason)

    def end_unstarted(self, actor: Actor, reason: str, cause: BaseException | None = None) -> None:
        """Ends an actor that has no process."""
        self._end(actor, Exited(None, None, time.monotonic()), reason, cause)

    def unreferenced(self, id: bytes) -> None:
        """Ends an actor, as no process, call or object has a handle to it any more."""
        actor = self.table.get(id)
        if actor is None:
            return
        actor.unreferenced = True
        if actor.dead:
            self._driver.unretrieved.died(actor)
            self.forget(actor)
        else:
            self._maybe_end(actor)

    def _maybe_end(self, actor: Actor) -> None:
        """Ends an actor without handles once it has answered all of its calls."""
        busy = actor.unanswered or actor.backlog or actor.waiting
        if self._objects.references.held(actor.id):  # somebody has looked it up by name since
            return
        if actor.unreferenced and not busy and not actor.dead and not actor.end_reason:
            actor.end_reason = NOBODY
            self._free_name(actor)
            if actor.process is None:
                self.end_unstarted(actor, actor.end_reason)
            else:
                self._loop.send(actor.process.urgent, framing.frame(Kind.CLOSE, 0))

    def _record(self, actor: Actor, state: str, reason: str = "") -> None:
        actor.state = state
        self._gcs.put(actor.row(reason))
