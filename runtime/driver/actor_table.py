"""The driver's table of actors: their calls in order, their log, and how they come back.

The calls of one caller reach an actor in the order they were made; a call whose inputs are not
there yet holds up that caller's later ones and nobody else's, and none if the actor runs several
calls at once. An actor that may be restarted and
runs one call at a time keeps a log: the calls it has answered since its last checkpoint. When its
process dies, a new one is built (from the checkpoint, if there is one), runs the logged calls again
to be what it was, their answers being known, and then those that were not answered: the stateful
edges of the Ray paper, figure 4.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any

from gmi_drl.runtime import ids
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.errors import (
    ActorDiedError,
    ForkServerError,
    NameTakenError,
    OutOfResources,
    TaskError,
)
from gmi_drl.runtime.gcs.tables import ActorRow
from gmi_drl.runtime.process.logs import log_tail
from gmi_drl.runtime.scheduler.scheduler import ActorGone, ActorSubmitted
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Build, Exited, Kind, Place

from .actor import Actor
from .link import Process
from .task import CANCELLED, Task
from .unretrieved_errors import NOBODY

if TYPE_CHECKING:
    from .engine import Engine


class Actors:
    """Every actor that lives, or has records nobody fetched. The runtime's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.table: dict[bytes, Actor] = {}
        self.names: dict[tuple[str, str], Actor] = {}  # by namespace and name

    def add(self, actor: Actor, caller: int) -> None:
        """A new actor was asked for."""
        engine = self._engine
        known = self.table.get(actor.id, actor)
        if known is not actor and not known.dead:  # whoever asked was run again
            engine.objects.hold(actor.id, ("process", caller))
            return
        if actor.registered:
            if actor.registered in self.names:
                raise NameTakenError(
                    f"name={actor.name!r}: an actor that lives has this name. Choose another one, "
                    "or get its handle by get_actor() or with get_if_exists=True."
                )
            self.names[actor.registered] = actor
        self.table[actor.id] = actor
        if actor.creation.parent and self.is_logged(
            caller
        ):  # it must be known again when its caller is run again
            engine.objects.hold(actor.id, ("task", actor.creation.parent))
        if caller:
            engine.objects.hold(actor.id, ("process", caller))
        else:
            actor.held += 1
            engine.objects.hold(actor.id, 0)
        creation = actor.creation
        creation.slots = [Slot(ids.result(creation.id), f"{actor.name}.__init__", creation)]
        creation.actor = actor.id
        engine.objects.add(creation.slots[0])
        engine.objects.hold(creation.slots[0].id, ("actor", actor.id))
        for id in (*creation.refs, *creation.inputs, *filter(None, (creation.body_id,))):
            engine.objects.hold(id, ("actor", actor.id))
        self._record(actor, "starting")
        if actor.wants_place:
            engine.schedule(ActorSubmitted(actor.id, 0, actor.demand, actor.options.device))
        else:
            actor.device = 0
        engine.tasks.begin(creation)

    def named(self, namespace: str, name: str) -> tuple[Any, ...]:
        """What a handle of the living actor of this name is made of."""
        actor = self.names.get((namespace, name))
        if actor is None:
            known = ", ".join(sorted(name for where, name in self.names if where == namespace))
            raise ValueError(
                f"no actor is named {name!r} in namespace {namespace!r}. There are: "
                f"{known or 'none'}."
            )
        return actor.id, actor.name, actor.class_name, actor.methods

    def start(self, id: bytes, device: int) -> None:
        """It may take its place on a device."""
        actor = self.table.get(id)
        if actor is not None and not actor.dead:
            actor.device = device
            if wanted := actor.demand.get("GPU"):
                actor.gpu_ids = self._engine.gpus.choose(device, wanted)
            self._start(actor)

    def _start(self, actor: Actor) -> None:
        """As soon as it has its place and what `__init__` is called with."""
        if actor.device < 0 or actor.creation.missing or actor.process is not None:
            return
        if not self._spawn(actor):
            return
        while actor.backlog:
            task = actor.backlog.popleft()
            if self._engine.tasks.live.get(task.id) is task:  # else cancelled
                self._hand(actor, task)
        self._engine.post(self._may_go_straight, actor)

    def infeasible(self, id: bytes, reason: str) -> None:
        """No device has what it wants."""
        actor = self.table.get(id)
        if actor is not None:
            error = OutOfResources(reason)
            self._end(actor, Exited(None, None, time.monotonic()), reason, error)

    def _spawn(self, actor: Actor) -> bool:
        """Gives it a process; False if there can be none, and it has ended with that."""
        engine, options, creation = self._engine, actor.options, actor.creation
        with actor.sending:
            actor.indirect += 1  # nothing goes straight before what the process is built from
        try:
            keep_log = options.log is not None
            process = engine.spawner.spawn(actor.request, keep_log, actor.device, actor)
        except ForkServerError as error:
            self._end(actor, Exited(None, None, time.monotonic()), str(error))
            return False
        actor.process = process
        if actor.asked:
            process.urgent.queue(framing.frame(Kind.ASK_STOP, 0))
            engine.write(process.urgent)
        slot = actor.checkpoint_slot
        state = bytes(slot.body) if slot is not None else b""
        build = Build(
            process.number, actor.device, engine.namespace, actor.id, actor.name,
            actor.setup, actor.cls, options.max_concurrency or 1, options.checkpoint_every,
            actor.restarts, state, actor.checkpoint, actor.demand, actor.gpu_ids,
            options.concurrency_groups, options.max_task_retries,
        )  # fmt: skip
        process.send(Kind.BUILD, 0, build)
        engine.tasks.handing.hand(creation, process)
        return True

    # Calls.

    def call(self, task: Task) -> None:
        """A method was called; it goes to the actor when its inputs are there, in its turn."""
        actor = self.table.get(task.actor)
        if actor is not None and task is actor.creation:
            self._start(actor)
            return
        if actor is None or actor.dead:
            if actor is not None:
                actor.told = True
            self._engine.tasks.fail(task, actor.death() if actor is not None else _gone(task.name))
            return
        line = actor.line(task)
        queue = actor.waiting.get(line)
        if queue is None and not task.missing:
            self._hand(actor, task)
            return
        if queue is None:
            queue = actor.waiting[line] = collections.deque()
        queue.append(task)

    def ready(self, task: Task) -> None:
        """A method's inputs have come."""
        actor = self.table[task.actor]
        if task is actor.creation:
            self._start(actor)
        else:
            self._advance(actor, actor.line(task))

    def skipped(self, task: Task) -> None:
        """A method will not be run after all."""
        actor = self.table.get(task.actor)
        if actor is not None and task is actor.creation:
            if actor.process is None:
                error = task.slots[0].error()
                self._end(actor, Exited(None, None, time.monotonic()), "", error)
        elif actor is not None and not actor.dead:
            self.passed_on(task, actor)
            actor.unanswered.pop(task.sequence, None)
            self._advance(actor, actor.line(task))
            self._maybe_end(actor)

    def _advance(self, actor: Actor, line: int | bytes) -> None:
        queue = actor.waiting.get(line)
        live = self._engine.tasks.live
        while queue and not (queue[0].missing and live.get(queue[0].id) is queue[0]):
            task = queue.popleft()
            if live.get(task.id) is task:  # else one of its inputs failed, or it was cancelled
                self._hand(actor, task)
        if queue is not None and not queue:
            del actor.waiting[line]

    def _hand(self, actor: Actor, task: Task) -> None:
        if actor.process is None:
            actor.backlog.append(task)
            return
        self.sent(actor, task)
        self._engine.tasks.handing.hand(task, actor.process)

    def passed_on(self, task: Task, actor: Actor) -> None:
        """A call of the driver is on its way, or never will be: the next may go straight."""
        if not task.caller and not task.attempts and task is not actor.creation:
            with actor.sending:
                actor.indirect -= 1

    def sent(self, actor: Actor, task: Task) -> None:
        """One more call in the actor's order."""
        actor.sequence += 1
        task.sequence = actor.sequence
        task.device = actor.device
        actor.unanswered[task.sequence] = task

    def answered(self, process: Process, task: Task, failure: bytes | None) -> bool:
        """Whether this answer is to be passed on: not if it was given before the crash."""
        actor = process.actor
        assert actor is not None
        if task is actor.creation:
            if not task.slots[0].done:
                self._built(actor)
                return True
            if failure is not None:  # it would not be built another time either
                actor.rebuilding_failed = Slot(b"", task.name)
                actor.rebuilding_failed.fill(failure, failed=True)
            else:
                self._built(actor)
            return False
        actor.unanswered.pop(task.sequence, None)
        if self._engine.tasks.live.get(task.id) is not task:  # replayed, or cancelled
            return False
        # What a call had done when it was cancelled is not known: it is not run again.
        if actor.logs and not (failure is not None and task.state == CANCELLED):
            actor.log.append(task)
        if actor.unwanted and not actor.unanswered:
            self._engine.defer(lambda: self._maybe_end(actor))
        return True

    def _built(self, actor: Actor) -> None:
        if not actor.creation.slots[0].failed:
            self._record(actor, "alive")

    def keeps(self, task: Task) -> bool:
        """Whether a call that was answered may have to be run again, with its inputs."""
        actor = self.table.get(task.actor) if task.actor else None
        logged = actor is not None and actor.logs and not actor.dead
        return logged and task.state != CANCELLED

    def is_logged(self, caller: int) -> bool:
        """Whether what this process calls must be known again when it is run again."""
        process = self._engine.processes.get(caller)
        return process is not None and process.actor is not None and process.actor.logs

    def checkpointed(
        self, process: Process, sequence: int, place: Place, refs: list[bytes]
    ) -> None:
        """An actor has saved its state: the calls before need not be run again."""
        actor, objects = process.actor, self._engine.objects
        if actor is None:
            return
        slot = Slot(ids.result(actor.id, sequence), f"a checkpoint of {actor.name}")
        objects.add(slot)
        before, actor.checkpoint_slot = actor.checkpoint_slot, slot
        objects.hold(slot.id, ("actor", actor.id))
        process.creating.discard(slot.id)
        objects.settle(slot, place if isinstance(place, bytes) else None, refs, None)
        if before is not None:
            objects.release(before.id, ("actor", actor.id))
        actor.checkpoint = sequence
        while actor.log and actor.log[0].sequence <= sequence:
            self._engine.tasks.let_go(actor.log.popleft())
        self._record(actor, "alive")

    # Ends.

    def process_gone(self, process: Process, exited: Exited) -> None:
        """An actor's process has ended: it comes back, or that was all of it."""
        actor = process.actor
        assert actor is not None
        if actor.process is not process or actor.dead:
            return
        creation_failed = actor.creation.slots[0].failed or actor.rebuilding_failed is not None
        spent = 0 <= actor.options.max_restarts <= actor.restarts and not process.never_forked
        on_purpose = bool(actor.end_reason) or exited.exit_code == 0
        if creation_failed or on_purpose or spent or self._engine.broken:
            self._end(actor, exited, actor.end_reason or process.end_reason or self._engine.broken)
            return
        given_up: list[Task] = []
        if not process.never_forked:
            death = self._died(actor, exited, process.end_reason, None)
            actor.deaths.append(death)
            actor.restarts += 1
            self._engine.event("actor restarted", actor.id, str(death).splitlines()[0])
            self._record(actor, "restarting")
            running = self._running(actor, process)
            given_up = [task for task in running if not self._retries(actor, task)]
        calls = [task for task in process.calls.values() if task is not actor.creation]
        calls += [entry.task for entry in process.to_send if entry.task is not actor.creation]
        process.calls, process.to_send = {}, collections.deque()
        live = self._engine.tasks.live
        unanswered = sorted(
            (task for task in calls if live.get(task.id) is task), key=lambda task: task.sequence
        )
        if not self._spawn(actor):
            return
        assert actor.process is not None
        for task in actor.log:
            self._engine.tasks.handing.hand(task, actor.process, replayed=True)
        for task in unanswered:
            if task not in given_up:
                self._engine.tasks.handing.hand(task, actor.process)
        for task in given_up:  # now that nothing which this sets free can overtake the others
            error = ActorDiedError(*death.fields())
            error.reason = (
                f"{task.name} was running, and max_task_retries={actor.retries(task)} of it are "
                "used up. The actor was restarted, and goes on without this call"
            )
            self._engine.tasks.fail(task, error)
        # Not before the calls are seen to that went straight to the dead one.
        self._engine.post(self._may_go_straight, actor)

    def _running(self, actor: Actor, process: Process) -> list[Task]:
        """Calls that a dead process may have begun, and that are still to be answered."""
        calls = list(process.calls.values())
        if actor.creation in calls:
            return []
        free = {"": actor.options.max_concurrency or 1, **actor.options.concurrency_groups}
        live = self._engine.tasks.live
        running = []
        for task in calls:
            group = actor.group(task)
            if free[group]:
                free[group] -= 1
                if live.get(task.id) is task:
                    running.append(task)
        return running

    def _retries(self, actor: Actor, task: Task) -> bool:
        """Whether a call that was running at a crash is run again; counts it."""
        task.retries += 1
        return actor.retries(task) < 0 or task.retries <= actor.retries(task)

    def _may_go_straight(self, actor: Actor) -> None:
        with actor.sending:
            actor.indirect -= 1

    def _died(
        self, actor: Actor, exited: Exited, reason: str, cause: BaseException | None
    ) -> ActorDiedError:
        return ActorDiedError(
            actor.name, actor.pid, exited.exit_code, exited.signal, log_tail(actor.log_path),
            reason, cause, exited.died_s,
        )  # fmt: skip

    def _end(
        self, actor: Actor, exited: Exited, reason: str, cause: BaseException | None = None
    ) -> None:
        slot = actor.creation.slots[0]
        failed = slot if slot.failed else actor.rebuilding_failed
        if cause is None and failed is not None:
            error = failed.error()
            cause = error if isinstance(error, TaskError) else None
        death = self._died(actor, exited, reason, cause)
        actor.buried(death)
        objects, tasks = self._engine.objects, self._engine.tasks
        if actor.process is not None:
            actor.process.remove_log()
        # Its name and process are in the row.
        self._record(actor, "dead", death.how() if cause is None else str(death).splitlines()[0])
        self._free_name(actor)
        if actor.wants_place:
            self._engine.schedule(ActorGone(actor.id))
        calls = [*actor.unanswered.values(), *actor.backlog]
        calls += [task for queue in actor.waiting.values() for task in queue]
        actor.unanswered, actor.waiting = {}, {}
        actor.backlog.clear()
        if not slot.done:
            objects.fail(slot, None, actor.death())
        tasks.live.pop(actor.creation.id, None)
        actor.creation.keep = None  # it is not built again: memory it was given may go at once
        held = (slot.id in objects.slots for task in calls for slot in task.slots)
        actor.told = actor.told or any(held)
        for task in calls:
            tasks.fail(task, actor.death())
        while actor.log:
            tasks.let_go(actor.log.popleft())
        objects.holder_gone(("actor", actor.id))
        objects.holder_gone(("task", actor.id))  # what __init__ was called with, and called
        actor.death_slot.resolve(actor.death())
        if actor.unwanted:
            self._engine.unasked.died(actor)
        self.forget(actor)

    def _free_name(self, actor: Actor) -> None:
        """Another one may have its name."""
        if actor.registered and self.names.get(actor.registered) is actor:
            del self.names[actor.registered]

    def forget(self, actor: Actor) -> None:
        """Drops a dead actor that nobody will ask about any more."""
        if actor.dead and not actor.records and not self._engine.objects.lifetimes.held(actor.id):
            self.table.pop(actor.id, None)

    def ask(self, actor: Actor, kind: Kind, reason: str) -> None:
        """Sends ASK_STOP, which a process that takes its place is told too, or CLOSE."""
        if actor.dead:
            return
        actor.asked = True
        if kind == Kind.CLOSE:
            actor.end_reason = actor.end_reason or reason
        if actor.process is not None:
            actor.process.urgent.queue(framing.frame(kind, 0))
            self._engine.write(actor.process.urgent)
        elif kind == Kind.CLOSE:
            self.end_unstarted(actor)

    def signal(self, actor: Actor, number: int, reason: str, restart: bool = False) -> None:
        """Signals the actor's process group, unless it has ended; for good, unless `restart`."""
        if actor.dead or self._engine.broken:
            return
        if not restart:
            actor.end_reason = actor.end_reason or reason
        if actor.process is None:
            self.end_unstarted(actor)
        else:
            actor.process.end_reason = reason
            self._engine.spawner.signal(actor.process, number)

    def end_unstarted(self, actor: Actor) -> None:
        """Ends an actor that has no process."""
        if not actor.dead:
            self._end(actor, Exited(None, None, time.monotonic()), actor.end_reason)

    def count(self, id: bytes, change: int) -> None:
        """Handles in the driver."""
        actor = self.table.get(id)
        if actor is None:
            return
        actor.held += change
        if change > 0 and actor.held == 1:
            self._engine.objects.hold(id, 0)
        elif change < 0 and not actor.held:
            self._engine.objects.release(id, 0)

    def unreferenced(self, id: bytes) -> None:
        """No process, call or object has a handle of this actor any more."""
        actor = self.table.get(id)
        if actor is None:
            return
        actor.unwanted = True
        if actor.dead:
            self._engine.unasked.died(actor)
            self.forget(actor)
        else:
            self._maybe_end(actor)

    def _maybe_end(self, actor: Actor) -> None:
        busy = actor.unanswered or actor.backlog or actor.waiting
        if self._engine.objects.lifetimes.held(actor.id):  # it was found by its name since
            return
        if actor.unwanted and not busy and not actor.dead and not actor.end_reason:
            actor.end_reason = NOBODY
            self._free_name(actor)
            if actor.process is None:
                now = Exited(None, None, time.monotonic())
                self._end(actor, now, actor.end_reason)
            else:
                actor.process.urgent.queue(framing.frame(Kind.CLOSE, 0))
                self._engine.write(actor.process.urgent)

    def _record(self, actor: Actor, state: str, reason: str = "") -> None:
        actor.state = state
        self._engine.gcs.put(
            ActorRow(
                actor.id,
                actor.name,
                actor.class_name,
                state,
                actor.pid or 0,
                actor.device,
                actor.restarts,
                actor.options.max_restarts,
                actor.checkpoint,
                actor.created_s,
                time.time() if state == "dead" else 0.0,
                reason,
            )
        )


def _gone(name: str) -> ActorDiedError:
    return ActorDiedError(name.partition(".")[0], reason="it has ended, and nobody had its handle")
