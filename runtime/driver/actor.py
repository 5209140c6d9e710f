"""One actor, as the driver knows it."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from gmi_drl.runtime.api.options import ActorOptions, demand
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.api.signatures import Method
from gmi_drl.runtime.errors import ActorDiedError
from gmi_drl.runtime.process.logs import log_tail
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import SpawnRequest

from .link import Process
from .task import Task

_SHOWN: Final = {  # by what the control store calls it
    "starting": "PENDING_CREATION",
    "alive": "ALIVE",
    "restarting": "RESTARTING",
    "dead": "DEAD",
}
RECORDS_KEPT: Final = 100_000  # undrained records per actor


class Actor:
    """One actor. The runtime's thread writes it; others read."""

    def __init__(
        self, creation: Task, name: str, class_name: str, methods: Mapping[str, Method],
        options: ActorOptions, cls: bytes, setup: bytes, request: SpawnRequest,
    ) -> None:  # fmt: skip
        self.id = creation.id
        self.name = name
        self.class_name = class_name
        self.options = options
        self.cls, self.setup = cls, setup
        self.methods = methods
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
        self.deaths: list[ActorDiedError] = []  # that it was restarted after
        self.dead = False
        self.told = False  # somebody had a reference by which it learns of its death
        self.held = 0  # handles in the driver
        self.sending = threading.Lock()  # the driver's calls keep their order under it
        self.indirect = 0  # calls of the driver that are not on their way yet
        self.sequence = 0  # methods handed over so far
        self.waiting: dict[int | bytes, collections.deque[Task]] = {}  # by line, in order
        self.backlog: collections.deque[Task] = collections.deque()  # it has no process yet
        self.unanswered: dict[int, Task] = {}  # by sequence
        self.log: collections.deque[Task] = collections.deque()  # answered since the checkpoint
        self.checkpoint = 0  # the sequence number it covers
        self.checkpoint_slot: Slot | None = None
        self.rebuilding_failed: Slot | None = None  # what __init__ or restore raised then
        self.records: collections.deque[framing.Message] = collections.deque(maxlen=RECORDS_KEPT)
        self.dropped = 0  # records the actor, or this side, had no room for
        self.asked = False  # to come to an end
        self.end_reason = ""  # why it is being ended from outside
        self.unwanted = False  # nobody has a handle: it ends when it has answered
        self.death_slot = Slot(b"", f"{name}: its death")  # filled with the ActorDiedError
        self._death: tuple[Any, ...] = ()

    @property
    def at_once(self) -> bool:
        """Whether it may run several calls at once."""
        return self.options.max_concurrency != 1 or bool(self.options.concurrency_groups)

    def line(self, task: Task) -> int | bytes:
        """The queue that a call waits in: behind its caller's others, if they run in order."""
        return task.id if self.at_once else task.caller

    @property
    def logs(self) -> bool:
        """Whether the calls it has answered are kept, to be run again after a crash."""
        return self.options.max_restarts != 0 and not self.at_once

    def retries(self, task: Task) -> int:
        """At how many crashes a call is run again that was running; -1: at all."""
        chosen = self._option(task, "max_task_retries")
        return self.options.max_task_retries if chosen is None else int(chosen)

    def group(self, task: Task) -> str:
        """The concurrency group that a call runs in; empty: none."""
        group = self._option(task, "concurrency_group")
        return group if group in self.options.concurrency_groups else ""

    def _option(self, task: Task, name: str) -> Any:
        """What a call was given, or what the class says of its method."""
        changes = task.options or {}
        return changes[name] if name in changes else getattr(self.methods[task.function], name)  # type: ignore[index]

    @property
    def wants_place(self) -> bool:
        """Whether the scheduler decides where it runs."""
        return bool(self.demand) or self.options.device is not None

    @property
    def pid(self) -> int | None:
        """Of its process; the last one's when it is dead."""
        return self.process.pid if self.process is not None else None

    @property
    def log_path(self) -> str:
        return self.process.log if self.process is not None else ""

    def about(self) -> tuple[Any, ...]:
        """What a listing tells of it: the fields of an ActorState."""
        state = _SHOWN[self.state]
        if self.state == "starting" and self.creation.missing:
            state = "DEPENDENCIES_UNREADY"
        namespace, name = self.registered or ("", "")
        return (
            self.id.hex(), self.class_name, state, name, namespace, self.pid, self.restarts,
            dict(self.demand), str(self.death()) if self.dead else "",
        )  # fmt: skip

    def death(self) -> ActorDiedError:
        """How it ended, as a fresh exception: each raise adds its traceback to its own."""
        return ActorDiedError(*self._death)

    def buried(self, death: ActorDiedError) -> None:
        """It is over, with this."""
        self._death = death.fields()
        self.dead = True

    def log_tail(self) -> str:
        """The last 40 lines of its log, as they were at its death; empty when there is none."""
        return self.death().log_tail if self._death else log_tail(self.log_path)
