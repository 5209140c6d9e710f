"""Sees to what a process that has ended held, wrote and ran."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gmi_drl.runtime.errors import WorkerDiedError
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import EventRow
from gmi_drl.runtime.process.logs import log_tail
from gmi_drl.runtime.scheduler.events import Unblocked, WorkerLost
from gmi_drl.runtime.wire.protocol import Exited

from .actor_table import ActorTable
from .object_table import ObjectTable
from .processes import Actor, Process
from .scheduling import Scheduling
from .spawner import Spawner
from .task import CANCELLED, Task
from .task_table import TaskTable, cancelled_error


class ProcessEnds:
    """Takes up what dead processes have left. Used by the runtime's thread only."""

    def __init__(
        self, gcs: Gcs, scheduling: Scheduling, spawner: Spawner, objects: ObjectTable,
        tasks: TaskTable, *, actors: ActorTable,
    ) -> None:  # fmt: skip
        self._gcs = gcs
        self._scheduling = scheduling
        self._spawner = spawner
        self._objects = objects
        self._tasks = tasks
        self._actors = actors
        self._actor_table: Mapping[bytes, Actor] = actors.table

    def gone(self, process: Process, exited: Exited) -> None:
        """A process is over."""
        for id, count in process.pins.items():
            for _ in range(count):
                self._objects.unpin(id)
        for id in process.creating:
            self._objects.abandon(id)
        if process.blocked:
            process.blocked = False
            self._scheduling.tell(Unblocked(process.scheduled_as))
        if process.actor is not None:
            self._actors.process_gone(process, exited)
        else:
            self._scheduling.tell(WorkerLost(process.number))
            error = WorkerDiedError(
                "a task", process.pid or 0, 1, exited.exit_code, exited.signal,
                log_tail=log_tail(process.log), reason=process.end_reason,
            )  # fmt: skip
            self._run_again(process, error)
            process.remove_log()
        self._objects.holder_gone(("process", process.number))

    def _run_again(self, process: Process, error: WorkerDiedError) -> None:
        """Begins the task again that a worker ran, if it may be; the others always."""
        calls, process.calls = list(process.calls.values()), {}
        tasks: list[Task] = [*calls, *(call.task for call in process.to_send)]
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
            else:
                task.attempts = max(0, task.attempts - 1)
            self._tasks.requeue(task)

    def _keep_results(self, process: Process, task: Task) -> None:
        """What the task had called is not to be run again with it."""
        for id in self._objects.references.keys(("process", process.number)):
            slot, actor = self._objects.slots.get(id), self._actor_table.get(id)
            made = actor.creation if actor is not None else slot.task if slot is not None else None
            if made is not None and made.parent == task.id:
                self._tasks.hold_result(task, id)
