"""The driver's table of tasks: submitted, run, answered, begun again, made again when lost."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.runtime import ids
from gmi_drl.runtime.api.refs import PENDING, Slot
from gmi_drl.runtime.errors import OutOfResources, TaskCancelledError, WorkerDiedError
from gmi_drl.runtime.gcs.tables import TaskRow
from gmi_drl.runtime.scheduler.scheduler import Blocked, Cancelled, Finished, Returned, Submitted
from gmi_drl.runtime.wire import framing, packing
from gmi_drl.runtime.wire.protocol import STAMP, CallFailure, Kind, Place

from . import task as states
from .dispatch import Handing
from .lineage import Lineage
from .task import STREAMING, Task

if TYPE_CHECKING:
    from .engine import Engine
    from .link import Process

_LOOKED_AT: Final = 20_000  # at a time, of the tasks that the control store may not know of


def failure_of(error: BaseException) -> bytes:
    """An error of the runtime's own, packed as a CallFailure: it arrives as what it is."""
    return packing.pack(CallFailure(packing.pack_exception(error), "", 0.0)).body


def _cancelled(task: Task) -> TaskCancelledError:
    return TaskCancelledError(f"{task.name} was cancelled")


class Tasks:
    """Every task that is not over. Used by the runtime's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.handing = Handing(engine)
        self.lineage = Lineage(engine)
        self.live: dict[bytes, Task] = {}
        self.num_done = 0
        self._callers: set[bytes] = set()  # tasks that hold the results of what they called

    def submit(self, task: Task, caller: int, device: int) -> None:
        """A call was made, by the process `caller`."""
        objects = self._engine.objects
        if caller and (known := self._known(task)) is not None:
            self._again(known, caller)  # whoever called it was run again
            return
        if not task.slots:
            task.slots = self.slots_of(task)
        task.caller, task.device = caller, device
        task.retries = task.options.max_retries if not task.actor else 0
        for slot in task.slots:
            objects.add(slot)
            if caller:
                objects.hold(slot.id, ("process", caller))
            else:
                slot.held += 1
                objects.hold(slot.id, 0)
        if task.actor and task.parent in self.live:
            self._callers.add(task.parent)
        logged = task.parent and self._engine.actors.is_logged(caller)
        if task.parent in self._callers or logged:
            # It must be known again when its caller is run again.
            for slot in task.slots:
                objects.hold(slot.id, ("task", task.parent))
        self.begin(task)
        parent = self._parent(task, caller)
        if parent is not None and parent.state == states.CANCELLED and task.id in self.live:
            self._cancel(task, False)

    def _parent(self, task: Task, caller: int) -> Task | None:
        """What has called it, if that still runs.

        Also one that is over for us: cancelled as not begun, or as one of several, while its
        process was at it.
        """
        parent, process = self.live.get(task.parent), self._engine.processes.get(caller)
        if parent is not None or process is None:
            return parent if caller else None
        return next((call for call in process.calls.values() if call.id == task.parent), None)

    def sent(self, task: Task, process: Process, number: int) -> None:
        """A method was called, and the call is on its way to the actor already."""
        actor = process.actor
        assert actor is not None
        if process.dead or actor.process is not process:  # it ended meanwhile
            with actor.sending:
                actor.indirect += 1
            self.submit(task, 0, 0)
            return
        objects = self._engine.objects
        for slot in task.slots:
            objects.add(slot)
            slot.held += 1
            objects.hold(slot.id, 0)
        self.live[task.id] = task
        self._engine.actors.sent(actor, task)
        self.runs(task, process, number)

    def begin(self, task: Task) -> None:
        """It may run as soon as its inputs are there."""
        objects = self._engine.objects
        self.live[task.id] = task
        if task.inputs or task.refs or task.body_id:
            holder = ("task", task.id)
            for id in task.refs:
                objects.hold(id, holder)
            if task.body_id:
                objects.hold(task.body_id, holder)
            for id in task.inputs:
                objects.hold(id, holder)
                slot = objects.slots.get(id) or self.lineage.wanted(id)
                if slot.state == PENDING:
                    self.await_input(task, slot)
                elif slot.failed:
                    self.fail(task, slot.error())
                    return
        if task.actor:
            self._engine.actors.call(task)
        elif not task.missing:
            self.queue(task)

    def await_input(self, task: Task, slot: Slot) -> None:
        """It cannot begin before this is there."""
        task.missing += 1
        if slot.waiting is None:
            slot.waiting = []
        slot.waiting.append(task)

    def _known(self, task: Task) -> Task | None:
        """The same call, if it was made before and its results are there, or are to come."""
        live = self.live.get(task.id)
        if live is not None:
            return live
        slots = [self._engine.objects.slots.get(id) for id in task.result_ids()]
        if any(slot is None or slot.task is None for slot in slots):
            return None
        return slots[0].task  # type: ignore[union-attr]

    def slots_of(self, task: Task) -> list[Slot]:
        """Its results' slots: those that somebody has already, and new ones."""
        known = self._engine.objects.slots
        return [known.get(id) or Slot(id, task.name, task) for id in task.result_ids()]

    def _again(self, known: Task, caller: int) -> None:
        """Its results are the caller's, too; they may have been dropped with who called before."""
        objects = self._engine.objects
        for slot in known.slots[: max(1, known.returns)]:
            if slot.id not in objects.slots:
                objects.add(slot)
            objects.hold(slot.id, ("process", caller))

    def input_there(self, task: Task, slot: Slot) -> None:
        """One input less to wait for."""
        if task.id not in self.live:
            return
        if slot.failed:
            self.fail(task, slot.error())
            return
        task.missing -= 1
        if not task.missing:
            if task.actor:
                self._engine.actors.ready(task)
            else:
                self.queue(task)

    def queue(self, task: Task) -> None:
        """The scheduler may have it run."""
        if self._engine.broken:
            self.fail(task, self._engine.gone())
            return
        task.state = states.QUEUED
        self._engine.schedule(self.submitted(task))

    def submitted(self, task: Task) -> Submitted:
        """What the scheduler is told of it."""
        function, pinned = task.function, task.options.device
        return Submitted(task.id, function, task.device, task.demand, (), pinned)  # type: ignore[arg-type]

    # On processes.

    def run(self, task_id: bytes, process: Process) -> None:
        """The scheduler has chosen a worker."""
        task = self.live.get(task_id)
        if task is not None:
            if "GPU" in task.demand and not process.calls and not process.to_send:
                gpus = self._engine.gpus
                process.gpu_ids = gpus.choose(process.device, task.demand["GPU"])
            self.handing.hand(task, process)
        else:  # it was cancelled meanwhile
            self._engine.defer(lambda: self.handing.left_out(task_id, process))

    def runs(self, task: Task, process: Process, number: int) -> None:
        """A process has it now, as this call."""
        process.calls[number] = task
        task.partial = []
        task.process, task.number, task.state = process, number, states.RUNNING
        task.pid, task.device = process.pid or 0, process.device
        task.started_s = time.time()
        task.attempts += 1

    # Answers.

    def answered(self, process: Process, message: framing.Message) -> None:
        """A call is over, well or not."""
        task = process.calls.pop(message.id, None)
        if task is None:
            return
        body = message.body
        started_s, run_s = STAMP.unpack_from(body)
        task.started_s, task.finished_s = started_s, started_s + run_s
        task.pid = process.pid or 0
        task.process = None
        failed = message.kind == Kind.ERROR
        if process.to_send and not process.calls:
            self._engine.defer(lambda: self.handing.proceed(process))
        if not task.actor:
            self._engine.schedule(Finished(task.id, process.number, run_s))
            if self.live.get(task.id) is not task:  # it was cancelled
                self._drop_results(task, process)
                return
            if failed and self._wants_retry(task, body):
                self._drop_results(task, process)
                task.retries -= 1
                task.failures += 1  # what it calls then is called anew
                self._requeue(task)
                return
        elif not self._engine.actors.answered(
            process, task, bytes(body[STAMP.size :]) if failed else None
        ):  # run again to rebuild the actor: its answer was given long ago; or cancelled
            self._drop_results(task, process)
            return
        if failed:
            for index, place, refs in task.partial:
                self._settle(task.slots[index], place, refs, process)
            task.partial = []
            cancelled = task.state == states.CANCELLED
            state = states.CANCELLED if cancelled else states.FAILED
            self._finish(task, state, body[STAMP.size :])
        elif message.kind == Kind.RESULT:
            slot = task.slots[0]
            if slot.state == PENDING:
                keep = message if message.fds else None
                self._engine.objects.settle(slot, body[STAMP.size :], (), keep)
            self._finish(task, states.FINISHED)
        else:
            results = pickle.loads(memoryview(body)[STAMP.size :])
            for slot, (place, refs) in zip(task.slots, results, strict=True):
                self._settle(slot, place, refs, process)
            self._finish(task, states.FINISHED)

    def _settle(self, slot: Slot, place: Place, refs: Sequence[bytes], process: Process) -> None:
        if isinstance(place, bytes):
            if slot.state == PENDING:
                wanted = slot.id in self._engine.objects.slots
                self._engine.objects.settle(slot, place, refs if wanted else (), None)
            return
        process.creating.discard(slot.id)
        if slot.state == PENDING and slot.id in self._engine.objects.slots:
            self._engine.objects.settle(slot, None, refs, None)
        else:
            self._engine.objects.abandon(slot.id)

    def _drop_results(self, task: Task, process: Process) -> None:
        """Frees what an answer that nobody waits for has been written to."""
        for slot in task.slots:
            if slot.id in process.creating:
                process.creating.discard(slot.id)
                self._engine.objects.abandon(slot.id)

    def item(self, process: Process, message: framing.Message) -> None:
        """A generator has yielded."""
        task = process.calls.get(message.id)
        if task is None:
            return
        index, place, refs = pickle.loads(message.body)
        if task.returns != STREAMING:  # it has raised after this one, and may be begun again
            task.partial.append((index, place, refs))
            return
        objects, end = self._engine.objects, task.slots[0]
        slot = objects.slots.get(ids.result(task.id, index))
        if slot is None:
            slot = Slot(ids.result(task.id, index), task.name, task)
            if end.id in objects.slots:  # else nobody wants any
                objects.add(slot)
        slot.task = task
        if index == len(task.slots):
            task.slots.append(slot)
        else:  # the generator is run again
            task.slots[index] = slot
        if end.id in objects.slots:
            objects.hold(slot.id, end.id)
        if isinstance(place, bytes) and message.fds:
            objects.settle(slot, place, refs, message)
        else:
            self._settle(slot, place, refs, process)

    def _wants_retry(self, task: Task, body: bytes) -> bool:
        wanted = task.options.retry_exceptions
        if not wanted or not task.retries or task.state == states.CANCELLED:
            return False
        if wanted is True:
            return True
        failure = packing.unpack(body[STAMP.size :])
        return isinstance(packing.unpack_exception(failure.cause), tuple(wanted))

    def _finish(self, task: Task, state: str, failure: bytes | None = None) -> None:
        objects = self._engine.objects
        if failure is not None:
            for slot in task.slots:
                if slot.state == PENDING:
                    objects.fail(slot, failure)
        self._over(task, state)

    def fail(self, task: Task, error: BaseException | None) -> None:
        """It will not be run, or not again."""
        if self.live.get(task.id) is not task:
            return
        for slot in task.slots:
            if slot.state == PENDING:
                self._engine.objects.fail(slot, None, error)
        self._over(
            task, states.CANCELLED if isinstance(error, TaskCancelledError) else states.FAILED
        )
        self._engine.objects.holder_gone(("task", task.id))
        if task.actor:
            self._engine.actors.skipped(task)

    def _over(self, task: Task, state: str) -> None:
        task.state = state
        self.num_done += 1
        self.live.pop(task.id, None)
        if state == states.FAILED:  # perhaps when its references are gone already
            self._engine.unasked.dropped(task)
        self._engine.gcs.put(self.row(task))
        holds = task.inputs or task.refs or task.body_id or task.id in self._callers
        if holds and not self._engine.actors.keeps(task):
            self.let_go(task)

    def let_go(self, task: Task) -> None:
        """It will not be run again: what it was called with, and has called, may go."""
        self._callers.discard(task.id)
        self._engine.objects.holder_gone(("task", task.id))

    def record(self) -> None:
        """Lets the control store know of those that are not over, the longest waiting first."""
        for task in itertools.islice(self.live.values(), _LOOKED_AT):
            if task.recorded is not task.state:
                task.recorded = task.state
                self._engine.gcs.put(self.row(task))

    def row(self, task: Task) -> TaskRow:
        """The task as the control store keeps it."""
        function, device = task.function, max(task.device, 0)
        state = states.WAITING if task.state == states.QUEUED else task.state
        again = None if task.actor else task  # a method is run again by its actor's log alone
        return TaskRow(
            task.id, task.kind, task.name, task.parent, task.actor, task.sequence,
            function if isinstance(function, bytes) else b"", b"".join(task.inputs),
            task.returns, again, state, device, task.pid,  # type: ignore[arg-type]
            task.submitted_s, task.started_s, task.finished_s, task.attempts, "",
        )  # fmt: skip

    # What goes wrong.

    def process_gone(self, process: Process, error: WorkerDiedError) -> None:
        """A worker died: the task it ran is begun again, if it may be; the others always."""
        calls, process.calls = list(process.calls.values()), {}
        given: list[Task] = [*calls, *(entry.task for entry in process.to_send)]
        process.to_send.clear()
        for number, task in enumerate(given):
            task.process = None
            if self.live.get(task.id) is not task:
                continue
            if number == 0 and calls:
                if task.state == states.CANCELLED:
                    self.fail(task, _cancelled(task))
                    continue
                if self._engine.broken:
                    self.fail(task, self._engine.gone())
                    continue
                lost = process.never_forked or self._engine.losses.takes(process)
                if not task.retries and not lost:
                    error.call, error.attempts = task.name, task.attempts
                    self.fail(task, error)
                    continue
                task.retries -= not lost
                self._keep_calls(process, task)
                self._engine.event("task retried", task.id, str(error).splitlines()[0])
            else:
                task.attempts = max(0, task.attempts - 1)
            self._requeue(task)

    def _keep_calls(self, process: Process, task: Task) -> None:
        """What it had called is not to be run again with it."""
        objects = self._engine.objects
        for id in objects.lifetimes.keys(("process", process.number)):
            slot, actor = objects.slots.get(id), self._engine.actors.table.get(id)
            made = actor.creation if actor is not None else slot.task if slot is not None else None
            if made is not None and made.parent == task.id:
                self._callers.add(task.id)
                objects.hold(id, ("task", task.id))

    def _requeue(self, task: Task) -> None:
        task.device = max(task.device, 0)
        self.queue(task)

    def fail_queued(self, error: BaseException) -> None:
        """Those that wait for a worker will get none."""
        for task in list(self.live.values()):
            if task.state == states.QUEUED and not task.actor:
                self._engine.schedule(Cancelled(task.id))
                self.fail(task, error)

    def infeasible(self, task_id: bytes, reason: str) -> None:
        """No device can run it."""
        task = self.live.get(task_id)
        if task is not None:
            self.fail(task, OutOfResources(reason))

    def returned(self, process: Process, numbers: Sequence[int]) -> None:
        """Calls that a worker had not begun come back."""
        tasks = [task for number in numbers if (task := process.calls.pop(number, None))]
        for task in tasks:
            task.process = None
            if self.live.get(task.id) is not task:
                continue
            if task.state == states.CANCELLED:
                self.fail(task, _cancelled(task))
            else:
                task.attempts -= 1
                task.state = states.QUEUED
        self._engine.schedule(Returned(process.number, tuple(task.id for task in tasks)))
        for task in tasks:
            if self.live.get(task.id) is not task:
                self._engine.schedule(Cancelled(task.id))

    def cancel(self, id: bytes, force: bool) -> None:
        """Takes a task back that has not begun; interrupts, or kills, one that runs."""
        slot = self._engine.objects.slots.get(id)
        task = slot.task if slot is not None else None
        if task is None or self.live.get(task.id) is not task:
            return
        self._cancel(task, force)

    def _cancel(self, task: Task, force: bool) -> None:
        task.retries = 0
        process = task.process
        if process is None:
            if task.state == states.QUEUED:
                self._engine.schedule(Cancelled(task.id))
            self.fail(task, _cancelled(task))
        elif next(iter(process.calls.values())) is not task:  # not begun, or one of several
            self._interrupt(task, process)
            self.fail(task, _cancelled(task))
        else:
            task.state = states.CANCELLED
            if force and not task.actor:
                self._engine.spawner.kill_process(process, f"{task.name} was cancelled")
            else:
                self._interrupt(task, process)
        if task.attempts:
            for child in [other for other in self.live.values() if other.parent == task.id]:
                if self.live.get(child.id) is child:
                    self._cancel(child, force)

    def _interrupt(self, task: Task, process: Process) -> None:
        process.urgent.queue(framing.frame(Kind.CANCEL, task.number))
        self._engine.write(process.urgent)

    # Waiting.

    def wants(self, process: Process, wanted: Sequence[bytes], values: bool) -> None:
        """A process asks for objects; one whose call must wait for them gives its CPUs back."""
        waits = False
        for id in wanted:
            slot = self._engine.objects.slots.get(id) or self.lineage.wanted(id)
            if slot.state == PENDING:
                if slot.seekers is None:
                    slot.seekers = []
                if (process, values) not in slot.seekers:
                    slot.seekers.append((process, values))
                process.wanted.add(id)
                waits = True
            else:
                process.found(slot, values)
        if waits and not process.blocked:
            process.blocked = True
            self._engine.schedule(Blocked(process.scheduled_as))


__all__ = ["STREAMING", "Tasks", "failure_of"]
