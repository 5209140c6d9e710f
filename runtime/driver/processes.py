"""Holds the driver's records of a process, and of the actor that may live in it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import pickle
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gmi_drl.runtime.api.options import ActorOptions, demand
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.api.signatures import Method
from gmi_drl.runtime.errors import ActorDiedError
from gmi_drl.runtime.gcs.tables import ActorRow
from gmi_drl.runtime.process.logs import log_tail, write_stacks
from gmi_drl.runtime.wire import framing, packing
from gmi_drl.runtime.wire.channel import SocketChannel
from gmi_drl.runtime.wire.protocol import CallFailure, Exited, Kind, SpawnRequest

from .task import TaskSpec

RECORDS_KEPT: Final = 100_000  # undrained records per actor


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that waits until it can be sent to its process."""

    task: TaskSpec
    replayed: bool
    stored: list[bytes]  # ids of its inputs in the object store
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # those pinned
    asked: object = None  # a token of the current attempt to pin
    first_s: float = 0.0  # when it first found no room; -1: a warning was printed
    since_s: float = 0.0  # when only views by other processes were first in its way


class Process:
    """One process, a worker for tasks or an actor's. Used by the runtime's thread only."""

    def __init__(
        self, number: int, device: int, log: str, keep_log: bool,
        socks: tuple[socket.socket, socket.socket], *, actor: Actor | None,
    ) -> None:  # fmt: skip
        self.number, self.device, self.log = number, device, log
        self.keep_log = keep_log  # else it is removed with the process; errors quote its end
        self.channel, self.urgent = SocketChannel(socks[0]), SocketChannel(socks[1])
        self.actor = actor
        self.pid: int | None = None
        self.numbers = itertools.count(1)
        self.calls: dict[int, TaskSpec] = {}  # sent to it, in order
        self.to_send: collections.deque[PendingCall] = collections.deque()
        self.functions: dict[bytes, int] = {}  # sent to it, with their bytes
        self.function_bytes = 0
        self.gpu_ids: tuple[int | str, ...] = ()  # of a worker, for its calls
        self.pins: collections.Counter[bytes] = collections.Counter()
        self.creating: set[bytes] = set()  # objects it is writing
        self.wanted: set[bytes] = set()  # objects that its call waits for
        self.blocked = False
        self.dropped = 0  # records that it has dropped so far
        self.end_reason = ""  # why it is being ended from outside
        self.exited: Exited | None = None
        self.silent = False  # it has closed its socket
        self.never_forked = False  # the fork server died before it forked this process
        self.dead = False

    @property
    def scheduled_as(self) -> int | bytes:
        """Returns the id by which the scheduler knows the process."""
        return self.number if self.actor is None else self.actor.id

    @property
    def is_logged(self) -> bool:
        """Tells whether its calls must be recognised when they are made again after a crash."""
        return self.actor is not None and self.actor.keeps_log

    @property
    def runs_one_call(self) -> bool:
        """Tells whether no other of its calls can have begun before the first is answered."""
        return self.actor is None or not self.actor.is_concurrent or len(self.calls) == 1

    @property
    def may_run_again(self) -> bool:
        """Tells whether the call that it runs is run again if the process dies."""
        if self.actor is not None:
            return self.actor.options.max_restarts != 0
        return any(task.retries for task in itertools.islice(self.calls.values(), 1))

    def send(self, kind: Kind, id: int, value: Any) -> None:
        """Queues a frame with a pickled body."""
        self.channel.queue(framing.frame(kind, id, pickle.dumps(value, 5)))

    def send_object(self, slot: Slot, values: bool) -> None:
        """Tells the process that an object is ready, or (`values`) sends its value."""
        if self.dead:
            return
        self.wanted.discard(slot.id)
        error = slot.error_
        slot.seen = slot.seen or values
        if slot.stored:
            self.send(Kind.READY, 0, (slot.id, True))
        elif not values:
            self.send(Kind.READY, 0, (slot.id, False))
        elif error is not None:  # the runtime's own error arrives as it is
            failure = packing.pack(CallFailure(packing.pack_exception(error), "", 0.0)).body
            self.send(Kind.VALUE, 0, (slot.id, failure, True))
        else:
            self.send(Kind.VALUE, 0, (slot.id, bytes(slot.body), slot.failed))

    def remove_log(self) -> None:
        """Removes the log, whose end errors have quoted by now, unless it is to be kept."""
        if not self.keep_log:
            for path in (self.log, f"{self.log}.1"):
                Path(path).unlink(missing_ok=True)


class Actor:
    """One actor. The runtime's thread writes it; others read."""

    def __init__(
        self, creation: TaskSpec, *, name: str, class_name: str, methods: Mapping[str, Method],
        options: ActorOptions, cls: bytes, setup: bytes, request: SpawnRequest,
    ) -> None:  # fmt: skip
        self.id, self.name, self.options = creation.id, name, options
        self.class_name, self.cls, self.setup, self.methods = class_name, cls, setup, methods
        self.demand = demand(options)
        self.creation = creation
        self.request = request  # how its process is forked
        self.state = "starting"  # as the control store has it
        self.registered = (options.namespace, options.name) if options.name else None
        self.process: Process | None = None
        self.device = -1
        self.gpu_ids: tuple[int | str, ...] = ()
        self.created_s = time.time()
        self.restarts = 0
        self.deaths: list[ActorDiedError] = []  # those after which it was restarted
        self.dead = False
        self.death_seen = False  # whether a call reported the death to somebody
        self.held = 0  # handles in the driver
        self.sending = threading.Lock()  # keeps the order of the driver's calls
        self.unsent_calls = 0  # calls of the driver that are queued
        self.sequence = 0  # methods dispatched so far
        self.waiting: dict[int | bytes, collections.deque[TaskSpec]] = {}  # by line, in order
        self.backlog: collections.deque[TaskSpec] = collections.deque()  # while it has no process
        self.unanswered: dict[int, TaskSpec] = {}  # by sequence
        self.log: collections.deque[TaskSpec] = collections.deque()  # answered since the checkpoint
        self.checkpoint = 0  # the sequence number of the last one
        self.checkpoint_slot: Slot | None = None
        self.rebuilding_failed: Slot | None = None  # what __init__ or restore raised after a crash
        self.records: collections.deque[bytes] = collections.deque(maxlen=RECORDS_KEPT)
        self.dropped = 0  # records that were lost for want of room
        self.stop_requested = False
        self.end_reason = ""  # why it is being ended from outside
        self.unreferenced = False  # no handle is left: it ends once all is answered
        self.death_slot = Slot(b"", f"{name}: its death")  # filled with the ActorDiedError
        self._death: ActorDiedError | None = None

    @property
    def is_concurrent(self) -> bool:
        """Tells whether it may run several calls at once."""
        return self.options.max_concurrency != 1 or bool(self.options.concurrency_groups)

    def line(self, task: TaskSpec) -> int | bytes:
        """Returns the key of a call's queue: its caller, if calls of one caller run in order."""
        return task.id if self.is_concurrent else task.caller

    @property
    def keeps_log(self) -> bool:
        """Tells whether answered calls are kept, to be run again after a crash."""
        return self.options.max_restarts != 0 and not self.is_concurrent

    def number(self, task: TaskSpec) -> None:
        """Gives a call its sequence number."""
        self.sequence += 1
        task.sequence = self.sequence
        task.device = self.device
        self.unanswered[task.sequence] = task

    def sent(self, task: TaskSpec) -> None:
        """Notes that a call of the driver was sent or dropped; later ones may go directly."""
        if not task.caller and not task.attempts and task is not self.creation:
            with self.sending:
                self.unsent_calls -= 1

    def retries(self, task: TaskSpec) -> int:
        """Returns how many crashes a running call survives by being run again; -1: any number."""
        max_retries = self._option(task, "max_task_retries")
        return self.options.max_task_retries if max_retries is None else int(max_retries)

    def begun(self) -> list[TaskSpec]:
        """Lists those of the calls sent to its process that may have begun."""
        assert self.process is not None
        calls = list(self.process.calls.values())
        if self.creation in calls:
            return []
        free = {"": self.options.max_concurrency or 1, **self.options.concurrency_groups}
        begun = []
        for task in calls:
            group = self._option(task, "concurrency_group")
            group = group if group in self.options.concurrency_groups else ""
            if free[group]:
                free[group] -= 1
                begun.append(task)
        return begun

    def _option(self, task: TaskSpec, name: str) -> Any:
        """Returns an option of a call, else of its method in the class."""
        changes = task.options or {}
        return changes[name] if name in changes else getattr(self.methods[task.function], name)  # type: ignore[index]

    @property
    def is_scheduled(self) -> bool:
        """Tells whether the scheduler decides where it runs."""
        return bool(self.demand) or self.options.device is not None

    @property
    def pid(self) -> int | None:
        """Returns the pid of its process; of the last one when it is dead."""
        return self.process.pid if self.process is not None else None

    @property
    def log_path(self) -> str:
        return self.process.log if self.process is not None else ""

    def state_fields(self) -> tuple[Any, ...]:
        """Returns the fields of an ActorState, as a listing shows it."""
        state = self.state.upper()
        if self.state == "starting":
            state = "DEPENDENCIES_UNREADY" if self.creation.missing else "PENDING_CREATION"
        namespace, name = self.registered or ("", "")
        return (
            self.id.hex(), self.class_name, state, name, namespace, self.pid, self.restarts,
            dict(self.demand), str(self.death()) if self.dead else "",
        )  # fmt: skip

    def row(self, reason: str) -> ActorRow:
        """Returns the actor as the control store keeps it."""
        return ActorRow(
            id=self.id, name=self.name, class_name=self.class_name, state=self.state,
            pid=self.pid or 0, device=self.device, restarts=self.restarts,
            max_restarts=self.options.max_restarts, checkpoint=self.checkpoint,
            created_s=self.created_s, died_s=time.time() if self.dead else 0.0, reason=reason,
        )  # fmt: skip

    def death_by(
        self, exited: Exited, reason: str, cause: BaseException | None = None
    ) -> ActorDiedError:
        """Returns the end of its process as an error."""
        return ActorDiedError(
            self.name, self.pid, exited.exit_code, exited.signal, log_tail=log_tail(self.log_path),
            reason=reason, cause=cause, died_s=exited.died_s,
        )  # fmt: skip

    def die(self, death: ActorDiedError) -> None:
        """Marks the actor dead by this error."""
        self._death = death
        self.dead = True

    def death(self) -> ActorDiedError:
        """Returns its death as a fresh exception, as each raise adds to a traceback."""
        assert self._death is not None
        return dataclasses.replace(self._death)

    def add_record(self, record: bytes, dropped: int) -> None:
        """Adds a record, before which its process has dropped so many."""
        self.dropped += dropped + (len(self.records) == self.records.maxlen)
        self.records.append(record)

    def take_records(self) -> Iterator[bytes]:
        """Yields the records that nobody has fetched, and forgets them."""
        with contextlib.suppress(IndexError):
            while True:
                yield self.records.popleft()

    def write_stacks(self, timeout: timedelta) -> bool:
        """Has its process write the stacks of its threads to its log; False if that fails."""
        return self.pid is not None and write_stacks(self.pid, self.log_path, timeout)

    def log_tail(self) -> str:
        """Returns the last 40 lines of its log, as they were at its death; empty without a log."""
        return log_tail(self.log_path) if self._death is None else self._death.log_tail
