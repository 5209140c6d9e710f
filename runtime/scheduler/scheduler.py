"""Schedules tasks and actors, as a pure state machine: events in, instructions out.

It is bottom-up, as in the Ray paper: what a process of device d submits goes to the local scheduler
of d, and from there to the global one only if it cannot start soon. It has no processes, no clock
(times come with the events) and no I/O: the driver tells it events and carries out its
instructions.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

from . import events
from .events import ActorSubmitted, Id, Infeasible, Out, Submitted, Waiting
from .global_scheduler import KEEP_S, GlobalScheduler, why_infeasible
from .local_scheduler import LocalScheduler, WorkerState
from .resources import Demand, to_amounts, to_units


class Scheduler:
    """Holds the local schedulers of all devices, and the global one.

    It ignores events of tasks, workers and actors that it does not know (any more): a report may
    be overtaken by the loss of its sender.
    """

    def __init__(self, devices: Mapping[int, Mapping[str, float]]) -> None:
        self._locals = {index: LocalScheduler(index, totals) for index, totals in devices.items()}
        self._global = GlobalScheduler(self._locals)
        self._demands: dict[tuple[object, ...], Demand] = {}  # by amounts, as they were submitted
        self._known_demands: dict[tuple[object, ...], Demand] = {}  # by units
        self._single = len(self._locals) == 1
        self._tasks: dict[Id, Submitted] = {}
        self._actors: dict[Id, ActorSubmitted] = {}
        self._workers: dict[Id, WorkerState] = {}
        self._order = 0
        self._handlers: dict[type, Callable[[Any, float, Out], None]] = {
            events.Submitted: self._submitted,
            events.Finished: self._finished,
            events.Blocked: self._blocked,
            events.Unblocked: self._unblocked,
            events.Cancelled: self._cancelled,
            events.WorkerStarted: self._worker_started,
            events.WorkerNotStarted: self._not_started,
            events.WorkerLost: self._worker_lost,
            events.Returned: self._returned,
            events.Ticked: self._ticked,
            events.ActorSubmitted: self._actor_submitted,
            events.ActorGone: self._actor_gone,
        }

    def handle(self, event: events.Event, now_s: float) -> list[events.Instruction]:
        """Returns the instructions that an event leads to, in order."""
        out: Out = []
        self._handlers[event.__class__](event, now_s, out)
        return out

    @property
    def wants_tick(self) -> bool:
        """Tells whether `Ticked` could lead to anything now."""
        locals_ = self._locals.values()
        for local in locals_:
            if local.surplus():
                return True
            for worker in local.workers.values():
                if worker.ahead and not worker.recalled:
                    return True
        return not self._single and any(local.queue.length for local in locals_)

    def resources(self) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the resources of all devices together: in total, and free now."""
        total: collections.Counter[str] = collections.Counter()
        free: collections.Counter[str] = collections.Counter()
        for local in self._locals.values():
            total.update(local.resources.total)
            free.update({name: max(0, units) for name, units in local.resources.free.items()})
        return to_amounts(total), to_amounts(+free)

    def wait_for_actors(self) -> dict[Demand, Waiting]:
        """Returns the demands that wait until actors end, each with the first that has it."""
        return {
            line.demand: line.head
            for local in self._locals.values()
            for line in local.queue.active.values()
            if local.resources.waits_for_actors(line.demand)
        }

    def queued(self, device: int) -> set[Id]:
        """Returns the tasks that wait for a worker on a device."""
        local, tasks = self._locals[device], self._tasks.items()
        return {id for id, entry in tasks if entry.local is local and entry.worker is None}

    # Tasks

    def _submitted(self, event: Submitted, now_s: float, out: Out) -> None:
        assert event.task not in self._tasks, f"task {event.task!r} was submitted twice"
        self._prepare(event)
        submitter = self._locals.get(event.device)
        if event.pinned is not None:
            chosen = self._pinned_device(event)
        elif self._single and submitter is not None:
            chosen = submitter if submitter.resources.has_in_total(event.want) else None
        elif submitter is not None and self._global.keeps(submitter, event):
            chosen = submitter
        else:
            chosen = self._global.choose(event)
        if chosen is not None:
            self._tasks[event.task] = event
            chosen.accept(event, now_s, out)
        else:
            out.append(Infeasible(event.task, why_infeasible("task", event, self._locals.values())))

    def _finished(self, event: events.Finished, now_s: float, out: Out) -> None:
        entry = self._tasks.get(event.task)
        worker = self._workers.get(event.worker)
        if entry is None or worker is None or entry.worker is not worker:
            return
        del self._tasks[event.task]
        worker.local.finished(worker, entry, event.run_s, now_s, out)

    def _cancelled(self, event: events.Cancelled, now_s: float, out: Out) -> None:
        entry = self._tasks.get(event.task)
        if entry is None or entry.worker is not None:
            return  # a worker has it, which the driver tells
        del self._tasks[event.task]
        self._withdraw(entry, now_s, out)

    def _withdraw(self, entry: Waiting, now_s: float, out: Out) -> None:
        if entry.line is not None:
            entry.local.queue.take(entry)
            entry.local.dispatch(now_s, out)  # others may have waited behind it

    def _blocked(self, event: events.Blocked, now_s: float, out: Out) -> None:
        worker = self._workers.get(event.worker)
        if worker is None:
            actor = self._actors.get(event.worker)
            if actor is not None and actor.line is None and not actor.blocked:
                actor.blocked = True
                actor.local.resources.lend(actor.want)
                actor.local.dispatch(now_s, out)
            return
        if worker.running is not None and not worker.blocked:
            worker.local.block(worker, out)
        worker.local.dispatch(now_s, out)

    def _unblocked(self, event: events.Unblocked, now_s: float, out: Out) -> None:
        worker = self._workers.get(event.worker)
        if worker is not None:
            if worker.blocked:
                worker.local.unblock(worker)
            return
        actor = self._actors.get(event.worker)
        if actor is not None and actor.blocked:
            actor.blocked = False
            actor.local.resources.lend(actor.want, -1)

    def _returned(self, event: events.Returned, now_s: float, out: Out) -> None:
        """Queues tasks that a worker gave back before others, or sends them to a free device."""
        worker = self._workers.get(event.worker)
        if worker is None:
            return
        local, worker.recalled = worker.local, False
        tasks = [self._tasks[task] for task in event.tasks if task in self._tasks]
        entries = [entry for entry in tasks if entry.worker is worker]
        local.take_back(worker, entries, now_s)
        for entry in sorted(entries, key=lambda entry: entry.order, reverse=True):
            if entry.pinned is None and not (self._single or self._global.keeps(local, entry)):
                chosen = self._global.choose(entry)
                if chosen is not None and chosen is not local:
                    chosen.accept(entry, now_s, out)
                    continue
            local.enqueue(entry, first=True)
        local.dispatch(now_s, out)

    # Workers and time

    def _worker_started(self, event: events.WorkerStarted, now_s: float, out: Out) -> None:
        local = self._locals[event.device]
        assert event.worker not in self._workers, f"worker {event.worker!r} started twice"
        self._workers[event.worker] = local.add_worker(event.worker, now_s)
        local.dispatch(now_s, out)

    def _not_started(self, event: events.WorkerNotStarted, now_s: float, out: Out) -> None:
        """Moves the tasks of a device without a worker to others that have one, where they may be.

        Workers that wait are none: it may be for these tasks.
        """
        local = self._locals[event.device]
        local.starting -= 1
        if local.has_worker:
            return
        others = [other for other in self._locals.values() if other.has_worker]
        lines = local.queue.active.values()
        for entry in [entry for line in lines for entry in line.entries.values()]:
            able = [other for other in others if other.resources.will_come(entry.want)]
            if isinstance(entry, Submitted) and entry.pinned is None and able:
                local.queue.take(entry)
                waits_s = [self._global.wait_s(other, entry.function, entry.want) for other in able]
                able[waits_s.index(min(waits_s))].accept(entry, now_s, out)

    def _worker_lost(self, event: events.WorkerLost, now_s: float, out: Out) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return
        for entry in worker.local.remove_worker(worker):
            del self._tasks[entry.task]
        worker.local.dispatch(now_s, out)

    def _ticked(self, event: events.Ticked, now_s: float, out: Out) -> None:
        locals_ = self._locals.values()
        for local in locals_:
            others_fit = not self._single and any(
                other.idle and not other.queue.length for other in locals_ if other is not local
            )
            local.recall_stuck(now_s, others_fit, out)
            for worker in local.stop_surplus(now_s, out):
                del self._workers[worker.id]
        if not self._single:
            self._balance(now_s, out)

    def _balance(self, now_s: float, out: Out) -> None:
        """Sends the youngest tasks of long queues to devices where they can start at once."""
        for local in self._locals.values():
            for line in list(local.queue.active.values()):
                while line.entries:
                    tail = next(reversed(line.entries.values()))
                    if not isinstance(tail, Submitted) or tail.pinned is not None:
                        break
                    chosen = self._global.choose(tail)
                    if chosen is None or chosen is local or not self._prefers(local, chosen, tail):
                        break
                    local.queue.take(tail)
                    chosen.accept(tail, now_s, out)

    def _prefers(self, home: LocalScheduler, other: LocalScheduler, entry: Submitted) -> bool:
        demand = entry.want
        if home.resources.will_come(demand):
            wait_s = self._global.wait_s(home, entry.function, demand)
            return wait_s > KEEP_S and not other.queue.length and other.resources.fits(demand)
        # Actors hold what it wants here. On the device that submitted it, it can stand in for the
        # blocked task that waits for it.
        return other.resources.will_come(demand) or other.index == entry.device

    # Actors

    def _actor_submitted(self, event: ActorSubmitted, now_s: float, out: Out) -> None:
        assert event.actor not in self._actors, f"actor {event.actor!r} was submitted twice"
        self._prepare(event)
        if event.pinned is not None:
            chosen = self._pinned_device(event)
        else:
            chosen = self._global.choose_for_actor(event)
        if chosen is not None:
            self._actors[event.actor] = event
            chosen.enqueue(event)
            chosen.dispatch(now_s, out)
        else:
            reason = why_infeasible("actor", event, self._locals.values())
            out.append(Infeasible(event.actor, reason))

    def _actor_gone(self, event: events.ActorGone, now_s: float, out: Out) -> None:
        entry = self._actors.pop(event.actor, None)
        if entry is None:
            return
        local = entry.local
        if entry.line is not None:
            self._withdraw(entry, now_s, out)
            return
        if entry.blocked:
            local.resources.lend(entry.want, -1)
        local.resources.give_for_good(entry.want)
        local.actors -= 1
        local.dispatch(now_s, out)

    def _pinned_device(self, entry: Waiting) -> LocalScheduler | None:
        local = None if entry.pinned is None else self._locals.get(entry.pinned)
        return local if local is not None and local.resources.has_in_total(entry.want) else None

    def _prepare(self, entry: Waiting) -> None:
        """Sets the scheduler's own fields of a submitted entry."""
        actor = isinstance(entry, ActorSubmitted)
        demand_key = (actor, *entry.demand.items())
        demand = self._demands.get(demand_key)
        if demand is None:
            units = to_units(entry.demand)
            key = (actor, *sorted(units.items()))
            demand = self._known_demands.setdefault(key, Demand(units, actor))
            self._demands[demand_key] = demand
        entry.want = demand
        entry.order = self._order = self._order + 1
