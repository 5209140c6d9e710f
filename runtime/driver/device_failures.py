"""What is done when a whole device is lost, or the scheduler has to begin again.

A lost device takes its processes with it, and every object that a call has made on it. Calls that
ran there are begun again without counting as retried; objects are made again by their lineage.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gmi_drl.runtime.scheduler.scheduler import (
    ActorSubmitted,
    Blocked,
    DeviceBack,
    DeviceLost,
    Id,
    Scheduler,
    Submitted,
    Ticked,
)

from . import task as states

if TYPE_CHECKING:
    from gmi_drl.runtime.scheduler.events import Waiting

    from .engine import Engine
    from .link import Process
    from .task import Task


class Losses:
    """Devices that were lost and are not back yet. Used by the runtime's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._going: dict[int, set[Process]] = {}  # by device: processes that are to end

    def device(self, index: int) -> None:
        """A device is lost. It is back when the last process that ran on it is gone."""
        engine = self._engine
        engine.event("device lost", b"", f"device {index}")
        going = {process for process in engine.processes.values() if process.device == index}
        self._going.setdefault(index, set()).update(going)
        engine.schedule(DeviceLost(index))
        for process in going:
            engine.spawner.kill_process(process, f"device {index} was lost")
        engine.objects.lose(
            slot.id
            for slot in engine.objects.slots.values()
            if slot.stored and slot.task is not None and slot.task.device == index
        )
        if not going:
            self._back(index)

    def takes(self, process: Process) -> bool:
        """Whether a process ends because its device was lost."""
        return process in self._going.get(process.device, ())

    def process_gone(self, process: Process) -> None:
        """Its end has been seen to."""
        going = self._going.get(process.device)
        if going is not None:
            going.discard(process)
            if not going:
                self._back(process.device)

    def _back(self, index: int) -> None:
        del self._going[index]
        self._engine.event("device back", b"", f"device {index}")
        self._engine.schedule(DeviceBack(index))

    def scheduler(self) -> None:
        """Replaces the scheduler by one that knows what the tables know, and nothing else."""
        engine = self._engine
        workers: list[tuple[Id, int]] = []
        running: list[tuple[Id, Id, bytes, dict[str, float], int]] = []
        handed: set[Task] = set()
        for process in engine.processes.values():
            if process.actor is not None or process.stopping:
                continue
            workers.append((process.number, process.device))
            for task in (*process.calls.values(), *(entry.task for entry in process.to_send)):
                handed.add(task)
                running.append(
                    (task.id, process.number, task.function, task.demand, process.device)
                )
        queued: list[Waiting] = [
            engine.tasks.submitted(task)
            for task in engine.tasks.live.values()
            if not task.actor and task.state == states.QUEUED and task not in handed
        ]
        actors = []
        for actor in engine.actors.table.values():
            if actor.dead or not actor.wants_place:
                continue
            if actor.device >= 0:
                actors.append((actor.id, actor.device, actor.demand))
            else:
                queued.append(ActorSubmitted(actor.id, 0, actor.demand, actor.options.device))
        now_s = time.monotonic()
        engine.scheduler = Scheduler.restore(
            engine.devices, queued, running, workers, actors, now_s
        )
        engine.event("scheduler restarted", b"", f"{len(queued)} queued, {len(running)} running")
        for index in self._going:
            engine.schedule(DeviceLost(index))
        for process in list(engine.processes.values()):
            if process.blocked:
                engine.schedule(Blocked(process.scheduled_as))
        engine.schedule(Ticked(now_s))


__all__ = ["Losses", "Submitted"]
