"""Rebuilds lost objects by running again the tasks that made them and their inputs."""

from __future__ import annotations

import pickle
import time

from gmi_drl.runtime import ids
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.errors import ObjectLostError
from gmi_drl.runtime.gcs.database import GcsError
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import EventRow, TaskRow
from gmi_drl.runtime.wire import packing

from .object_table import ObjectTable
from .task import STREAMING, TaskSpec
from .task_table import TaskTable


class Lineage:
    """Rebuilds objects from the tasks that made them. Used by the runtime's thread only."""

    def __init__(self, gcs: Gcs, objects: ObjectTable, tasks: TaskTable) -> None:
        self._gcs, self._objects, self._tasks = gcs, objects, tasks

    def rebuild(self, slot: Slot, reason: str) -> None:
        """Rebuilds a lost object by running again the tasks it needs, and no others."""
        pending = [slot]
        while pending:
            lost_slot = pending.pop()
            task = lost_slot.task or self._recorded_producer(lost_slot)
            obstacle = self._obstacle(task)
            if task is None or obstacle:
                error = ObjectLostError(lost_slot.id, lost_slot.call, f"{reason}; {obstacle}")
                self._objects.fail(lost_slot, None, error)
            elif task.id not in self._tasks.live:
                self._gcs.put(EventRow(time.time(), "task run again", task.id, reason))
                pending += self._run_again(task)

    def wanted(self, id: bytes) -> Slot:
        """Returns the slot of an object that is pending, or that is rebuilt if possible.

        An object that nobody holds any more is lost.
        """
        objects, reason = self._objects, "nobody held it any more"
        slot = self._pending_result(id)
        if slot is not None:
            objects.slots[id] = slot
            return slot
        slot = Slot(id, "")
        end = objects.slots.get(ids.result(ids.producer(id)))
        if not objects.references.held(id):
            slot.fail(ObjectLostError(id, "", reason))
            return slot
        objects.slots[id] = slot
        if end is None or end.task is None or end.task.returns != STREAMING:
            self.rebuild(slot, reason)
            return slot
        slot.call = end.call
        if end.done and not end.failed and ids.index(id) <= packing.unpack(end.body):
            slot.task = end.task
            self.rebuild(slot, reason)
        return slot  # else the generator yields it later, or ends, which wakes whoever waits

    def _run_again(self, task: TaskSpec) -> list[Slot]:
        """Queues a task again; returns the inputs that have to be rebuilt for it."""
        tasks, objects = self._tasks, self._objects
        task.retries = task.options.max_retries
        task.missing = 0
        missing = []
        for id in task.inputs:
            if id not in objects.slots:
                slot = self._pending_result(id) or Slot(id, "")
                objects.slots[id] = slot
                objects.hold(id, ("task", task.id))
                if slot.task is None:
                    missing.append(slot)
        for result in task.slots:
            if result.id not in objects.slots:  # nobody holds it, but the task makes it as well
                result.reset()
        if not task.slots:
            task.slots = tasks.slots_of(task)
        for result in task.slots:
            result.task = task
        tasks.begin(task)
        return missing

    def _pending_result(self, id: bytes) -> Slot | None:
        """Returns the slot of a result that was dropped while its task still runs."""
        task = self._tasks.live.get(ids.producer(id))
        if task is None:
            return None
        return next((slot for slot in task.slots if slot.id == id), None)

    def _obstacle(self, task: TaskSpec | None) -> str:
        """Says why a task cannot be run again; empty if it can."""
        if task is None or (not task.actor and isinstance(task.function, str)):
            return "put() has no lineage"
        if task.actor:
            return "an actor's method made it, and the actor has gone on since"
        if task.body_id and task.body_id not in self._objects.slots:
            return (
                "the arguments it was made from were large and are gone. Give such arguments by "
                "reference, and keep the references"
            )
        return ""

    def _recorded_producer(self, slot: Slot) -> TaskSpec | None:
        """Reads from the control store the task that made an object."""
        try:
            row = self._gcs.get(TaskRow, ids.producer(slot.id))
        except GcsError:  # its file is damaged, or gone
            return None
        if row is None or not row.spec:
            return None
        spec = row.spec  # the task itself while the row is not written yet
        task = TaskSpec(*(spec.fields() if isinstance(spec, TaskSpec) else pickle.loads(spec)))
        task.device = row.device
        slot.call = task.name
        return task
