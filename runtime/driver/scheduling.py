"""Tells the scheduler what happens, and has its instructions carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gmi_drl.runtime.scheduler.events import (
    ActorSubmitted,
    Blocked,
    DeviceLost,
    Event,
    Id,
    Submitted,
    Ticked,
    Waiting,
)
from gmi_drl.runtime.scheduler.scheduler import Scheduler

from .processes import Actor, Process
from .task import QUEUED, Task

TICK_S: Final = 0.005


class Scheduling:
    """The scheduler between the tables and those who carry out what it decides. One thread's."""

    def __init__(self, devices: Mapping[int, Mapping[str, float]]) -> None:
        self.scheduler = Scheduler(devices)
        self.ticks = False  # it may want to know how time goes by
        self.carry_out: dict[type, Callable[[Any], None]] = {}  # by kind of instruction
        self.devices = devices
        self._ticked_s = 0.0

    def submit(self, task: Task) -> None:
        """A task may run: its inputs are there."""
        self.tell(_submitted(task))

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
            self.tell(Ticked(now_s))
            self.ticks = self.scheduler.wants_tick

    def resources(self) -> tuple[dict[str, float], dict[str, float]]:
        """All that the devices have together, and what of it nobody holds now."""
        return self.scheduler.resources()

    def restart(
        self,
        processes: Iterable[Process],
        live: Iterable[Task],
        actors: Iterable[Actor],
        lost_devices: Iterable[int],
    ) -> str:
        """Replaces the scheduler by one that knows what the tables know; says how much that is."""
        workers: list[tuple[Id, int]] = []
        running: list[tuple[Id, Id, bytes, Mapping[str, float], int]] = []
        dispatched: set[Task] = set()
        processes = list(processes)
        for process in processes:
            if process.actor is not None or process.stopping:
                continue
            workers.append((process.number, process.device))
            for task in (*process.calls.values(), *(call.task for call in process.to_send)):
                dispatched.add(task)
                assert isinstance(task.function, bytes)
                running.append(
                    (task.id, process.number, task.function, task.demand, process.device)
                )
        queued: list[Waiting] = [
            _submitted(task)
            for task in live
            if not task.actor and task.state == QUEUED and task not in dispatched
        ]
        placed = []
        for actor in actors:
            if actor.dead or not actor.is_scheduled:
                continue
            if actor.device >= 0:
                placed.append((actor.id, actor.device, actor.demand))
            else:
                queued.append(ActorSubmitted(actor.id, 0, actor.demand, actor.options.device))
        now_s = time.monotonic()
        self.scheduler = Scheduler.restore(
            self.devices, queued, running, workers, placed, now_s=now_s
        )
        for index in lost_devices:
            self.tell(DeviceLost(index))
        for process in processes:
            if process.blocked:
                self.tell(Blocked(process.scheduled_as))
        self.tell(Ticked(now_s))
        return f"{len(queued)} queued, {len(running)} running"


def _submitted(task: Task) -> Submitted:
    function, pinned = task.function, task.options.device
    return Submitted(task.id, function, task.device, task.demand, pinned)  # type: ignore[arg-type]
