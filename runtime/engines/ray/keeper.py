"""Keeps, in one actor beside the driver, what must outlive the processes of restarted actors."""

from __future__ import annotations

import asyncio
import collections
from dataclasses import dataclass, field
from typing import Any, Final

import ray

from . import interrupts, nodes

KEEPER: Final = "gmi-drl keeper"  # its name

RECORDS_KEPT: Final = 100_000  # unfetched records of one actor; older ones are dropped
ENDS_KEPT: Final = 10_000  # dead actors whose ends are known; older ones are dropped
_FEW: Final = 16  # with fewer actors dead ones are not looked for

Value = tuple[Any, dict[bytes, Any]]  # a packed value, and the references and handles in it


@dataclass(frozen=True)
class JournaledCall:
    """A call that an actor has run, to be run again when its process is replaced."""

    call: Any  # the Call
    inputs: tuple[Any, ...]  # Ray's references of its inputs


@dataclass
class ActorLedger:
    """Holds what the keeper knows of one actor."""

    fields: tuple[Any, ...] = ()  # of a handle: id, name, class name, methods
    processes: list[tuple[int, str]] = field(default_factory=list)  # pid and host of each, in order
    state: Value | None = None  # what save() gave last
    journal: list[JournaledCall] = field(default_factory=list)  # since then
    begun: dict[bytes, int] = field(default_factory=dict)  # the crashes of calls that run
    failure: bytes = b""  # what __init__ or restore raised
    reason: str = ""  # why the driver ended it
    stop_requested: bool = False
    records: collections.deque[bytes] = field(default_factory=collections.deque)
    dropped: int = 0


class Keeper:
    """The actor. Its methods do not wait, so that they run one after the other.

    Actors are named by Ray's id of theirs, in hexadecimal.
    """

    def __init__(self, sys_path: list[str]) -> None:
        self._sys_path = sys_path
        self._actors: dict[str, ActorLedger] = {}  # those that lived at the last check
        self._dead: dict[str, ActorLedger] = {}  # in the order of their deaths
        self._sweep: asyncio.Task[None] | None = None
        self._limit = _FEW  # dead actors are looked for beyond this number

    def _ledger(self, actor: str) -> ActorLedger:
        """Returns the ledger of an actor, made if there is none."""
        if actor not in self._actors and actor not in self._dead:
            self._actors[actor] = ActorLedger()
            if len(self._actors) > self._limit and (self._sweep is None or self._sweep.done()):
                self._sweep = asyncio.create_task(self._drop_dead())
        return self._recorded(actor)

    def _recorded(self, actor: str) -> ActorLedger:
        """Returns the ledger of an actor, or an empty one, for reading."""
        return self._actors.get(actor) or self._dead.get(actor) or ActorLedger()

    async def _drop_dead(self) -> None:
        """Drops state and journals of dead actors, and the whole ledgers of the oldest ones.

        Records stay until they are fetched, and so do the ends of actors, for their references.
        """
        actors = list(self._actors)
        rows = await asyncio.to_thread(lambda: [nodes.actor_row(actor) for actor in actors])
        for actor, row in zip(actors, rows, strict=True):
            if nodes.is_dead_for_good(row, restarts=bool(self._actors[actor].processes)):
                ledger = self._dead[actor] = self._actors.pop(actor)
                ledger.state, ledger.journal, ledger.begun, ledger.fields = None, [], {}, ()
        fetched = [actor for actor, ledger in self._dead.items() if not ledger.records]
        for actor in fetched[:-ENDS_KEPT]:
            del self._dead[actor]
        self._limit = 2 * len(self._actors) + _FEW

    async def sys_path(self) -> list[str]:
        """Returns the driver's sys.path, as its functions may be of modules there."""
        return self._sys_path

    async def describe(self, actor: str, fields: tuple[Any, ...]) -> None:
        """Notes the fields of handles to a named actor."""
        self._ledger(actor).fields = fields

    async def described(self, actor: str) -> tuple[Any, ...]:
        return self._recorded(actor).fields

    async def started(
        self, actor: str, pid: int, host: str
    ) -> tuple[int, Value | None, list[JournaledCall]]:
        """Notes a new process; returns its number, and what it has to restore and to replay."""
        ledger = self._ledger(actor)
        ledger.processes.append((pid, host))
        return len(ledger.processes) - 1, ledger.state, ledger.journal

    async def note(self, actor: str, state: Value | None, done: JournaledCall | None) -> None:
        """Notes a checkpoint, which replaces the journal, and a call that was run after it."""
        ledger = self._ledger(actor)
        if state is not None:
            ledger.state, ledger.journal = state, []
        if done is not None:
            ledger.journal.append(done)
            ledger.begun.pop(done.call.id, None)

    async def begins(self, actor: str, call: bytes) -> int:
        """Notes that an actor begins a call; returns how often it has, and died before the end."""
        begun = self._ledger(actor).begun
        begun[call] = begun.get(call, -1) + 1
        return begun[call]

    async def ended(self, actor: str, call: bytes) -> None:
        """Notes that a call is over that was noted when it began."""
        self._ledger(actor).begun.pop(call, None)

    async def failed(self, actor: str, failure: bytes) -> None:
        """Notes what the building of an actor has raised."""
        self._ledger(actor).failure = failure

    async def ask_stop(self, actor: str, reason: str) -> None:
        ledger = self._ledger(actor)
        ledger.stop_requested, ledger.reason = True, ledger.reason or reason

    async def ending(self, actor: str, reason: str) -> None:
        """Notes why an actor is about to be killed."""
        ledger = self._ledger(actor)
        ledger.reason = ledger.reason or reason

    async def stop_requested(self, actor: str) -> bool:
        return self._recorded(actor).stop_requested

    async def end_of(self, actor: str) -> tuple[str, bytes, list[tuple[int, str]]]:
        """Returns why an actor has ended, as far as is known, and its processes."""
        ledger = self._recorded(actor)
        return ledger.reason, ledger.failure, ledger.processes

    async def emit(self, actor: str, records: list[bytes]) -> None:
        ledger = self._ledger(actor)
        ledger.records.extend(records)
        while len(ledger.records) > RECORDS_KEPT:
            ledger.records.popleft()
            ledger.dropped += 1

    async def take_records(self, actor: str) -> list[bytes]:
        """Returns the records nobody has fetched, and forgets them."""
        ledger = self._recorded(actor)
        records = list(ledger.records)
        ledger.records.clear()
        return records

    async def dropped(self, actor: str) -> int:
        return self._recorded(actor).dropped


class KeeperClient:
    """Calls the keeper, from any process of its cluster; `handle` is Ray's, where it is known."""

    def __init__(self, handle: Any = None) -> None:
        self._handle = handle

    @property
    def handle(self) -> Any:
        """Returns Ray's handle, by which a method can be called without waiting for the answer."""
        if self._handle is None:
            self._handle = ray.get_actor(KEEPER)
        return self._handle

    def ask(self, method: str, *args: Any) -> Any:
        """Calls a method, and returns its answer."""
        return interrupts.get(getattr(self.handle, method).remote(*args))
