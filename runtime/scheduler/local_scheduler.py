"""Schedules the tasks of one device: who runs next, and on which worker.

Order. Entries of the same demand are served first come, first served. Between different demands the
oldest entry goes first. One that does not fit yet may be overtaken by younger ones; but once
`MOST_OVERTAKES` have taken something it waits for, its resources are reserved, as long as it waits
only for tasks that run now. (Resources that a blocked task or an actor keeps might never be free,
and the reservation might keep the task from running that would end the wait.)

Lent CPU. A blocked task lends its CPU, to tasks rather than to actors, which would keep it. If an
actor has taken it all the same, and no task with a CPU runs here, one task may run on it
nonetheless in place of the blocked one, which may be waiting for that task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from . import events
from .events import ActorSubmitted, Id, Out, Run, Submitted, Waiting
from .resources import Demand, DeviceResources
from .task_queue import DemandLine, TaskQueue, head_order

SHORT_S: Final = 0.001  # shorter tasks may be given to a busy worker
AHEAD_S: Final = 0.002  # the most work, in sum, that a worker is given
MOST_AHEAD: Final = 64
STUCK_S: Final = 0.005  # tasks given ahead are recalled from behind a longer one
STUCK_BUSY_S: Final = 0.05  # the same while no other worker is free
SURPLUS_S: Final = 1.0  # how long a surplus worker may idle
MOST_OVERTAKES: Final = 32
WEIGHT: Final = 0.2  # of the newest measurement in a mean


class RunTimes(dict[bytes, float]):
    """Holds the mean run time of each function on one device, in seconds."""

    def add(self, function: bytes, run_s: float) -> None:
        mean_s = self.get(function)
        self[function] = run_s if mean_s is None else mean_s + WEIGHT * (run_s - mean_s)


@dataclass(slots=True, eq=False)
class WorkerState:
    """One process that runs tasks, one at a time, in the order it was given them."""

    id: Id
    local: LocalScheduler
    since_s: float  # when its task began, or it became idle
    running: Submitted | None = None
    ahead: deque[Submitted] = field(default_factory=deque)  # run with the same resources, later
    demand: Demand | None = None  # the resources it holds
    open_for: Demand | None = None  # the demand of tasks it may be given ahead
    work_s: float = 0.0  # expected, of all tasks it was given
    blocked: bool = False
    recalled: bool = False


class LocalScheduler:
    """Holds queue, workers and resources of one device. Instructions are appended to `out`."""

    def __init__(self, index: int, resources: Mapping[str, float]) -> None:
        self.index = index
        self.resources = DeviceResources(resources)
        self.run_times = RunTimes()
        self.queue = TaskQueue()
        self.workers: dict[Id, WorkerState] = {}
        self.idle: list[WorkerState] = []  # the latest at the end
        self.starting = 0
        self.actors = 0

    @property
    def has_worker(self) -> bool:
        """Tells whether there is a worker that waits for nothing."""
        return any(not worker.blocked for worker in self.workers.values())

    # What comes in

    def accept(self, entry: Submitted, now_s: float, out: Out) -> None:
        """Starts the task, gives it ahead to a busy worker, or queues it."""
        entry.local = self
        demand = entry.want
        queue = self.queue
        resources = self.resources
        if not queue.active:
            if resources.fits(demand):
                if self.idle:
                    self._begin(self.idle.pop(), entry, now_s, out)
                    return
            elif self._give_ahead(entry, now_s, out):
                return
        is_first = demand not in queue.active
        queue.push(entry)
        # Behind others of its line it can start only after these, or on a further worker.
        if is_first or (self.starting < resources.cpus and resources.fits(demand)):
            self.dispatch(now_s, out)

    def enqueue(self, entry: Waiting, first: bool = False) -> None:
        entry.local = self
        self.queue.push(entry, first)

    def finished(
        self, worker: WorkerState, entry: Submitted, run_s: float, now_s: float, out: Out
    ) -> None:
        """Notes that `entry` has ended on `worker` after `run_s`, and gives the worker more."""
        self.run_times.add(entry.function, run_s)
        if worker.blocked:
            self.unblock(worker)
        ahead = worker.ahead
        if entry is not worker.running:
            ahead.remove(entry)
            worker.work_s -= entry.cost_s
            return
        active = self.queue.active
        if ahead:
            self._start_next(worker, ahead.popleft(), now_s)
            worker.work_s -= entry.cost_s
            if active:
                self._refill(worker, now_s, out)
            return
        demand = worker.demand
        assert demand is not None
        if (
            len(active) == 1
            and (line := active.get(demand)) is not None
            and not demand.actor
            and not worker.recalled
            and not self.resources.overdrawn(demand)
        ):  # the next task of the only line takes over its resources
            worker.work_s = 0.0
            next_task = self.queue.pop(line)
            assert isinstance(next_task, Submitted)
            self._start_next(worker, next_task, now_s)
            self._give(worker, next_task, self.run_times.get(next_task.function), out)
            if active:
                self._refill(worker, now_s, out)
            return
        self._make_idle(worker, now_s)
        if active:
            self.dispatch(now_s, out)

    # Who runs next

    def dispatch(self, now_s: float, out: Out) -> None:
        """Starts all that can start, and requests the workers that are missing."""
        queue, resources = self.queue, self.resources
        lines = list(queue.active.values())
        reserved: set[str] = set()
        waiting: list[Waiting] = []  # heads that do not fit
        promised: list[Demand] = []  # demands that workers being started will take
        while lines:
            line = lines[0] if len(lines) == 1 else min(lines, key=head_order)
            demand = line.demand
            if reserved and not reserved.isdisjoint(demand.names):
                lines.remove(line)
                continue
            started = False
            if self._admits(demand, promised):
                if demand.actor:
                    actor = queue.pop(line)
                    assert isinstance(actor, ActorSubmitted)
                    resources.take_for_life(demand)
                    self.actors += 1
                    out.append(events.StartActor(actor.actor, self.index))
                    started = True
                elif self.idle:
                    task = queue.pop(line)
                    assert isinstance(task, Submitted)
                    self._begin(self.idle.pop(), task, now_s, out)
                    started = True
                else:
                    self._promise(line, promised)
                    self._give_line_ahead(line, waiting, now_s, out, short_only=True)
            else:
                if not demand.actor:
                    self._give_line_ahead(line, waiting, now_s, out)
                if line.entries:
                    head = line.head
                    waiting.append(head)
                    if head.overtaken >= MOST_OVERTAKES and resources.will_come(demand):
                        reserved |= demand.names
            if started:
                _overtake(waiting, demand)
            if not started or not line.entries:
                lines.remove(line)
        for demand in promised:
            resources.give(demand)
        while self.starting < len(promised):
            self.starting += 1
            out.append(events.StartWorker(self.index))

    def _admits(self, demand: Demand, promised: list[Demand]) -> bool:
        resources = self.resources
        if resources.fits(demand):
            if not (demand.actor and demand.cpu and resources.lent_cpu):
                return True
            return resources.fits_without_lent(demand) or not any(
                other.cpu and not other.actor for other in self.queue.active
            )
        return (
            0 < demand.cpu <= resources.lent_cpu
            and not demand.actor
            and not promised
            and resources.fits_but_for_cpu(demand)
            and not any(
                worker.demand is not None and worker.demand.cpu and not worker.blocked
                for worker in self.workers.values()
            )
        )

    def _promise(self, line: DemandLine, promised: list[Demand]) -> None:
        for _ in range(len(line.entries)):
            if not self._admits(line.demand, promised):
                break
            self.resources.take(line.demand)
            promised.append(line.demand)

    def _begin(self, worker: WorkerState, entry: Submitted, now_s: float, out: Out) -> None:
        """Gives an idle worker the task and the resources it demands."""
        demand = entry.want
        self.resources.take(demand)
        worker.demand = demand
        self._start_next(worker, entry, now_s)
        self._give(worker, entry, self.run_times.get(entry.function), out)

    def _start_next(self, worker: WorkerState, entry: Submitted, now_s: float) -> None:
        worker.running = entry
        worker.since_s = now_s
        worker.open_for = None if worker.recalled else worker.demand

    def _give(self, worker: WorkerState, entry: Submitted, mean_s: float | None, out: Out) -> None:
        # A function that was never measured is taken to fill the worker.
        entry.cost_s = cost_s = AHEAD_S if mean_s is None else mean_s
        worker.work_s += cost_s
        entry.worker = worker
        out.append(Run(entry.task, worker.id))

    def _make_idle(self, worker: WorkerState, now_s: float) -> None:
        assert worker.demand is not None
        self.resources.give(worker.demand)
        worker.running = worker.demand = worker.open_for = None
        worker.work_s = 0.0
        worker.since_s = now_s
        self.idle.append(worker)

    # Given ahead

    def _has_room(self, worker: WorkerState, mean_s: float | None) -> bool:
        if mean_s is None:
            return not worker.ahead and worker.work_s <= AHEAD_S
        return (
            mean_s < SHORT_S
            and worker.work_s + mean_s <= AHEAD_S
            and len(worker.ahead) < MOST_AHEAD
        )

    def _give_ahead(self, entry: Submitted, now_s: float, out: Out) -> bool:
        """Gives a task to the busy worker with the least work, if one has room."""
        mean_s = self.run_times.get(entry.function)
        if mean_s is not None and mean_s >= SHORT_S:
            return False
        demand = entry.want
        best: WorkerState | None = None
        least_s = AHEAD_S * 2
        for worker in self.workers.values():
            if (
                worker.open_for is demand
                and worker.work_s < least_s
                and now_s - worker.since_s <= STUCK_S
                and self._has_room(worker, mean_s)
            ):
                best, least_s = worker, worker.work_s
        if best is None or self.resources.overdrawn(demand):
            return False
        best.ahead.append(entry)
        self._give(best, entry, mean_s, out)
        return True

    def _give_line_ahead(
        self,
        line: DemandLine,
        waiting: list[Waiting],
        now_s: float,
        out: Out,
        short_only: bool = False,
    ) -> None:
        while line.entries:
            head = line.head
            assert isinstance(head, Submitted)
            if short_only and self.run_times.get(head.function) is None:
                return
            if not self._give_ahead(head, now_s, out):
                return
            self.queue.take(head)
            _overtake(waiting, line.demand)

    def _refill(self, worker: WorkerState, now_s: float, out: Out) -> None:
        """Gives a worker waiting tasks ahead, unless another line waits, too."""
        active = self.queue.active
        demand = worker.open_for
        if len(active) > 1:
            self.dispatch(now_s, out)
            return
        if demand is None:
            return
        line = active.get(demand)
        if line is None or self.resources.overdrawn(demand):
            return
        get_mean_s = self.run_times.get
        while line.entries:
            head = line.head
            assert isinstance(head, Submitted)
            mean_s = get_mean_s(head.function)
            if not self._has_room(worker, mean_s):
                return
            self.queue.take(head)
            worker.ahead.append(head)
            self._give(worker, head, mean_s, out)

    # Workers and actors come, wait and go

    def add_worker(self, id: Id, now_s: float) -> WorkerState:
        worker = self.workers[id] = WorkerState(id, self, now_s)
        self.starting = max(0, self.starting - 1)
        self.idle.append(worker)
        return worker

    def remove_worker(self, worker: WorkerState) -> list[Submitted]:
        """Removes a worker that is gone; returns the tasks it had been given."""
        del self.workers[worker.id]
        if worker.running is None:
            self.idle.remove(worker)
            return []
        if worker.blocked:
            self.unblock(worker)
        tasks = [worker.running, *worker.ahead]
        assert worker.demand is not None
        self.resources.give(worker.demand)
        return tasks

    def take_back(self, worker: WorkerState, entries: list[Submitted], now_s: float) -> None:
        """Takes tasks back that the worker will not run."""
        for entry in entries:
            entry.worker = None
            worker.work_s -= entry.cost_s
            if entry is worker.running:
                worker.running = None
            else:
                worker.ahead.remove(entry)
        if worker.running is None and worker.demand is not None:
            if worker.ahead:
                self._start_next(worker, worker.ahead.popleft(), now_s)
            else:
                if worker.blocked:
                    self.unblock(worker)
                self._make_idle(worker, now_s)
        elif not worker.blocked and not worker.recalled:
            worker.open_for = worker.demand

    def block(self, worker: WorkerState, out: Out) -> None:
        assert worker.demand is not None
        worker.blocked = True
        worker.open_for = None
        self.resources.lend(worker.demand)
        if worker.ahead and not worker.recalled:  # they were on their way when it blocked
            worker.recalled = True
            out.append(events.Recall(worker.id))

    def unblock(self, worker: WorkerState) -> None:
        assert worker.demand is not None
        worker.blocked = False
        self.resources.lend(worker.demand, -1)

    def recall_stuck(self, now_s: float, others_fit: bool, out: Out) -> None:
        """Recalls the tasks given ahead to workers whose running task is a long one."""
        for worker in self.workers.values():
            if not worker.ahead or worker.recalled or worker.demand is None:
                continue
            lasted_s = now_s - worker.since_s
            free = others_fit or self.resources.fits(worker.demand)
            if lasted_s > (STUCK_S if free else STUCK_BUSY_S):
                worker.recalled = True
                worker.open_for = None
                out.append(events.Recall(worker.id))

    def stop_surplus(self, now_s: float, out: Out) -> list[WorkerState]:
        """Stops idle workers beyond one for each CPU, and returns them."""
        stopped = []
        while self.surplus() and now_s - self.idle[0].since_s >= SURPLUS_S:
            worker = self.idle.pop(0)
            del self.workers[worker.id]
            stopped.append(worker)
            out.append(events.StopWorker(worker.id))
        return stopped

    def surplus(self) -> bool:
        """Tells whether there are idle workers and more workers than CPUs."""
        if not self.idle:
            return False
        num_going = sum(not worker.blocked for worker in self.workers.values())
        return num_going > self.resources.cpus


def _overtake(waiting: list[Waiting], demand: Demand) -> None:
    for older in waiting:
        if not older.want.names.isdisjoint(demand.names):
            older.overtaken += 1
