"""Chooses the device of a task that its own does not keep (Ray, OSDI'18, section 4.2.2).

A local scheduler keeps what was submitted on its device as long as it can start it soon. Else the
task goes where the estimated wait is least among the devices that have what it wants in total:

    wait = sum over the tasks there of the mean run time of their function / CPUs

The paper speaks of queue length x mean run time; the sum is the same, function by function, and
counts running tasks besides waiting ones. On a device where the task can start at once the wait is
zero. The paper adds the time to move the task's inputs, but here all devices share one memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from .events import ActorSubmitted, Submitted, Waiting
from .local_scheduler import LocalScheduler
from .resources import Demand, to_amounts

THRESHOLD: Final = 16  # tasks waiting on a device, beyond which more are sent elsewhere
UNKNOWN_S: Final = 0.01  # the run time of a function that was never measured
KEEP_S: Final = 0.005  # a task is not sent away for a wait this short
_REMEDIES: Final = {"CPU": "num_cpus", "GPU": "num_gpus"}


class GlobalScheduler:
    """Decides from the state of the local schedulers, and has none of its own."""

    def __init__(self, locals_: Mapping[int, LocalScheduler]) -> None:
        self._locals = locals_

    def keeps(self, local: LocalScheduler, entry: Submitted) -> bool:
        """Tells whether a task stays with the local scheduler it was submitted to."""
        demand = entry.want
        if not local.resources.will_come(demand):
            return False
        return self._starts_at_once(local, demand) or (
            local.queue.length <= THRESHOLD and self._queue_s(local, entry.function) <= KEEP_S
        )

    def choose(self, entry: Submitted) -> LocalScheduler | None:
        """Chooses the device with the least wait; on a tie the submitter's, then the least loaded.

        Devices where actors or blocked tasks leave too little come last. None: no device has enough
        in total.
        """
        demand = entry.want

        def preference(local: LocalScheduler) -> tuple[object, ...]:
            will_fit = local.resources.will_come(demand)
            wait_s = self.wait_s(local, entry.function, demand) if will_fit else 0.0
            load = local.queue.length + len(local.workers) - len(local.idle)
            return not will_fit, wait_s, local.index != entry.device, load

        return min(self._capable(demand), key=preference, default=None)

    def choose_for_actor(self, entry: ActorSubmitted) -> LocalScheduler | None:
        """Chooses a device where it fits now, else later, else at all; then by actors and wait."""
        demand = entry.want

        def preference(local: LocalScheduler) -> tuple[object, ...]:
            fits_now = not local.queue.length and local.resources.fits_without_lent(demand)
            will_fit = local.resources.will_come(demand)
            wait_s = self._queue_s(local, b"")
            is_remote = local.index != entry.device
            return not fits_now, not will_fit, local.actors, wait_s, is_remote, local.index

        return min(self._capable(demand), key=preference, default=None)

    def _capable(self, demand: Demand) -> list[LocalScheduler]:
        """Lists the devices that have the demand in total."""
        return [local for local in self._locals.values() if local.resources.has_in_total(demand)]

    def wait_s(self, local: LocalScheduler, function: bytes, demand: Demand) -> float:
        """Returns the estimated seconds that a task would wait on a device."""
        if self._starts_at_once(local, demand):
            return 0.0
        return self._queue_s(local, function)

    def _starts_at_once(self, local: LocalScheduler, demand: Demand) -> bool:
        return demand not in local.queue.active and local.resources.fits(demand)

    def _queue_s(self, local: LocalScheduler, function: bytes) -> float:
        """Estimates the work on a device; functions never measured count as `function`."""
        total_s = 0.0
        for queued_function, number in local.queue.functions.items():
            total_s += number * self._mean_s(local, queued_function, function)
        for worker in local.workers.values():
            running = worker.running
            if running is not None and not worker.blocked:
                total_s += self._mean_s(local, running.function, function)
                if worker.ahead:
                    total_s += worker.work_s - running.cost_s
        return total_s / local.resources.cpus

    def _mean_s(self, local: LocalScheduler, function: bytes, default_function: bytes) -> float:
        """Returns the mean run time measured on that device, else on any; else of the default."""
        for candidate in (function, default_function):
            for device in (local, *self._locals.values()):
                mean_s = device.run_times.get(candidate)
                if mean_s is not None:
                    return mean_s
        return UNKNOWN_S


def why_infeasible(what: str, entry: Waiting, locals_: Iterable[LocalScheduler]) -> str:
    """Says that no device has what a task or an actor demands, and what to change."""
    wants, pinned = to_amounts(dict(entry.want.units)), entry.pinned
    devices = [local for local in locals_ if pinned is None or local.index == pinned]
    if not devices:
        return f"the {what} must run on device {pinned}; there is none. Pin it to one there is."
    largest = {name: 0.0 for name in wants}
    for local in devices:
        for name, amount in to_amounts(local.resources.total).items():
            if name in largest:
                largest[name] = max(largest[name], amount)
    missing = {name: largest[name] for name in wants if largest[name] < wants[name]}
    options = " and ".join(_REMEDIES.get(name, f"resources[{name!r}]") for name in missing)
    if not missing:
        return (
            f"the {what} wants {_text(wants)}; no one device has all of it. "
            "Ask for less at once, or give init() a device that has it all."
        )
    who = "no device has" if pinned is None else f"device {pinned}, to which it is pinned, has not"
    return (
        f"the {what} wants {_text(wants)}; {who} more than {_text(missing)}. "
        f"Lower {options}, or give init() more."
    )


def _text(amounts: Mapping[str, float]) -> str:
    return str({n: int(a) if math.floor(a) == a else a for n, a in amounts.items()})
