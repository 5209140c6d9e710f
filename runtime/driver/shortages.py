"""Tells of calls and actors that wait for what other actors hold for life."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Final

from gmi_drl.runtime.scheduler.events import Submitted, Waiting
from gmi_drl.runtime.scheduler.resources import Demand, to_amounts
from gmi_drl.runtime.scheduler.scheduler import Scheduler

from .processes import Actor
from .task import TaskSpec

LONG_S: Final = 10.0


class Shortages:
    """Prints a line when such a wait is long, once for each wait. The runtime's thread uses it."""

    def __init__(
        self, scheduler: Scheduler, tasks: Mapping[bytes, TaskSpec], actors: Mapping[bytes, Actor]
    ) -> None:
        self._scheduler, self._tasks, self._actors = scheduler, tasks, actors
        self._began_s: dict[Demand, float] = {}  # infinite: it was told of

    def look(self, now_s: float) -> None:
        """Looks at what waits; to be called now and then."""
        waiting = self._scheduler.wait_for_actors()
        self._began_s = {demand: self._began_s.get(demand, now_s) for demand in waiting}
        for demand, entry in waiting.items():
            if now_s - self._began_s[demand] >= LONG_S:
                self._began_s[demand] = math.inf
                self._tell(demand, entry)

    def _tell(self, demand: Demand, entry: Waiting) -> None:
        subject: TaskSpec | Actor | None
        if isinstance(entry, Submitted):
            subject = self._tasks.get(entry.task)
        else:
            subject = self._actors.get(entry.actor)
        resources = entry.local.resources  # of the device where it waits
        total, free = to_amounts(resources.total), to_amounts(resources.free)
        wanted = to_amounts(dict(demand.units))
        there = ", ".join(f"{max(0, free[name]):g} of {total[name]:g} {name}" for name in wanted)
        print(
            f"gmi-drl: {subject.name if subject else 'a call'} waits for {wanted}: {there} are "
            "free, and actors hold the others for as long as they live. End one of them, let them "
            "or the call ask for less, or give init() more.",
            file=sys.stderr,
        )
