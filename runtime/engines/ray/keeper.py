"""Keeps, in one actor beside the driver, what must outlive the processes of restarted actors."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any, Final

RECORDS_KEPT: Final = 100_000  # unfetched records of one actor; older ones are dropped

Value = tuple[Any, dict[bytes, Any]]  # a packed value, and the references and handles in it


@dataclass(frozen=True)
class JournaledCall:
    """A call that an actor has run, to be run again when its process is replaced."""

    call: Any  # the Call
    inputs: tuple[Any, ...]  # Ray's references of its inputs


@dataclass
class ActorLedger:
    """Holds what is known of one actor beside what Ray knows."""

    fields: tuple[Any, ...] = ()  # of a handle: id, name, class name, methods
    processes: list[tuple[int, str]] = field(default_factory=list)  # pid and host of each, in order
    state: Value | None = None  # what save() gave last
    journal: list[JournaledCall] = field(default_factory=list)  # since then
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
        self._actors: collections.defaultdict[str, ActorLedger] = collections.defaultdict(
            ActorLedger
        )

    async def sys_path(self) -> list[str]:
        """Returns where the driver imports from: its functions may be of such a module."""
        return self._sys_path

    async def describe(self, actor: str, fields: tuple[Any, ...]) -> None:
        """Notes what a handle of a named actor has to know."""
        self._actors[actor].fields = fields

    async def described(self, actor: str) -> tuple[Any, ...]:
        return self._actors[actor].fields

    async def started(
        self, actor: str, pid: int, host: str
    ) -> tuple[int, Value | None, list[JournaledCall]]:
        """Notes a new process; returns its number, and what it has to restore and to replay."""
        ledger = self._actors[actor]
        ledger.processes.append((pid, host))
        return len(ledger.processes) - 1, ledger.state, ledger.journal

    async def note(self, actor: str, state: Value | None, done: JournaledCall | None) -> None:
        """Takes a checkpoint, which stands for the calls noted before, and a call run after it."""
        ledger = self._actors[actor]
        if state is not None:
            ledger.state, ledger.journal = state, []
        if done is not None:
            ledger.journal.append(done)

    async def failed(self, actor: str, failure: bytes) -> None:
        """Notes what the building of an actor has raised."""
        self._actors[actor].failure = failure

    async def ask_stop(self, actor: str, reason: str) -> None:
        ledger = self._actors[actor]
        ledger.stop_requested, ledger.reason = True, ledger.reason or reason

    async def ending(self, actor: str, reason: str) -> None:
        """Notes why an actor is about to be killed."""
        ledger = self._actors[actor]
        ledger.reason = ledger.reason or reason

    async def stop_requested(self, actor: str) -> bool:
        return self._actors[actor].stop_requested

    async def end_of(self, actor: str) -> tuple[str, bytes, list[tuple[int, str]]]:
        """Returns why an actor has ended, as far as is known, and its processes."""
        ledger = self._actors[actor]
        return ledger.reason, ledger.failure, ledger.processes

    async def emit(self, actor: str, record: bytes) -> None:
        ledger = self._actors[actor]
        ledger.records.append(record)
        if len(ledger.records) > RECORDS_KEPT:
            ledger.records.popleft()
            ledger.dropped += 1

    async def take_records(self, actor: str) -> list[bytes]:
        """Returns the records nobody has fetched, and forgets them."""
        ledger = self._actors[actor]
        taken = list(ledger.records)
        ledger.records.clear()
        return taken

    async def dropped(self, actor: str) -> int:
        return self._actors[actor].dropped
