"""Handles the messages of processes to the driver, and the ends of processes."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gmi_drl.runtime.api.refs import PENDING, Slot
from gmi_drl.runtime.errors import WorkerDiedError
from gmi_drl.runtime.gcs.tables import EventRow
from gmi_drl.runtime.process.logs import log_tail
from gmi_drl.runtime.scheduler.events import Blocked, Unblocked, WorkerLost
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Exited, Kind, Place

from .processes import Actor, Process
from .task import CANCELLED, TaskSpec
from .task_table import cancelled_error

if TYPE_CHECKING:
    from .driver import Driver


class Requests:
    """Handles messages, requests and ends of processes. Used by the runtime's thread only."""

    def __init__(self, driver: Driver) -> None:
        self._loop, self._gcs = driver.loop, driver.gcs
        self._tell, self._spawner = driver.tell, driver.spawner
        self._objects, self._tasks, self._actors = driver.objects, driver.tasks, driver.actors
        self._dispatch, self._functions = driver.dispatch, driver.functions
        self._lineage = driver.lineage
        self._questions: dict[str, Callable[[], Any]] = {
            "nothing": lambda: None,
            "resources": driver.scheduler.resources,
            "names": lambda: sorted(self._actors.names),
            "actors": lambda: [actor.state_fields() for actor in driver.all_actors()],
        }

    def handle(self, process: Process, message: framing.Message) -> None:
        """Handles one message of a process."""
        kind = message.kind
        if kind == Kind.RESULT or kind == Kind.ERROR or kind == Kind.RESULTS:
            if process.blocked and process.runs_one_call:  # it was cancelled while it waited
                process.wanted.clear()
                self._maybe_unblocked(process)
            self._tasks.answered(process, message)
            if process.to_send and not process.calls:
                self._loop.defer(lambda: self._dispatch.proceed(process))
        elif kind == Kind.RECORD:
            if process.actor is not None:
                process.actor.add_record(message.body, message.id - process.dropped)
                process.dropped = message.id
        elif kind == Kind.SUBMIT:
            task = TaskSpec(*pickle.loads(message.body))
            self._tasks.submit(task, process.number, process.device)
        elif kind == Kind.COUNTS:
            holder = ("process", process.number)
            for id, change in pickle.loads(message.body):
                if change > 0:
                    self._objects.hold(id, holder)
                else:
                    self._objects.release(id, holder)
        elif kind == Kind.UNPIN:
            for id in pickle.loads(message.body):
                if process.pins[id]:
                    process.pins[id] -= 1
                    self._objects.unpin(id)
        elif kind == Kind.WANT:
            self._want(process, *pickle.loads(message.body))
        elif kind == Kind.UNWANT:
            process.wanted.difference_update(pickle.loads(message.body))
            self._maybe_unblocked(process)
        elif kind == Kind.REQUEST:
            self._request(process, message)
        elif kind == Kind.PUT:
            id, place, refs = pickle.loads(message.body)
            process.creating.discard(id)
            self.put(Slot(id, "put"), place, refs, process.number)
        elif kind == Kind.ITEM:
            self._tasks.item(process, message)
        elif kind == Kind.FUNCTION:
            self._functions.add(*pickle.loads(message.body))
        elif kind == Kind.RETURNED:
            self._dispatch.returned(process, pickle.loads(message.body))
        elif kind == Kind.CHECKPOINT:
            self._actors.checkpointed(process, *pickle.loads(message.body))
        elif kind == Kind.TAKEN and not process.may_run_again:  # else it reads all of them again
            self._tasks.taken(*pickle.loads(message.body))

    def put(self, slot: Slot, place: Place, refs: Sequence[bytes], caller: int) -> None:
        """Keeps a value that a process has put."""
        if slot.id in self._objects.slots:  # its task was run again
            if caller:
                self._objects.hold(slot.id, ("process", caller))
            return
        self._objects.add(slot, caller)
        if isinstance(place, bytes):
            self._objects.settle(slot, place, refs, None)
        else:
            slot.nbytes = place[1]
            self._objects.settle(slot, None, refs, None)

    def wanted_ready(self, process: Process, slot: Slot, values: bool) -> None:
        """Sends a process an object that it asked for and that is ready now."""
        process.send_object(slot, values)
        self._loop.touched.add(process.channel)
        self._maybe_unblocked(process)

    def _want(self, process: Process, ids: Sequence[bytes], values: bool) -> None:
        """Sends objects to a process; if its call has to wait for some, its CPUs are lent."""
        must_wait = False
        for id in ids:
            slot = self._objects.slots.get(id) or self._lineage.wanted(id)
            if slot.state == PENDING:
                if slot.requesters is None:
                    slot.requesters = []
                if (process, values) not in slot.requesters:
                    slot.requesters.append((process, values))
                process.wanted.add(id)
                must_wait = True
            else:
                process.send_object(slot, values)
        if must_wait and not process.blocked:
            process.blocked = True
            self._tell(Blocked(process.scheduled_as))
        self._loop.touched.add(process.channel)

    def _maybe_unblocked(self, process: Process) -> None:
        if process.blocked and not process.wanted:
            process.blocked = False
            self._tell(Unblocked(process.scheduled_as))

    def _request(self, process: Process, message: framing.Message) -> None:
        number, (method, args) = message.id, pickle.loads(message.body)

        def then(result: Any) -> None:
            if not process.dead:
                failed = isinstance(result, BaseException)
                process.send(Kind.REPLY, number, (failed, result))
                self._loop.touched.add(process.channel)

        try:
            self.answer(process, method, args, then)
        except Exception as error:
            then(error)

    def answer(
        self, process: Process | None, method: str, args: Any, then: Callable[[Any], None]
    ) -> None:
        """Answers a request of a process (None: the driver) by calling `then`."""
        if method == "create":
            id, nbytes, label = args
            if process is not None:
                process.creating.add(id)
            self._objects.create(id, nbytes, label, then)
        elif method == "abandon":
            (id,) = args
            if process is not None:
                process.creating.discard(id)
            self._objects.abandon(id)
            then(None)
        elif method == "pin":
            (id,) = args

            def pinned(result: Any) -> None:
                if process is not None and not isinstance(result, BaseException):
                    if process.dead:
                        self._objects.unpin(id)
                        return
                    process.pins[id] += 1
                then(result)

            self._objects.pin(id, pinned)
        elif method == "actor":
            fields = self._actors.named(*args)
            if process is None:  # held from now on, so that it does not end before it is called
                self._objects.count(fields[0], 1)
            then(fields)
        elif method in self._questions:
            then(self._questions[method]())
        elif method == "kill":
            id, no_restart, reason = args
            actor = self._actors.table.get(id)
            if actor is not None:
                self._actors.signal(actor, signal.SIGKILL, reason, restart=not no_restart)
            then(None)
        elif method == "cancel":
            self._tasks.cancel(*args)
            then(None)
        elif method == "start":
            creation, details = args
            caller = process.number if process is not None else 0
            self._actors.add(Actor(TaskSpec(*creation), **details), caller)
            then(None)
        else:
            raise ValueError(f"unknown request {method!r}")

    # The end of a process.

    def process_gone(self, process: Process, exited: Exited) -> None:
        """Releases what a process that has ended held and wrote, and retries or fails its calls."""
        for id, count in process.pins.items():
            for _ in range(count):
                self._objects.unpin(id)
        for id in process.creating:
            self._objects.abandon(id)
        if process.blocked:
            process.blocked = False
            self._tell(Unblocked(process.scheduled_as))
        if process.actor is not None:
            self._actors.process_gone(process, exited)
        else:
            self._tell(WorkerLost(process.number))
            error = WorkerDiedError(
                "a task", process.pid or 0, 1, exited.exit_code, exited.signal,
                log_tail=log_tail(process.log), reason=process.end_reason,
            )  # fmt: skip
            self._run_again(process, error)
            process.remove_log()
        self._objects.holder_gone(("process", process.number))

    def _run_again(self, process: Process, error: WorkerDiedError) -> None:
        """Queues a dead worker's tasks again; the one that ran only if it has retries left."""
        calls, process.calls = list(process.calls.values()), {}
        tasks: list[TaskSpec] = [*calls, *(call.task for call in process.to_send)]
        process.to_send.clear()
        for number, task in enumerate(tasks):
            task.process = None
            if self._tasks.live.get(task.id) is not task:
                continue
            if number == 0 and calls:
                if task.state == CANCELLED:
                    self._tasks.fail(task, cancelled_error(task))
                    continue
                if self._spawner.broken:
                    self._tasks.fail(task, self._spawner.unavailable())
                    continue
                if not task.retries and not process.never_forked:
                    error.call, error.attempts = task.name, task.attempts
                    self._tasks.fail(task, error)
                    continue
                task.retries -= not process.never_forked
                self._keep_results(process, task)
                text = str(error).splitlines()[0]
                self._gcs.put(EventRow(time.time(), "task retried", task.id, text))
            elif number < len(calls):  # else it was not sent
                task.attempts -= 1
            self._tasks.queue(task)

    def _keep_results(self, process: Process, task: TaskSpec) -> None:
        """Keeps the results of the task's calls, so that these are not run again with it."""
        for id in self._objects.references.keys(("process", process.number)):
            slot, actor = self._objects.slots.get(id), self._actors.table.get(id)
            maker = actor.creation if actor is not None else slot.task if slot is not None else None
            if maker is not None and maker.parent == task.id:
                self._tasks.hold_result(task, id)
