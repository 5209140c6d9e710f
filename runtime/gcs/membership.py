"""Decides who is in a chain of replicas, and what to do when one dies or joins.

It is a pure state machine, whose instructions `chain` carries out. Writes pass from the head to the
tail. Every member has all writes up to `acked`; the client keeps the later ones, and sends them
again whenever a link has changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias


class StartReplica(NamedTuple):
    """Start a process; `ready` when it is there."""


class BeginChain(NamedTuple):
    """Have this member be the chain, beginning after the version that was acknowledged."""

    member: int


class Connect(NamedTuple):
    """Have writes pass from one member to another, after all rows if the latter `joins`."""

    before: int
    after: int
    joins: bool = False


class Acknowledge(NamedTuple):
    """Have a member acknowledge what it has, or no longer."""

    member: int
    on: bool


class Resend(NamedTuple):
    """Send the head again all writes that are not acknowledged."""


class Discard(NamedTuple):
    """End a process that is no longer needed."""

    member: int


Instruction: TypeAlias = StartReplica | BeginChain | Connect | Acknowledge | Resend | Discard

MOST_FAILED_STARTS: Final = 5


class ChainMembership:
    """Decides on the members of one chain, which is to have `replicas` of them."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.members: list[int] = []  # head to tail
        self.joining: int | None = None
        self.idle: list[int] = []  # ready, waiting for another one to join
        self.starting = 0
        self.acked = 0
        self.failed_starts = 0  # in a row
        self._handing_over = False  # the joining member has all rows: only its ACKs count

    @property
    def broken(self) -> bool:
        """Returns whether there is no member, and none to come."""
        return not (self.members or self.joining is not None or self.idle or self.starting)

    def ready(self, member: int) -> list[Instruction]:
        """Adds a process that has started."""
        self.starting -= 1
        self.failed_starts = 0
        self.idle.append(member)
        return self._fill()

    def not_started(self) -> list[Instruction]:
        """Replaces a process that ended before it was ready, or could not be started."""
        self.starting -= 1
        self.failed_starts += 1
        return self.begin()

    def acknowledged(self, member: int, version: int) -> list[Instruction]:
        """Notes that a member has everything up to this version."""
        if member == self.joining:
            # From here on ACKs of the old tail are ignored, so that `acked` stands still.
            self._handing_over = True
            if version < self.acked:
                return []
            tail = self.members[-1]
            self.members.append(member)
            self._stop_joining()
            self.acked = version
            return [Acknowledge(tail, False), *self._fill()]
        if self.members and member == self.members[-1] and not self._handing_over:
            self.acked = max(self.acked, version)
        return []

    def died(self, member: int) -> list[Instruction]:
        """Mends the chain after the death of a process that was ready."""
        todo: list[Instruction] = []
        if member in self.idle:
            self.idle.remove(member)
        elif member == self.joining:
            self._stop_joining()
        elif member in self.members:
            index = self.members.index(member)
            self.members.remove(member)
            before = self.members[index - 1] if index else None
            after = self.members[index] if index < len(self.members) else None
            if after is None and self.joining is not None:
                todo.append(Discard(self.joining))  # it may have only half of the rows
                self._stop_joining()
            if before is not None and after is not None:
                todo.append(Connect(before, after))
            elif before is not None:
                todo.append(Acknowledge(before, True))
            if self.members:
                todo.append(Resend())
        return [*todo, *self._fill(), *self.begin()]

    def begin(self) -> list[Instruction]:
        """Starts as many members as are missing; none when it has failed too often."""
        total = len(self.members) + len(self.idle) + self.starting + (self.joining is not None)
        missing = self.replicas - total
        if missing <= 0 or self.failed_starts >= MOST_FAILED_STARTS:
            return []
        self.starting += missing
        return [StartReplica()] * missing

    def _fill(self) -> list[Instruction]:
        todo: list[Instruction] = []
        if not self.members and self.idle:
            head = self.idle.pop(0)
            self.members = [head]
            todo += [BeginChain(head), Acknowledge(head, True), Resend()]
        if self.members and self.joining is None and self.idle:
            self.joining = self.idle.pop(0)
            todo += [Connect(self.members[-1], self.joining, True), Acknowledge(self.joining, True)]
        return todo

    def _stop_joining(self) -> None:
        self.joining = None
        self._handing_over = False
