"""Describes a call: what is called with what, and how far it is."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime import ids
from gmi_drl.runtime.errors import SerializationError
from gmi_drl.runtime.wire import packing

if TYPE_CHECKING:
    from gmi_drl.runtime.api.options import TaskOptions
    from gmi_drl.runtime.api.refs import Slot

STREAMING: Final = -1  # as `returns`: a generator, one result for each item it yields

WAITING, QUEUED, RUNNING, FINISHED, FAILED, CANCELLED = (
    "waiting", "queued", "running", "finished", "failed", "cancelled",
)  # fmt: skip


class Task:
    """One call of a function or a method, or the creation of an actor.

    Made where it is called; from then on the driver's alone.
    """

    __slots__ = (
        "actor", "arguments", "attempts", "body_id", "caller", "demand", "device", "failures",
        "finished_s", "function", "id", "inputs", "keep", "missing", "name", "number", "options",
        "parent", "partial", "pid", "process", "recorded", "refs", "retries", "returns", "sequence",
        "slots", "started_s", "state", "submitted_s",
    )  # fmt: skip

    def __init__(
        self, id: bytes, actor: bytes, name: str, parent: bytes, function: bytes | str,
        arguments: bytes, body_id: bytes, inputs: Sequence[bytes], refs: Sequence[bytes],
        returns: int, options: TaskOptions | Mapping[str, Any] | None, demand: Mapping[str, float],
        submitted_s: float,
    ) -> None:  # fmt: skip
        self.id = id
        self.actor = actor  # the actor whose method it is; empty for a function
        self.name = name
        self.parent = parent  # the call that made it; empty if that was cancelled before
        self.function = function  # the id of a function, or the name of a method
        self.arguments = arguments  # packed; empty when they lie in the object store
        self.body_id = body_id  # as this object
        self.inputs = inputs  # objects whose values are arguments
        self.refs = refs  # objects and actors that are mentioned inside the arguments
        self.returns = returns
        self.options: Any = options  # of a function; of a method, what was changed
        self.demand = demand  # what it holds while it runs
        self.submitted_s = submitted_s
        # What the driver adds.
        self.slots: list[Slot] = []
        self.keep: Any = None  # Memfds among the arguments
        self.partial: list[tuple[int, Any, Any]] = []  # results that were yielded before it raised
        self.caller = 0  # the process it was submitted by
        self.missing = 0  # inputs that are not there yet
        self.state = WAITING
        self.recorded = ""  # the state that the control store knows
        self.attempts = 0
        self.retries = 0  # of a function, left; of a method, crashes that it was running at
        self.failures = 0  # of a function: raised, and was begun again
        self.device = -1
        self.process: Any = None  # the Process where it runs
        self.number = 0  # of the call on that process
        self.pid = 0
        self.sequence = 0  # which method of its actor
        self.started_s = self.finished_s = 0.0

    def fields(self) -> tuple[Any, ...]:
        """What the constructor takes, in its order."""
        return (
            self.id, self.actor, self.name, self.parent, self.function, self.arguments,
            self.body_id, self.inputs, self.refs, self.returns, self.options,
            self.demand, self.submitted_s,
        )  # fmt: skip

    def __conform__(self, _: object) -> bytes:
        """As the control store's database keeps it: all that is needed to run it again."""
        try:
            return pickle.dumps(self.fields(), 5)
        except Exception:  # `retry_exceptions` may name a class that cannot be imported
            try:
                return packing.pack_plain(self.fields())
            except SerializationError:
                return b""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (self.__conform__(None),)

    def result_ids(self) -> list[bytes]:
        """The ids of its results; a generator's first is its end, the number of items."""
        return [ids.result(self.id, index) for index in range(max(1, self.returns))]
