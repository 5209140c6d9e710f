"""Replicates the control store by chains of processes, one chain for each part of the ids.

`Chains` is the client: rows that were put are safe when `sync` returns. One thread sends to the
head of each chain, receives from the tail, and repairs a chain when a member dies.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from gmi_drl.runtime.process.child_setup import python_path
from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.channel import ClosedLater, SocketChannel

from . import membership as do
from .database import AnyRow, GcsError
from .replica import ReplicaFrame, body_of, frame
from .tables import TABLES, EventRow, Row, TaskRow

_ROWS_PER_WRITE: Final = 1_000
_STUCK_S: Final = 1.0  # a member that is silent so long while writes are unacknowledged is replaced
_NUMBER_OF: Final[dict[type[Any], int]] = {table.row: number for number, table in enumerate(TABLES)}


class _Chain:
    """One chain: its members, and the writes that are not acknowledged."""

    def __init__(self, replicas: int) -> None:
        self.state = do.ChainMembership(replicas)
        self.rows: list[tuple[int, tuple[Any, ...]]] = []  # to be sent
        self.version = 0
        # Last version and frame of each write that is not acknowledged.
        self.unacked: collections.deque[tuple[int, bytes]] = collections.deque()
        # After each write: the number of rows put to all chains, and the version of this one.
        self.marks: collections.deque[tuple[int, int]] = collections.deque()
        # The number of rows put before each write that is not acknowledged, and its version.
        self.unsafe: collections.deque[tuple[int, int]] = collections.deque()
        self.flushed = 0
        self.moved_s = 0.0  # when a write was acknowledged last, or the first one was made


@dataclass(eq=False)
class _Read:
    """A read that is not answered yet."""

    table: int
    id: bytes
    after: int | None = None  # the version that must be acknowledged first
    asked: int | None = None  # the member that was asked
    row: tuple[Any, ...] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class ReplicaProcess:
    """The process of one replica, and the socket to it; sending never blocks."""

    def __init__(self, number: int, selector: selectors.BaseSelector, chain: _Chain) -> None:
        self.number = number
        self.chain = chain
        self.ready = False
        self.pinged_s = 0.0
        self._selector = selector
        self._sock, remote = socket.socketpair()
        try:
            command = ["-P", "-m", f"{__package__}.replica", str(remote.fileno()), str(os.getpid())]
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(remote.fileno(),),
                start_new_session=True,  # Ctrl-C is not for them
            )
        except BaseException:
            self._sock.close()
            raise
        finally:
            remote.close()
        self.channel = SocketChannel(self._sock)
        selector.register(self._sock, selectors.EVENT_READ, self)

    def send(self, data: bytes, sock: socket.socket | None = None) -> None:
        """Sends data, with a socket that is closed here then, or queues it for `send_more`."""
        fds = () if sock is None else (sock.fileno(),)
        self.channel.queue(data, fds, sock and ClosedLater(sock))
        self.send_more()

    def send_more(self) -> None:
        events = selectors.EVENT_READ
        if not self.channel.write():
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(self._sock).events != events:
            self._selector.modify(self._sock, events, self)

    def end(self) -> None:
        """Kills the process, without waiting for its end."""
        self._selector.unregister(self._sock)
        self.channel.close()
        self.process.kill()


class Chains:
    """Runs `parts` chains of `replicas` processes each. Rows are put by one thread."""

    def __init__(self, parts: int, replicas: int) -> None:
        self.failure = ""  # why nothing can be acknowledged any more
        self._arrived: list[Row] = []
        self._put = 0  # rows that have left _arrived
        self._flushed = 0
        self._chains = [_Chain(replicas) for _ in range(parts)]
        self._members: dict[int, ReplicaProcess] = {}
        self._ending: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._reads: dict[int, _Read] = {}
        self._num_reads = 0
        self._new_reads: collections.deque[_Read] = collections.deque()
        self._changed = threading.Condition()
        self._safe = 0  # rows put that are acknowledged by their chains
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="gmi-drl gcs chain", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Counts the rows that are not acknowledged yet."""
        return len(self._arrived) + self._put - self._safe

    def put(self, row: Row) -> None:
        """Sends a row to its chain."""
        self._arrived.append(row)
        if len(self._arrived) == 1:
            os.eventfd_write(self._wake_fd, 1)

    def sync(self, timeout_s: float = 10.0) -> None:
        """Returns when every row put so far is with all members of its chain."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            target = self._put + len(self._arrived)
            while self._safe < target:
                left_s = deadline_s - time.monotonic()
                if self.failure:
                    raise GcsError(self.failure)
                if left_s <= 0 or not self._thread.is_alive():
                    raise TimeoutError(
                        f"{target - self._safe:,} rows are not acknowledged after {timeout_s:g} s; "
                        f"members of the chains: {self.members()}. Allow more time."
                    )
                self._changed.wait(left_s)

    def get(self, row_class: type[AnyRow], id: bytes, timeout_s: float = 10.0) -> AnyRow | None:
        """Returns the row from the tail, after all earlier rows; None if it was dropped."""
        read = _Read(_NUMBER_OF[row_class], id)
        self._new_reads.append(read)
        os.eventfd_write(self._wake_fd, 1)
        if not read.done.wait(timeout_s):
            read.done.set()  # nobody waits for it any more
            raise TimeoutError(
                f"no answer from the chains after {timeout_s:g} s; their members: "
                f"{self.members()}. Allow more time."
            )
        return None if read.row is None else row_class(*read.row)

    def flushed(self, count: int) -> None:
        """Notes that `count` rows are in the file, so that replicas may drop final ones."""
        self._flushed = max(self._flushed, count)
        os.eventfd_write(self._wake_fd, 1)

    def members(self) -> list[list[int]]:
        """Returns the pids of each chain, head to tail."""
        chains = ([self._members.get(n) for n in chain.state.members] for chain in self._chains)
        return [[member.process.pid for member in members if member] for members in chains]

    def close(self) -> None:
        """Ends all processes."""
        self._closing = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        os.close(self._wake_fd)

    def _run(self) -> None:
        # This thread starts the members, as PDEATHSIG is sent when the parent's thread ends.
        for chain in self._chains:
            self._do(chain, chain.state.begin())
        try:
            while not self._closing:
                self._serve_round()
        except Exception as error:  # submitters must not wait for ever
            self.failure = (
                f"the replicas of the control store are not written to any more: {error!r}. "
                "Only its file is, from here on."
            )
            raise
        finally:
            for member in list(self._members.values()):
                self._end(member)
            for process in self._ending:
                process.wait()
            self._selector.close()
            with self._changed:
                self._changed.notify_all()

    def _serve_round(self) -> None:
        is_waiting = bool(self._ending) or any(chain.unacked for chain in self._chains)
        for key, events in self._selector.select(0.1 if is_waiting else None):
            member = key.data
            if member is None:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
            elif member.number in self._members:
                if events & selectors.EVENT_WRITE:
                    member.send_more()
                if events & selectors.EVENT_READ:
                    self._receive(member)
        self._take_arrived()
        self._tell_flushed()
        self._read()
        self._count_safe()
        self._end_stuck()
        self._ending = [process for process in self._ending if process.poll() is None]

    def _take_arrived(self) -> None:
        with self._changed:  # `sync` must not count in between
            rows = self._arrived[:]
            del self._arrived[: len(rows)]
            self._put += len(rows)
        if not rows or self.failure:  # they are in the file, and cannot be replicated
            return
        parts = len(self._chains)
        for row in rows:
            key = row.subject if type(row) is EventRow else row[0]
            part = key[0] % parts if key else 0  # type: ignore[index]
            self._chains[part].rows.append((_NUMBER_OF[type(row)], _plain(row)))
        for chain in self._chains:
            self._write(chain, self._put - len(rows))

    def _write(self, chain: _Chain, put_before: int) -> None:
        rows, chain.rows = chain.rows, []
        if not chain.unacked:
            chain.moved_s = time.monotonic()
        for begin in range(0, len(rows), _ROWS_PER_WRITE):
            part = rows[begin : begin + _ROWS_PER_WRITE]
            data = frame(ReplicaFrame.WRITE, chain.version + 1, part)
            chain.version += len(part)
            chain.unacked.append((chain.version, data))
            if chain.state.members:
                self._members[chain.state.members[0]].send(data)
        if rows:
            chain.marks.append((self._put, chain.version))
            chain.unsafe.append((put_before, chain.version))

    def _receive(self, member: ReplicaProcess) -> None:
        messages, is_open = member.channel.read()
        member.pinged_s = 0.0
        state = member.chain.state
        for message in messages:
            if message.kind == ReplicaFrame.ACK:
                self._do(member.chain, state.acknowledged(member.number, message.id))
            elif message.kind == ReplicaFrame.GOT:
                self._answer(message)
            elif message.kind == ReplicaFrame.PONG and not member.ready:
                member.ready = True
                member.send(frame(ReplicaFrame.FLUSHED, member.chain.flushed))
                self._do(member.chain, state.ready(member.number))
        unacked = member.chain.unacked
        while unacked and unacked[0][0] <= state.acked:
            unacked.popleft()
            member.chain.moved_s = time.monotonic()
        if not is_open:
            self._lost(member)

    def _lost(self, member: ReplicaProcess) -> None:
        self._end(member)
        state = member.chain.state
        todo = state.died(member.number) if member.ready else state.not_started()
        self._do(member.chain, todo)
        self._fail(member.chain)

    def _end(self, member: ReplicaProcess) -> None:
        del self._members[member.number]
        member.end()
        self._ending.append(member.process)
        for read in self._reads.values():
            if read.asked == member.number:
                read.asked = None  # another will be asked

    def _do(self, chain: _Chain, instructions: list[do.Instruction]) -> None:
        for step in instructions:
            if isinstance(step, do.StartReplica):
                self._start(chain)
            elif isinstance(step, do.BeginChain):
                state = frame(ReplicaFrame.STATE, chain.state.acked, (True, []))
                self._send(step.member, state)
            elif isinstance(step, do.Connect):
                after_sock, before_sock = socket.socketpair()
                self._send(step.after, frame(ReplicaFrame.BEFORE, num_fds=1), before_sock)
                after = frame(ReplicaFrame.AFTER, int(step.joins), num_fds=1)
                self._send(step.before, after, after_sock)
            elif isinstance(step, do.Acknowledge):
                self._send(step.member, frame(ReplicaFrame.ACKS, int(step.on)))
            elif isinstance(step, do.Resend):
                for _, data in chain.unacked:
                    self._send(chain.state.members[0], data)
            else:
                self._end(self._members[step.member])

    def _send(self, number: int, data: bytes, sock: socket.socket | None = None) -> None:
        self._members[number].send(data, sock)

    def _start(self, chain: _Chain) -> None:
        self._started += 1
        try:
            self._members[self._started] = ReplicaProcess(self._started, self._selector, chain)
        except OSError as error:
            self._do(chain, chain.state.not_started())
            self._fail(chain, f" ({error})")

    def _fail(self, chain: _Chain, why: str = "") -> None:
        if chain.state.broken and not self.failure:
            self.failure = (
                f"{do.MOST_FAILED_STARTS} replicas of the control store in a row did not start"
                f"{why}; a chain needs one. Look at their output, or run without replicas."
            )
            for other in self._chains:
                other.unacked.clear()
            with self._changed:
                self._changed.notify_all()

    def _tell_flushed(self) -> None:
        for chain in self._chains:
            previous = chain.flushed
            while chain.marks and chain.marks[0][0] <= self._flushed:
                chain.flushed = chain.marks.popleft()[1]
            if chain.flushed != previous:
                for member in self._members.values():
                    if member.chain is chain and member.ready:
                        member.send(frame(ReplicaFrame.FLUSHED, chain.flushed))

    def _read(self) -> None:
        while self._new_reads:
            self._num_reads += 1
            self._reads[self._num_reads] = self._new_reads.popleft()
        for number, read in list(self._reads.items()):
            if read.done.is_set():
                del self._reads[number]
                continue
            chain = self._chains[read.id[0] % len(self._chains)]
            if read.after is None:
                read.after = chain.version
            if read.asked is None and chain.state.members and chain.state.acked >= read.after:
                read.asked = chain.state.members[-1]
                self._send(read.asked, frame(ReplicaFrame.GET, number, (read.table, read.id)))

    def _answer(self, message: framing.Message) -> None:
        read = self._reads.pop(message.id, None)
        if read is not None:
            row = body_of(message)
            read.row = None if row is None else tuple(row)
            read.done.set()

    def _count_safe(self) -> None:
        """Counts how many of the rows put, in their order, are acknowledged."""
        safe = self._put
        for chain in self._chains:
            while chain.unsafe and chain.unsafe[0][1] <= chain.state.acked:
                chain.unsafe.popleft()
            if chain.unsafe:
                safe = min(safe, chain.unsafe[0][0])
        if safe != self._safe:
            with self._changed:
                self._safe = safe
                self._changed.notify_all()

    def _end_stuck(self) -> None:
        """Ends the last member that does not answer while others wait for it.

        Members before it are silent too while they wait to pass writes on.
        """
        now_s = time.monotonic()
        for chain in self._chains:
            if not chain.unacked or now_s - chain.moved_s < _STUCK_S:
                continue
            numbers = [*chain.state.members, *filter(None, [chain.state.joining])]
            members = [self._members[number] for number in numbers]
            silent = [
                peer for peer in members if peer.pinged_s and now_s - peer.pinged_s > _STUCK_S
            ]
            if silent:
                self._lost(silent[-1])
                continue
            for peer in members:
                if not peer.pinged_s:
                    peer.pinged_s = now_s
                    peer.send(frame(ReplicaFrame.PING))


def _plain(row: Row) -> tuple[Any, ...]:
    """Returns the row as it is in the database."""
    if type(row) is TaskRow and (pickled := getattr(row.spec, "__conform__", None)) is not None:
        row = row._replace(spec=pickled(None))
    return tuple(row)
