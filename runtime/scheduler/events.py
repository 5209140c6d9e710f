"""Names the events that the scheduler is told, and the instructions that it answers with.

The scheduler owns an event that it is told, as it queues the events that submit tasks and actors.
Tasks, workers and actors have the ids that the driver gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .local_scheduler import LocalScheduler, WorkerState
    from .resources import Demand
    from .task_queue import DemandLine

Id: TypeAlias = Any  # any value by which the driver names it


@dataclass(slots=True, eq=False)
class QueueEntry:
    """Holds the scheduler's own fields of what can wait in a queue."""

    want: Demand = field(init=False, repr=False)
    order: int = field(init=False, repr=False)  # by submission
    # Younger entries that have taken resources it waits for.
    overtaken: int = field(init=False, repr=False, default=0)
    line: DemandLine | None = field(init=False, repr=False, default=None)  # in which it waits
    local: LocalScheduler = field(init=False, repr=False)  # the device that it is on


@dataclass(slots=True, eq=False)
class Submitted(QueueEntry):
    """A process of `device` submitted a task whose inputs are ready."""

    task: Id
    function: bytes
    device: int
    demand: Mapping[str, float]
    pinned: int | None = None  # the device it must run on
    worker: WorkerState | None = field(init=False, repr=False, default=None)
    cost_s: float = field(init=False, repr=False)  # its expected run time on its worker


@dataclass(slots=True, eq=False)
class ActorSubmitted(QueueEntry):
    """An actor was submitted, which holds its resources for life."""

    actor: Id
    device: int
    demand: Mapping[str, float]
    pinned: int | None = None
    blocked: bool = field(init=False, repr=False, default=False)


Waiting: TypeAlias = Submitted | ActorSubmitted  # what can wait in a queue


@dataclass(slots=True)
class Finished:
    """A worker has run a task, which may have failed."""

    task: Id
    worker: Id
    run_s: float


@dataclass(slots=True)
class Blocked:
    """A worker's task, or an actor's method, waits in get() and lends its CPUs meanwhile."""

    worker: Id


@dataclass(slots=True)
class Unblocked:
    """The task goes on at once: its CPUs count again, even if that over-commits them."""

    worker: Id


@dataclass(slots=True)
class Cancelled:
    """A task that was given to no worker was cancelled."""

    task: Id


@dataclass(slots=True)
class WorkerStarted:
    worker: Id
    device: int


@dataclass(slots=True)
class WorkerNotStarted:
    """A worker could not be started; the next event of its device may ask for it again.

    Meanwhile tasks that may run on another device with a worker go there.
    """

    device: int


@dataclass(slots=True)
class WorkerLost:
    """A worker is gone. Its tasks are forgotten; the driver submits again what is to run again."""

    worker: Id


@dataclass(slots=True)
class Returned:
    """A worker gives back tasks it had not begun; the answer to `Recall`."""

    worker: Id
    tasks: tuple[Id, ...]


@dataclass(slots=True)
class Ticked:
    """Time has passed; to be told every few milliseconds while `Scheduler.wants_tick`."""


@dataclass(slots=True)
class ActorGone:
    """An actor is dead, or was dropped before it was started."""

    actor: Id


Event: TypeAlias = (
    Submitted | Finished | Blocked | Unblocked | Cancelled | WorkerStarted | WorkerNotStarted
    | WorkerLost | Returned | Ticked | ActorSubmitted | ActorGone
)  # fmt: skip


@dataclass(slots=True)
class Run:
    """Give the task to the worker, which runs tasks in the order they were given."""

    task: Id
    worker: Id


@dataclass(slots=True)
class StartWorker:
    """Start one more worker process; `WorkerStarted` or `WorkerNotStarted` answers."""

    device: int


@dataclass(slots=True)
class StopWorker:
    """Stop an idle worker, which the scheduler has forgotten already."""

    worker: Id


@dataclass(slots=True)
class Recall:
    """Ask a worker for the tasks it has not begun; `Returned` answers, perhaps with none."""

    worker: Id


@dataclass(slots=True)
class StartActor:
    actor: Id
    device: int


@dataclass(slots=True)
class Infeasible:
    """Fail a task or an actor that no device can ever run; it is forgotten."""

    subject: Id  # a task or an actor
    reason: str


Instruction: TypeAlias = Run | StartWorker | StopWorker | Recall | StartActor | Infeasible
Out: TypeAlias = list[Instruction]  # instructions are appended to it
