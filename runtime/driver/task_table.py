"""Keeps the table of tasks: submitted, waiting for inputs, answered, failed, cancelled."""

from __future__ import annotations

import itertools
import pickle
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.runtime import ids
from gmi_drl.runtime.api.refs import PENDING, Slot
from gmi_drl.runtime.errors import TaskCancelledError
from gmi_drl.runtime.gcs.tables import TaskRow
from gmi_drl.runtime.scheduler.events import Cancelled, Finished, Submitted
from gmi_drl.runtime.wire import framing, packing
from gmi_drl.runtime.wire.protocol import STAMP, Kind, Place

from . import task as states
from .processes import Process
from .task import STREAMING, TaskSpec

if TYPE_CHECKING:
    from .driver import Driver

_MAX_CHECKED: Final = 20_000  # at a time, of the tasks that the control store may not know of


class TaskTable:
    """Holds every task that has not ended. Used by the runtime's thread only."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._loop, self._gcs = driver, driver.loop, driver.gcs
        self._tell, self._spawner = driver.tell, driver.spawner
        self._objects = driver.objects
        self.live: dict[bytes, TaskSpec] = {}  # by id
        self.num_done = 0
        self._callers: set[bytes] = set()  # tasks that hold the results of what they called

    def submit(self, task: TaskSpec, caller: int, device: int) -> None:
        """Adds a call that the process `caller` made."""
        if caller and (existing := self._existing(task)) is not None:
            self._hold_results(existing, caller)  # its caller was run again
            return
        if not task.slots:
            task.slots = self.slots_of(task)
        task.caller, task.device = caller, device
        task.retries = task.options.max_retries if not task.actor else 0
        for slot in task.slots:
            self._objects.add(slot, caller)
        if task.actor and task.parent in self.live:
            self._callers.add(task.parent)
        process = self._spawner.processes.get(caller) if caller else None
        if task.parent in self._callers or self.is_kept_for_caller(task, process):
            for slot in task.slots:
                self._objects.hold(slot.id, ("task", task.parent))
        self.begin(task)
        if caller and task.id in self.live and self._is_parent_cancelled(task, process):
            self._cancel(task, False)

    def is_kept_for_caller(self, task: TaskSpec, process: Process | None) -> bool:
        """Tells whether its caller, if it is run again, must find the same task, or actor."""
        is_logged = process is not None and process.is_logged and bool(task.parent)
        return is_logged and not self._is_parent_cancelled(task, process)

    def _is_parent_cancelled(self, task: TaskSpec, process: Process | None) -> bool:
        parent = self.live.get(task.parent)
        if parent is None and process is not None:
            # The parent has ended in this table, cancelled before it began or as one of several
            # calls, while its process still ran it.
            calls = process.calls.values()
            parent = next((call for call in calls if call.id == task.parent), None)
        return parent is not None and parent.state == states.CANCELLED

    def begin(self, task: TaskSpec) -> None:
        """Queues a task, or waits for its inputs first."""
        objects = self._objects
        self.live[task.id] = task
        if task.inputs or task.refs or task.body_id:
            holder = ("task", task.id)
            for id in task.refs:
                objects.hold(id, holder)
            if task.body_id:
                objects.hold(task.body_id, holder)
            for id in task.inputs:
                objects.hold(id, holder)
                slot = objects.slots.get(id) or self._driver.lineage.wanted(id)
                if slot.state == PENDING:
                    self.await_input(task, slot)
                elif slot.failed:
                    self.fail(task, slot.error())
                    return
        if task.actor:
            self._driver.actors.call(task)
        elif not task.missing:
            self.queue(task)

    def await_input(self, task: TaskSpec, slot: Slot) -> None:
        """Has a task wait for one more input."""
        task.missing += 1
        if slot.waiting is None:
            slot.waiting = []
        slot.waiting.append(task)

    def _existing(self, task: TaskSpec) -> TaskSpec | None:
        """Returns the same call if it was made before, and its results are known or pending."""
        existing = self.live.get(task.id)
        if existing is not None:
            return existing
        slots = [self._objects.slots.get(id) for id in task.result_ids()]
        if any(slot is None or slot.task is None for slot in slots):
            return None
        return slots[0].task  # type: ignore[union-attr]

    def slots_of(self, task: TaskSpec) -> list[Slot]:
        """Returns the slots of a task's results, existing or new."""
        slots = self._objects.slots
        return [slots.get(id) or Slot(id, task.name, task) for id in task.result_ids()]

    def _hold_results(self, task: TaskSpec, caller: int) -> None:
        """Counts a reference of `caller` to each result; they may have been dropped before."""
        for slot in task.slots[: max(1, task.returns)]:
            self._objects.slots.setdefault(slot.id, slot)
            self._objects.hold(slot.id, ("process", caller))

    def input_ready(self, task: TaskSpec, slot: Slot) -> None:
        """Notes that an input is ready, and begins the task after the last one."""
        if task.id not in self.live:
            return
        if slot.failed:
            self.fail(task, slot.error())
            return
        task.missing -= 1
        if not task.missing:
            if task.actor:
                self._driver.actors.ready(task)
            else:
                self.queue(task)

    def queue(self, task: TaskSpec) -> None:
        """Submits a task to the scheduler."""
        if self._spawner.broken:
            self.fail(task, self._spawner.unavailable())
            return
        try:
            task.unpack_options()
        except ValueError as error:
            self.fail(task, error)
            return
        task.state = states.QUEUED
        function, pinned_device = task.function, task.options.device
        assert isinstance(function, bytes)
        self._tell(Submitted(task.id, function, max(task.device, 0), task.demand, pinned_device))

    # Answers.

    def answered(self, process: Process, message: framing.Message) -> None:
        """Handles the answer of a call, a result or an error."""
        task = process.calls.pop(message.id, None)
        if task is None:
            return
        body = message.body
        started_s, run_s = STAMP.unpack_from(body)
        task.started_s, task.finished_s = started_s, started_s + run_s
        task.pid = process.pid or 0
        task.process = None
        failed = message.kind == Kind.ERROR
        if not task.actor:
            self._tell(Finished(task.id, process.number, run_s))
            if self.live.get(task.id) is not task:  # cancelled
                self._drop_results(task, process)
                return
            if failed and self._wants_retry(task, body):
                self._drop_results(task, process)
                task.retries -= 1
                task.failures += 1  # its calls get new ids
                self.queue(task)
                return
        elif not self._driver.actors.answered(
            process, task, bytes(body[STAMP.size :]) if failed else None
        ):  # cancelled, or run again to rebuild the actor and answered before
            self._drop_results(task, process)
            return
        if failed:
            for index, place, refs in task.partial:
                self._settle(task.slots[index], place, refs, process)
            task.partial = []
            self._drop_results(task, process)
            for slot in task.slots:
                if slot.state == PENDING:
                    self._objects.fail(slot, body[STAMP.size :])
            cancelled = task.state == states.CANCELLED
            self._finish(task, states.CANCELLED if cancelled else states.FAILED)
        elif message.kind == Kind.RESULT:
            slot = task.slots[0]
            if slot.state == PENDING:
                keep = message if message.fds else None
                self._objects.settle(slot, body[STAMP.size :], (), keep)
            self._finish(task, states.FINISHED)
        else:
            results = pickle.loads(memoryview(body)[STAMP.size :])
            for slot, (place, refs) in zip(task.slots, results, strict=True):
                self._settle(slot, place, refs, process)
            self._finish(task, states.FINISHED)

    def _settle(self, slot: Slot, place: Place, refs: Sequence[bytes], process: Process) -> None:
        if isinstance(place, bytes):
            if slot.state == PENDING:
                is_referenced = slot.id in self._objects.slots
                self._objects.settle(slot, place, refs if is_referenced else (), None)
            return
        process.creating.discard(slot.id)
        if slot.state == PENDING and slot.id in self._objects.slots:
            self._objects.settle(slot, None, refs, None)
        else:
            self._objects.abandon(slot.id)

    def _drop_results(self, task: TaskSpec, process: Process) -> None:
        """Frees the memory of an answer that nobody waits for."""
        for slot in task.slots:
            if slot.id in process.creating:
                process.creating.discard(slot.id)
                self._objects.abandon(slot.id)

    def item(self, process: Process, message: framing.Message) -> None:
        """Handles an item that a generator has yielded."""
        task = process.calls.get(message.id)
        if task is None:
            return
        index, place, refs = pickle.loads(message.body)
        if task.returns != STREAMING:  # if it raises later, it may be run again
            task.partial.append((index, place, refs))
            return
        objects, end = self._objects, task.slots[0]
        slot = objects.slots.get(ids.result(task.id, index))
        will_be_read = end.id in objects.slots and index > task.taken
        if slot is None:
            slot = Slot(ids.result(task.id, index), task.name, task)
            if will_be_read:
                objects.slots[slot.id] = slot
        slot.task = task
        if index == len(task.slots):
            task.slots.append(slot)
        else:  # the generator is run again
            task.slots[index] = slot
        if will_be_read:
            objects.hold(slot.id, end.id)
        if isinstance(place, bytes) and message.fds:
            objects.settle(slot, place, refs, message)
        else:
            self._settle(slot, place, refs, process)

    def taken(self, id: bytes, generator: bytes) -> None:
        """Releases a result of a generator to its one reader, who keeps it from here on."""
        end = self._objects.slots.get(generator)
        if end is not None and end.task is not None:
            end.task.taken = ids.index(id)
        self._objects.release(id, generator)

    def _wants_retry(self, task: TaskSpec, body: bytes) -> bool:
        error_classes = task.options.retry_exceptions
        if not error_classes or not task.retries or task.state == states.CANCELLED:
            return False
        if error_classes is True:
            return True
        failure = packing.unpack(body[STAMP.size :])
        return isinstance(packing.unpack_exception(failure.cause), error_classes)

    def fail(self, task: TaskSpec, error: BaseException | None) -> None:
        """Fails a task that will not be run, or not again."""
        if self.live.get(task.id) is not task:
            return
        for slot in task.slots:
            if slot.state == PENDING:
                self._objects.fail(slot, None, error)
        self._finish(
            task, states.CANCELLED if isinstance(error, TaskCancelledError) else states.FAILED
        )
        self._objects.holder_gone(("task", task.id))
        if task.actor:
            self._driver.actors.skipped(task)

    def _finish(self, task: TaskSpec, state: str) -> None:
        task.state = state
        self.num_done += 1
        self.live.pop(task.id, None)
        if state == states.FAILED:  # its references may be gone already
            self._driver.unretrieved.dropped(task)
        self._gcs.put(_row(task))
        holds_objects = task.inputs or task.refs or task.body_id or task.id in self._callers
        if holds_objects and not self._driver.actors.keeps(task):
            self.let_go(task)

    def let_go(self, task: TaskSpec) -> None:
        """Releases a task's inputs and the results of its calls: it will not be run again."""
        self._callers.discard(task.id)
        self._objects.holder_gone(("task", task.id))

    def record(self) -> None:
        """Puts the live tasks whose state has changed into the control store, the oldest first."""
        for task in itertools.islice(self.live.values(), _MAX_CHECKED):
            if task.recorded is not task.state:
                task.recorded = task.state
                self._gcs.put(_row(task))

    def hold_result(self, caller: TaskSpec, id: bytes) -> None:
        """Keeps the result of a task's call, so that this is not run again with the task."""
        self._callers.add(caller.id)
        self._objects.hold(id, ("task", caller.id))

    def fail_queued(self, error: BaseException, device: int | None = None) -> None:
        """Fails the tasks that wait for a worker, of one device or of all: there will be none."""
        queued = self.live if device is None else self._driver.scheduler.queued(device)
        for task in list(self.live.values()):
            if task.state == states.QUEUED and not task.actor and task.id in queued:
                self._tell(Cancelled(task.id))
                self.fail(task, error)

    def cancel(self, id: bytes, force: bool) -> None:
        """Takes back a task that has not begun; interrupts, or kills, one that runs."""
        slot = self._objects.slots.get(id)
        task = slot.task if slot is not None else None
        if task is None or self.live.get(task.id) is not task:
            return
        self._cancel(task, force)

    def _cancel(self, task: TaskSpec, force: bool) -> None:
        task.retries = 0
        process = task.process
        if process is None:
            if task.state == states.QUEUED:
                self._tell(Cancelled(task.id))
            self.fail(task, cancelled_error(task))
        elif next(iter(process.calls.values())) is not task:  # not begun, or beside others
            self._interrupt(task, process)
            self.fail(task, cancelled_error(task))
        else:
            task.state = states.CANCELLED
            if force and not task.actor:
                process.end_reason = f"{task.name} was cancelled"
                self._spawner.signal(process, signal.SIGKILL)
            else:
                self._interrupt(task, process)
        if task.attempts:
            for child in [other for other in self.live.values() if other.parent == task.id]:
                if self.live.get(child.id) is child:
                    self._cancel(child, force)

    def _interrupt(self, task: TaskSpec, process: Process) -> None:
        self._loop.send(process.urgent, framing.frame(Kind.CANCEL, task.number))


def cancelled_error(task: TaskSpec) -> TaskCancelledError:
    """Returns the error that results of a cancelled task raise."""
    return TaskCancelledError(f"{task.name} was cancelled")


def _row(task: TaskSpec) -> TaskRow:
    function, device = task.function, max(task.device, 0)
    kind = "task" if not task.actor else "actor" if task.id == task.actor else "method"
    state = states.WAITING if task.state == states.QUEUED else task.state
    spec = None if task.actor else task  # methods are run again only from their actor's log
    return TaskRow(
        id=task.id, kind=kind, name=task.name, parent=task.parent, actor=task.actor,
        sequence=task.sequence, function=function if isinstance(function, bytes) else b"",
        inputs=b"".join(task.inputs), num_returns=task.returns, spec=spec,  # type: ignore[arg-type]
        state=state, device=device, pid=task.pid, submitted_s=task.submitted_s,
        started_s=task.started_s, finished_s=task.finished_s, attempts=task.attempts,
    )  # fmt: skip
