"""Describes a call: what is called with what, and how far it is."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime import ids
from gmi_drl.runtime.errors import SerializationError
from gmi_drl.runtime.wire import packing

if TYPE_CHECKING:
    from gmi_drl.runtime.api.refs import Slot

STREAMING: Final = -1  # as `returns`: a generator, one result for each item it yields

WAITING, QUEUED, RUNNING, FINISHED, FAILED, CANCELLED = (
    "waiting", "queued", "running", "finished", "failed", "cancelled",
)  # fmt: skip


@dataclass(slots=True, eq=False, repr=False)
class TaskSpec:
    """One call of a function or a method, or the creation of an actor.

    It is made by the caller; from then on only the driver uses it.
    """

    id: bytes
    actor: bytes  # the actor whose method it is; empty for a function
    name: str
    parent: bytes  # the call that made it; empty if that was cancelled before
    function: bytes | str  # the id of a function, or the name of a method
    arguments: bytes  # packed; empty when they lie in the object store
    body_id: bytes  # as this object
    inputs: Sequence[bytes]  # objects whose values are arguments
    refs: Sequence[bytes]  # objects and actors that are mentioned inside the arguments
    returns: int
    options: Any  # TaskOptions of a function; of a method, what was changed
    demand: Mapping[str, float]  # what it holds while it runs
    submitted_s: float
    # What the driver adds.
    slots: list[Slot] = field(default_factory=list)
    keep: Any = None  # Memfds among the arguments
    partial: list[tuple[int, Any, Any]] = field(default_factory=list)  # yielded before it raised
    caller: int = 0  # the process it was submitted by
    missing: int = 0  # inputs that are not there yet
    state: str = WAITING
    recorded: str = ""  # the state that the control store knows
    attempts: int = 0
    retries: int = 0  # of a function, left; of a method, crashes that it was running at
    failures: int = 0  # of a function: raised, and was begun again
    taken: int = 0  # results of a generator that its one reader has got
    device: int = -1
    process: Any = None  # the Process where it runs
    number: int = 0  # of the call on that process
    pid: int = 0
    sequence: int = 0  # which method of its actor
    started_s: float = 0.0
    finished_s: float = 0.0

    def fields(self) -> tuple[Any, ...]:
        """Returns what the constructor takes, in its order."""
        return (
            self.id, self.actor, self.name, self.parent, self.function, self.arguments,
            self.body_id, self.inputs, self.refs, self.returns, self.options,
            self.demand, self.submitted_s,
        )  # fmt: skip

    def packed(self) -> bytes:
        """Returns its pickled fields; `retry_exceptions` are packed, as not all can import them."""
        sent, classes = self, getattr(self.options, "retry_exceptions", False)
        if isinstance(classes, tuple):
            packed = packing.pack_plain(classes, f"the retry_exceptions of {self.name}")
            sent = dataclasses.replace(self, options=copy.copy(self.options))
            object.__setattr__(sent.options, "retry_exceptions", packed)  # no user's, to be checked
        return pickle.dumps(sent.fields(), 5)

    def unpack_options(self) -> None:
        """Unpacks `retry_exceptions`; ValueError if this process cannot import them."""
        classes = getattr(self.options, "retry_exceptions", False)
        if not isinstance(classes, bytes):
            return
        try:
            unpacked = packing.unpack(classes, f"the retry_exceptions of {self.name}")
        except Exception as error:
            raise ValueError(
                f"{self.name}: the process that called init() cannot import its retry_exceptions "
                f"({type(error).__name__}: {error}). Extend sys.path there, too, or use True."
            ) from None
        self.options = dataclasses.replace(self.options, retry_exceptions=unpacked)

    def __conform__(self, _: object) -> bytes:
        """Returns what the control store keeps of it: all that is needed to run it again."""
        try:
            return self.packed()
        except SerializationError:
            return b""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (self.__conform__(None),)

    def result_ids(self) -> list[bytes]:
        """Returns the ids of its results; a generator's first is its end, the number of items."""
        return [ids.result(self.id, index) for index in range(max(1, self.returns))]
