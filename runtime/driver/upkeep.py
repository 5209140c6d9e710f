"""The driver's regular work between messages: ticks, memory, records, and what went wrong."""

from __future__ import annotations

import sys
import time
from typing import Final

from gmi_drl.runtime.gcs.gcs import Gcs

from .dispatch import Dispatch
from .object_table import ObjectTable
from .scheduling import TICK_S, Scheduling
from .spawner import Spawner
from .task_table import TaskTable

_ORPHANS_S: Final = 0.05
_LOOK_S: Final = 0.1
_RECORD_S: Final = 0.5  # how late the control store may know of what is not over


class Upkeep:
    """What is due in each round of the event loop, and when the next round is. Its thread only."""

    def __init__(
        self, gcs: Gcs, scheduling: Scheduling, spawner: Spawner, objects: ObjectTable,
        tasks: TaskTable, *, dispatch: Dispatch,
    ) -> None:  # fmt: skip
        self._gcs = gcs
        self._scheduling = scheduling
        self._spawner = spawner
        self._objects = objects
        self._tasks = tasks
        self._dispatch = dispatch
        self._printed_failure = ""
        self._looked_s = self._recorded_s = 0.0
        self._look_again = True  # something has happened since the last look, or is to be done yet

    def timeout_s(self) -> float:
        """How long nothing is due; -1: until something arrives."""
        if self._spawner.orphans:
            return _ORPHANS_S
        if self._scheduling.ticks:
            return TICK_S
        if self._look_again:
            return _LOOK_S
        return _RECORD_S if self._tasks.live or self._objects.room_requests else -1

    def after_round(self) -> None:
        """Does what is due, and what nobody waits for."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
            self._look(now_s)
        else:
            self._look_again = True
        if self._spawner.orphans:
            self._spawner.give_up_orphans()

    def _look(self, now_s: float) -> None:
        self._objects.refuse_late()
        self._look_again = self._objects.give_back()
        if now_s - self._recorded_s > _RECORD_S:
            self._recorded_s = now_s
            self._tasks.record()
            self._dispatch.room_freed()  # those that wait for it find out when that is too long
        failure = self._gcs.failure
        if failure != self._printed_failure and (failure or not self._gcs.backlog):
            self._printed_failure = failure  # once, though some rows may find room in between
            if failure:
                print(f"gmi-drl: {failure}", file=sys.stderr)
