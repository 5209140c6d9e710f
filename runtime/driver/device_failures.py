"""Ends what runs on a lost device.

A lost device takes its processes with it, and every object that a call has made on it. Calls that
ran there are begun again without counting as retried; objects are made again by their lineage.
"""

from __future__ import annotations

import time

from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import EventRow
from gmi_drl.runtime.scheduler.events import DeviceBack, DeviceLost

from .object_table import ObjectTable
from .processes import Process
from .scheduling import Scheduling
from .spawner import Spawner


class DeviceFailures:
    """Devices that were lost and are not back yet. Used by the runtime's thread only."""

    def __init__(
        self, gcs: Gcs, scheduling: Scheduling, spawner: Spawner, objects: ObjectTable
    ) -> None:
        self._gcs = gcs
        self._scheduling = scheduling
        self._spawner = spawner
        self._objects = objects
        self.ending: dict[int, set[Process]] = {}  # by device: processes that are to end

    def lose(self, index: int) -> None:
        """A device is lost. It is back when the last process that ran on it is gone."""
        self._record("device lost", index)
        processes = self._spawner.processes.values()
        ending = {process for process in processes if process.device == index}
        self.ending.setdefault(index, set()).update(ending)
        self._scheduling.tell(DeviceLost(index))
        for process in ending:
            self._spawner.kill_process(process, f"device {index} was lost")
        self._objects.lose(
            slot.id
            for slot in self._objects.slots.values()
            if slot.stored and slot.task is not None and slot.task.device == index
        )
        if not ending:
            self._back(index)

    def ended(self, process: Process) -> bool:
        """Whether a process ends because its device was lost."""
        return process in self.ending.get(process.device, ())

    def process_gone(self, process: Process) -> None:
        """Its end has been seen to."""
        ending = self.ending.get(process.device)
        if ending is not None:
            ending.discard(process)
            if not ending:
                self._back(process.device)

    def _back(self, index: int) -> None:
        del self.ending[index]
        self._record("device back", index)
        self._scheduling.tell(DeviceBack(index))

    def _record(self, kind: str, index: int) -> None:
        self._gcs.put(EventRow(time.time(), kind, b"", f"device {index}"))
