"""Sends calls to processes, with what they need of the object store pinned in memory before.

A worker is given calls ahead of the one it runs. While memory is plentiful their inputs are pinned
at once; else in the call's turn, so that running calls have room for their results. A call whose
inputs have no room waits as long as other calls run that may free memory, and for a limited time if
only readers' views are in its way.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime.api.refs import HERE, PENDING, Slot
from gmi_drl.runtime.errors import ActorRuntimeError, ObjectStoreFullError
from gmi_drl.runtime.gcs.database import GcsError
from gmi_drl.runtime.scheduler.events import Cancelled, Finished, Recall, Returned, Run
from gmi_drl.runtime.store import room_requests
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Kind, Place

from . import task as states
from .function_table import KEPT_BYTES
from .processes import Actor, PendingCall, Process
from .task import TaskSpec
from .task_table import cancelled_error

if TYPE_CHECKING:
    from .driver import Driver

_ONE_CPU: Final = {"CPU": 1.0}
_PLAIN_BYTES: Final = 2048
_PLENTY: Final = 2  # memory is plentiful while at most 1 / _PLENTY is in use


def is_plain(task: TaskSpec, actor: Actor) -> bool:
    """Tells whether a call needs nothing but to be sent."""
    needs = task.inputs or task.refs or task.keep or task.body_id or actor.options.checkpoint_every
    return not needs and len(task.arguments) <= _PLAIN_BYTES


def run_frame(
    task: TaskSpec, number: int, arguments: Place, inputs: Sequence[tuple[bytes, Place]],
    replayed: bool, *, details: Any,
) -> bytes:  # fmt: skip
    """Returns the frame that tells a process to run a call."""
    body = pickle.dumps(
        (task.id, task.name, task.function, task.returns, arguments, inputs, task.sequence,
         task.attempts, task.failures, replayed, details), 5,
    )  # fmt: skip
    return framing.frame(Kind.RUN, number, body, len(task.keep or ()))


class Dispatch:
    """Keeps what is to be sent to each process, in order. Used by the runtime's thread only."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._loop, self._tell = driver, driver.loop, driver.tell
        self._processes, self._objects = driver.processes, driver.objects
        self._tasks, self._live = driver.tasks, driver.tasks.live
        self._functions = driver.functions
        self._starved: list[Process] = []  # whose next call has no room for its inputs

    def run(self, run: Run) -> None:
        """Gives a task to the worker that the scheduler has chosen."""
        task, process = self._live.get(run.task), self._processes[run.worker]
        if task is None:  # it was cancelled meanwhile
            self._loop.defer(lambda: self._tell_not_run(run.task, process))
            return
        if "GPU" in task.demand and not process.calls and not process.to_send:
            process.gpu_ids = self._driver.gpus.choose(process.device, task.demand["GPU"])
        self.add(task, process)

    def add(self, task: TaskSpec, process: Process, replayed: bool = False) -> None:
        """Queues a call for a process, behind the calls it was given before."""
        stored_ids: list[bytes] = []
        if task.inputs:
            slots = [self._objects.slots[id] for id in task.inputs]
            if not task.actor and any(slot.state == PENDING or slot.failed for slot in slots):
                # An input was lost. Deferred, as the scheduler may be deciding right now.
                self._loop.defer(lambda: self._take_back(task, process, slots))
                return
            stored_ids = [slot.id for slot in slots if slot.state != HERE or slot.failed]
        if task.body_id:
            stored_ids.append(task.body_id)
        if not stored_ids and not process.to_send:
            self._send(task, process, {}, replayed)
            return
        call = PendingCall(task, replayed, list(dict.fromkeys(stored_ids)))
        process.to_send.append(call)
        if process.actor is not None or self._has_plenty:
            self._pin(call, process)
        self.proceed(process)

    def sent(self, task: TaskSpec, process: Process, number: int) -> None:
        """Notes a method's call that was sent directly to the actor."""
        actor = process.actor
        assert actor is not None
        if process.dead or actor.process is not process:  # it ended meanwhile
            with actor.sending:
                actor.unsent_calls += 1
            self._tasks.submit(task, 0, 0)
            return
        for slot in task.slots:
            self._objects.add(slot, 0)
        self._live[task.id] = task
        actor.number(task)
        self._started(task, process, number)

    def proceed(self, process: Process) -> None:
        """Sends the calls that are ready, and pins the inputs of the next one when it is due."""
        pending = process.to_send
        while pending and not process.dead:
            call = pending[0]
            if not call.replayed and self._live.get(call.task.id) is not call.task:
                pending.popleft()  # it was cancelled
                self._unpin(call, process)
                if not call.task.actor:
                    self._tell_not_run(call.task.id, process)
            elif len(call.places) == len(call.stored):
                try:
                    self._send(call.task, process, call.places, call.replayed)
                finally:
                    pending.popleft()  # until then no call is sent directly, past it
            else:
                if call.asked is None and (not process.calls or self._has_plenty):
                    self._pin(call, process)
                return

    def room_freed(self) -> None:
        """Tries the starved processes again, as memory was freed."""
        processes, self._starved = self._starved, []
        for process in processes:
            self._loop.defer(lambda process=process: self.proceed(process))  # type: ignore[misc]

    def recall(self, recall: Recall) -> None:
        """Asks a worker for the calls that it has not begun."""
        process = self._processes[recall.worker]
        self._loop.send(process.urgent, framing.frame(Kind.RECALL, 0))

    def returned(self, process: Process, numbers: Sequence[int]) -> None:
        """Takes back the calls that a worker had not begun."""
        tasks = [task for number in numbers if (task := process.calls.pop(number, None))]
        for task in tasks:
            task.process = None
            if self._live.get(task.id) is not task:
                continue
            if task.state == states.CANCELLED:
                self._tasks.fail(task, cancelled_error(task))
            else:
                task.attempts -= 1
                task.state = states.QUEUED
        self._tell(Returned(process.number, tuple(task.id for task in tasks)))
        for task in tasks:
            if self._live.get(task.id) is not task:
                self._tell(Cancelled(task.id))

    # What waits for its inputs.

    @property
    def _has_plenty(self) -> bool:
        return self._objects.store.used_bytes * _PLENTY < self._objects.nbytes

    def _pin(self, call: PendingCall, process: Process) -> None:
        request = call.asked = object()
        for id in call.stored:
            self._objects.pin(
                id,
                lambda result, id=id: self._pinned(call, request, process, id, result),  # type: ignore[misc]
                patient=False,  # it fails at once, and so holds no memory while it waits
            )

    def _pinned(
        self, call: PendingCall, request: object, process: Process, id: bytes, result: Any
    ) -> None:
        if process.dead or call.asked is not request or call not in process.to_send:
            if not isinstance(result, BaseException):
                self._objects.unpin(id)
        elif not isinstance(result, BaseException):
            process.pins[id] += 1
            call.places[id] = result
            if len(call.places) == len(call.stored):
                self.proceed(process)
        elif isinstance(result, ObjectStoreFullError) and self._may_wait(call, process, result):
            self._unpin(call, process)
            if not process.calls:  # else it is tried again in its turn
                self._starved.append(process)
        else:
            self._fail(call, process, result)

    def _may_wait(self, call: PendingCall, process: Process, error: ObjectStoreFullError) -> bool:
        """Tells whether a call may wait for memory: as calls run, or, for a while, for readers."""
        now_s = time.monotonic()
        if process.calls or self._others_run(process):
            call.since_s = 0.0
            call.first_s = call.first_s or now_s
            if not process.calls and 0 < call.first_s < now_s - room_requests.PINNED_S:
                call.first_s = -1.0
                print(
                    f"gmi-drl: {call.task.name} waits until calls that run leave room for its "
                    f"arguments: {error}",
                    file=sys.stderr,
                )
            return True
        call.since_s = call.since_s or now_s
        return now_s - call.since_s < room_requests.PINNED_S

    def _others_run(self, process: Process) -> bool:
        """Tells whether other processes run calls that will free memory when they end."""
        return any(
            other.calls and not other.blocked and any(other.pins.values())
            for other in self._processes.values()
            if other is not process
        )

    def _unpin(self, call: PendingCall, process: Process) -> None:
        call.asked = None
        places, call.places = call.places, {}
        self._unpin_all(places, process)

    def _unpin_all(self, ids: Iterable[bytes], process: Process) -> None:
        for id in ids:
            process.pins[id] -= 1
            self._objects.unpin(id)

    def _fail(self, call: PendingCall, process: Process, error: BaseException) -> None:
        actor = process.actor
        if actor is not None and (call.replayed or call.task is actor.creation):
            self._driver.actors.cannot_build(actor, call.task, error)
            return  # it stays the next one to be sent: no other call comes before its end
        process.to_send.remove(call)
        self._unpin(call, process)
        if not call.task.actor:
            self._tell_not_run(call.task.id, process)
        self._tasks.fail(call.task, error)
        self.proceed(process)

    def _take_back(self, task: TaskSpec, process: Process, inputs: Sequence[Slot]) -> None:
        """Takes a call back whose inputs are pending or failed."""
        self._tell_not_run(task.id, process)
        if self._live.get(task.id) is not task:
            return
        for slot in inputs:
            if slot.failed:
                self._tasks.fail(task, slot.error())
                return
        task.state = states.WAITING
        for slot in inputs:
            if slot.state == PENDING:
                self._tasks.await_input(task, slot)
        if not task.missing:
            self._tasks.queue(task)

    def _tell_not_run(self, task_id: Any, process: Process) -> None:
        self._tell(Finished(task_id, process.number, 0.0))

    # What is sent.

    def _send(
        self, task: TaskSpec, process: Process, places: dict[bytes, tuple[int, int]], replayed: bool
    ) -> None:
        function = task.function
        if not task.actor and function not in process.functions:
            assert isinstance(function, bytes)
            try:
                self._send_function(process, function)
            except GcsError as error:  # deferred, as the scheduler may be deciding right now
                self._unpin_all(places, process)
                self._loop.defer(lambda: self._tell_not_run(task.id, process))
                text = f"{task.name} cannot be run, as its function cannot be read: {error}"
                self._tasks.fail(task, ActorRuntimeError(text))
                return
        inputs: list[tuple[bytes, Place]] = []
        for id in task.inputs:
            place: Place | None = places.get(id)
            inputs.append((id, bytes(self._objects.slots[id].body) if place is None else place))
        details: Any = None
        if task.actor:
            details = task.options
        elif task.demand != _ONE_CPU:
            details = task.demand, process.gpu_ids if "GPU" in task.demand else ()
        number = next(process.numbers)
        arguments: Place = places[task.body_id] if task.body_id else task.arguments
        frame = run_frame(task, number, arguments, inputs, replayed, details=details)
        process.channel.queue(frame, [memfd.fd for memfd in task.keep or ()], task.keep)
        self._loop.touched.add(process.channel)
        if process.actor is not None:
            process.actor.sent(task)
        self._started(task, process, number)

    def _started(self, task: TaskSpec, process: Process, number: int) -> None:
        process.calls[number] = task
        task.partial = []
        task.process, task.number, task.state = process, number, states.RUNNING
        task.pid, task.device = process.pid or 0, process.device
        task.started_s = time.time()
        task.attempts += 1

    def _send_function(self, process: Process, function: bytes) -> None:
        """Sends a function to a worker, and has it drop unused ones beyond the limit."""
        sent_functions = process.functions
        name, body = self._functions.get(function)
        if process.function_bytes + len(body) > KEPT_BYTES:
            used_functions = {task.function for task in process.calls.values()}
            for id in [id for id in sent_functions if id not in used_functions]:
                process.function_bytes -= sent_functions.pop(id)
                process.send(Kind.FUNCTION, 0, (id, "", b""))
        process.send(Kind.FUNCTION, 0, (function, name, body))
        sent_functions[function] = len(body)
        process.function_bytes += len(body)
