"""Tells the scheduler what happens, and has its instructions carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gmi_drl.runtime.scheduler.events import Event, Submitted, Ticked
from gmi_drl.runtime.scheduler.scheduler import Scheduler

from .task import Task

TICK_S: Final = 0.005


class Scheduling:
    """The scheduler between the tables and those who carry out what it decides. One thread's."""

    def __init__(self, devices: Mapping[int, Mapping[str, float]]) -> None:
        self.scheduler = Scheduler(devices)
        self.ticks = False  # it may want to know how time goes by
        self.carry_out: dict[type, Callable[[Any], None]] = {}  # by kind of instruction
        self._ticked_s = 0.0

    def submit(self, task: Task) -> None:
        """A task may run: its inputs are there."""
        function, pinned = task.function, task.options.device
        assert isinstance(function, bytes)
        self.tell(Submitted(task.id, function, task.device, task.demand, pinned))

    def tell(self, event: Event) -> None:
        """Something has happened; what follows from it is done before this returns."""
        now_s = time.monotonic()
        if not self.ticks:  # the next tick tells whether there is to be another
            self.ticks, self._ticked_s = True, now_s
        for instruction in self.scheduler.handle(event, now_s):
            self.carry_out[instruction.__class__](instruction)

    def tick(self) -> None:
        """Tells of the time, if that is wanted and due."""
        if self.ticks and (now_s := time.monotonic()) - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self.tell(Ticked())
            self.ticks = self.scheduler.wants_tick
