"""Names the events that the scheduler is told, and the instructions that it answers with.

An event belongs to the scheduler once it is handed over: what waits is kept as the event that
submitted it. Tasks, workers and actors are named by whatever the driver names them with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .local_scheduler import LocalScheduler, WorkerState
    from .resources import Demand
    from .task_queue import DemandLine

Id: TypeAlias = Any  # whatever the driver names it with


@dataclass(slots=True, eq=False)
class QueueEntry:
    """Fields of what can wait in a queue that are the scheduler's own."""

    want: Demand = field(init=False, repr=False)
    order: int = field(init=False, repr=False)  # by submission
    # Younger ones that took what it waits for.
    overtaken: int = field(init=False, repr=False, default=0)
    line: DemandLine | None = field(init=False, repr=False, default=None)  # where it waits
    local: LocalScheduler = field(init=False, repr=False)  # where it is


@dataclass(slots=True, eq=False)
class Submitted(QueueEntry):
    """A process of `device` submitted a task all inputs of which are there."""

    task: Id
    function: bytes
    device: int
    demand: Mapping[str, float]
    pinned: int | None = None  # the device it must run on
    worker: WorkerState | None = field(init=False, repr=False, default=None)
    cost_s: float = field(init=False, repr=False)  # what it counts for on its worker


@dataclass(slots=True, eq=False)
class ActorSubmitted(QueueEntry):
    """An actor wants its resources, for life."""

    actor: Id
    device: int
    demand: Mapping[str, float]
    pinned: int | None = None
    blocked: bool = field(init=False, repr=False, default=False)


Waiting: TypeAlias = Submitted | ActorSubmitted  # what can wait in a queue


@dataclass(slots=True)
class Finished:
    """A worker has run a task, well or not."""

    task: Id
    worker: Id
    run_s: float


@dataclass(slots=True)
class Blocked:
    """The task of a worker, or an actor's method, waits in get(), and lends its CPUs meanwhile."""

    worker: Id


@dataclass(slots=True)
class Unblocked:
    """The task goes on, at once: its CPUs count again, were they over-committed by that."""

    worker: Id


@dataclass(slots=True)
class Cancelled:
    """A task that no worker was given is not wanted any more."""

    task: Id


@dataclass(slots=True)
class WorkerStarted:
    worker: Id
    device: int


@dataclass(slots=True)
class WorkerLost:
    """A worker is gone. Its tasks are forgotten: the driver submits again what shall run again."""

    worker: Id


@dataclass(slots=True)
class Returned:
    """A worker gives back tasks it had not begun; the answer to `Recall`."""

    worker: Id
    tasks: tuple[Id, ...]


@dataclass(slots=True)
class Ticked:
    """Time has passed. Wanted every few milliseconds while `Scheduler.wants_tick`."""


@dataclass(slots=True)
class ActorGone:
    """An actor is dead, or is not wanted any more before it was started."""

    actor: Id


Event: TypeAlias = (
    Submitted | Finished | Blocked | Unblocked | Cancelled | WorkerStarted | WorkerLost | Returned
    | Ticked | ActorSubmitted | ActorGone
)  # fmt: skip


@dataclass(slots=True)
class Run:
    """Hand the task to the worker, which runs what it is handed in that order."""

    task: Id
    worker: Id


@dataclass(slots=True)
class StartWorker:
    """One more worker process is wanted; `WorkerStarted` answers."""

    device: int


@dataclass(slots=True)
class StopWorker:
    """An idle one too many. The scheduler has forgotten it already."""

    worker: Id


@dataclass(slots=True)
class Recall:
    """Ask for the tasks this worker has not begun; `Returned` answers, with none if need be."""

    worker: Id


@dataclass(slots=True)
class StartActor:
    actor: Id
    device: int


@dataclass(slots=True)
class Infeasible:
    """No device can ever run it. It is forgotten."""

    subject: Id  # a task or an actor
    reason: str


Instruction: TypeAlias = Run | StartWorker | StopWorker | Recall | StartActor | Infeasible
Out: TypeAlias = list[Instruction]  # what is to be done is appended to it
