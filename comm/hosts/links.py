"""Connects the leader of a host with the leaders of all others, by ZeroMQ over tcp with CURVE.

Each leader listens on one socket, where it receives, and has a connection to each other one, by
which it sends. A connection keeps the order, and every host makes the same calls, so what comes
next from each is known; a header says what it is, and anything else is refused and counted. Only
keys of the roster are let in.

No heartbeat of ZeroMQ ends a connection: tcp sends again what a cable lost that was out for some
seconds, and the deadline of a call is what ends the wait for a host that is gone.
"""

from __future__ import annotations

import collections
import json
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final

import numpy as np
import zmq

from gmi_drl.comm.errors import (
    CommError,
    GroupFinished,
    GroupMismatch,
    PeerLeft,
    ReduceTimeout,
)
from gmi_drl.comm.group.group import Wire
from gmi_drl.comm.group.tags import describe
from gmi_drl.comm.mailbox.files import check_private
from gmi_drl.comm.transports.curve import Authenticator, ConnectionMonitor, secure
from gmi_drl.runtime.process.progress import waiting

from .bf16 import Array, from_bf16, to_bf16
from .roster import (
    Endpoint,
    HostSpec,
    Roster,
    read_endpoint,
    read_outcome,
    read_roster,
    write_endpoint,
)
from .steps import Part, Transfer, all_gather

_LOOK_MS: Final = 20
_LOOK_S: Final = _LOOK_MS / 1000
_LINGER_MS: Final = 2000  # for the last messages to reach hosts that still wait for them
# So that one is encrypted while the one before it travels. Every message is far smaller than what a
# frame may carry (curve.py): lists of hosts and gloo's words have a few bytes for each host.
_PIECE_BYTES: Final = 128 << 10
_WINDOW: Final = 6  # pieces on their way at a time: more would only fall out of the caches
_HEAD: Final = struct.Struct("<IHHIQQ")  # magic, kind, step, epoch, tag, start
_MAGIC: Final = 0x48504D47  # "GMPH"
_HELLO: Final = 1  # this host is in this epoch; tag is a checksum of the group's members
_DATA: Final = 2
_WAITS: Final = 3  # this host is in this call, and waits for the hosts in the payload
_LEFT: Final = 4  # this host will not go on; the payload says why
_WORD: Final = 5  # a message for all: see `told`


class Interrupted(Exception):
    """The call cannot be completed: a GMI of this host is gone, or there is a newer roster."""


class HostLinks:
    """The links of one leader. `is_disturbed`: whether a GMI of this host has left or is new."""

    def __init__(self, spec: HostSpec, timeout_s: float, is_disturbed: Callable[[], bool]) -> None:
        check_private(spec.folder)
        self._spec, self._timeout_s, self._is_disturbed = spec, timeout_s, is_disturbed
        self._count = len(spec.members)
        self._peers = [peer for peer in range(self._count) if peer != spec.rank]
        self._refused: collections.Counter[str] = collections.Counter()
        self._known: set[bytes] = set()  # keys of all rosters so far
        self.epoch = 0  # of the roster that these links are connected by
        self._endpoints: tuple[Endpoint | None, ...] = ()
        self._roster: Roster | None = None  # the newest that was read
        self._looked_s = self._since_s = time.monotonic()
        self._endpoint: Endpoint | None = None
        self._asked: tuple[int, int] | None = None  # in which epoch and generation it was last
        self._generation = -1  # of its host's group, in which it forms the group of hosts
        self._told_epoch = 0  # of the newest roster, when that generation began
        self._public, self._secret = zmq.curve_keypair()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(2)  # one reads, one writes
        self._context.linger = 0  # where nobody closes: the process dies, and is not to wait
        self._inbox = inbox = self._context.socket(zmq.ROUTER)
        inbox.set_hwm(0)
        inbox.ipv6 = ":" in spec.address
        self._authenticator = Authenticator(self._context, ())
        self._authenticator.guard(inbox, self._public, self._secret)
        self._handshakes = ConnectionMonitor(inbox)
        host = f"[{spec.address}]" if inbox.ipv6 else spec.address
        try:
            inbox.bind(f"tcp://{host}:*")
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise CommError(
                f"host {spec.rank}: its leader cannot listen at {spec.address} ({error.strerror}). "
                "Give the address of an interface of this host that the other hosts reach."
            ) from error
        self._outboxes: dict[int, zmq.Socket[bytes]] = {}
        self._dials: dict[int, ConnectionMonitor] = {}  # of connections that come about
        self._ranks: dict[bytes, int] = {}  # by key, in this epoch
        self._arrived: dict[int, collections.deque[list[zmq.Frame]]] = {}
        self._early: list[list[zmq.Frame]] = []  # of an epoch that is not known yet
        self._present: set[int] = set()  # the hosts that are in this epoch
        self._left: dict[int, str] = {}  # the hosts that have left, and why
        self._waits: dict[int, tuple[int, list[int]]] = {}  # by host: its call, and who is late
        self._words: list[bytes] = []  # that have come and nobody has asked for
        self._is_bf16 = False  # whether the present call sends bfloat16
        self._poller = zmq.Poller()
        for socket in (inbox, self._authenticator.socket, self._handshakes.socket):
            self._poller.register(socket, zmq.POLLIN)
        earlier = read_endpoint(spec.folder)
        self._serial = 0 if earlier is None else earlier.serial
        self._crc = zlib.crc32(repr(spec.members).encode())

    @property
    def refused(self) -> dict[str, int]:
        """Returns how many connections and messages were refused, by what they were.

        Not those of a leader that had a roster before this one, and so came too early.
        """
        early = sum(self._authenticator.refused[key] for key in self._known)
        return {"connections": self._handshakes.refused - early, **self._refused}

    @property
    def addresses(self) -> list[str]:
        """Returns where the leaders of all hosts listen in this epoch, by host."""
        return [end.address for end in self._endpoints if end is not None]

    # Forming ---------------------------------------------------------------------------------

    def begin(self, generation: int) -> None:
        """Begins to form the group, in an epoch above that of before.

        Where no newer roster is the cause, a GMI of this host was replaced, or it is the first
        time: then this leader asks for a roster by writing a new endpoint, once in each
        `generation` of its host's group.
        """
        self._above = self.epoch
        self._since_s = time.monotonic()
        if self._generation != generation:
            roster = read_roster(self._spec.folder)
            self._generation = generation
            self._told_epoch = 0 if roster is None else roster.epoch
        request = self.epoch, generation
        if self._asked == request or (self._endpoint is not None and self.has_newer()):
            return
        self._asked = request
        self._serial += 1
        port = int(self._inbox.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        endpoint = Endpoint(self._serial, self._spec.address, port, self._public.decode())
        self._endpoint = endpoint
        write_endpoint(self._spec.folder, endpoint)

    def has_newer(self) -> bool:
        """Tells whether there is a newer roster, by which the group is to be formed again."""
        roster = self._roster = read_roster(self._spec.folder)
        return roster is not None and roster.epoch > self.epoch and self._has_own_endpoint(roster)

    def form(self, slice_s: float) -> int:
        """Forms the group for `slice_s` at most; returns the epoch when every host is in it, or 0.

        GroupFinished if a GMI has finished: its host may have nobody who listens any more.
        Interrupted, once in a generation, if a new roster lacks a host: GMIs may go on without it.
        """
        end_s = time.monotonic() + slice_s
        while True:
            if (outcome := read_outcome(self._spec.folder)) is not None:
                names = [name for host in self._spec.members for name in host]
                raise GroupFinished(outcome.rank, names[outcome.rank], outcome.text)
            is_newer, roster = self.has_newer(), self._roster
            if roster is not None and roster.missing and roster.epoch > self._told_epoch:
                raise Interrupted
            if is_newer and roster is not None and not roster.missing:
                self._connect(roster)
            self._take_in()
            is_known = self.epoch > self._above
            late = [peer for peer in self._peers if not is_known or peer not in self._present]
            late += [peer for peer in self._dial() if peer not in late]
            if is_known and not late:
                self._close_monitors()
                return self.epoch
            self._check_left(late, "forming the group of hosts")
            now_s = time.monotonic()
            limit_s = self._timeout_s if is_known else self._spec.wait.total_seconds()
            if now_s > self._since_s + limit_s:
                if not is_known and self._roster is not None and self._roster.missing:
                    late = self._roster.missing
                raise self._timed_out("forming the group of hosts", limit_s, late)
            if now_s > end_s:
                return 0
            self._poller.poll(_LOOK_MS)

    def _has_own_endpoint(self, roster: Roster) -> bool:
        """Tells whether a roster was made of this leader's endpoint."""
        rank, ends = self._spec.rank, roster.endpoints
        return len(ends) == self._count and ends[rank] in (self._endpoint, None)

    def _connect(self, roster: Roster) -> None:
        """Leaves the present epoch, and says hello to all hosts in that of `roster`."""
        self._disconnect(0)
        self.epoch, self._endpoints = roster.epoch, roster.endpoints
        self._since_s = time.monotonic()
        self._present, self._left, self._waits, self._words = set(), {}, {}, []
        self._arrived = {peer: collections.deque() for peer in self._peers}
        ranks = {end.key.encode(): rank for rank, end in enumerate(roster.endpoints) if end}
        self._ranks = ranks
        self._known |= {*ranks}
        for peer in self._peers:
            end = roster.endpoints[peer]
            assert end is not None
            self._connect_to(peer, end)
        early, self._early = self._early, []
        for frames in early:
            self._sort(frames)

    def _connect_to(self, peer: int, end: Endpoint) -> None:
        self._outboxes[peer] = outbox = self._context.socket(zmq.DEALER)
        outbox.set_hwm(0)
        outbox.ipv6 = ":" in end.address
        secure(outbox, end.key.encode(), self._public, self._secret)
        self._dials[peer] = ConnectionMonitor(outbox)
        host = f"[{end.address}]" if outbox.ipv6 else end.address
        outbox.connect(f"tcp://{host}:{end.port}")
        self._send(peer, _HELLO, self._crc)

    def _dial(self) -> list[int]:
        """Returns the hosts that have not accepted this leader; asks those that refused again."""
        for peer, dial in [*self._dials.items()]:
            end = self._endpoints[peer]
            dial.look()
            if dial.failed and not dial.up and end is not None:  # it has no roster yet
                dial.close()
                self._outboxes[peer].close(0)
                self._connect_to(peer, end)
        return [peer for peer, dial in self._dials.items() if not dial.up]

    def _close_monitors(self) -> None:
        dials, self._dials = self._dials, {}
        for dial in dials.values():
            dial.close()

    # Calls -----------------------------------------------------------------------------------

    def run(self, vector: Array, steps: Sequence[Transfer], tag: int, wire: Wire = "fp32") -> None:
        """Does the steps of one call on `vector`; every host makes the same call.

        With the wire format bf16 the vector is float32, and what a host sends is rounded in its
        own vector, too: so that all hosts have the same bits. ReduceTimeout names the hosts that
        are late, PeerLeft one that has given up, GroupMismatch one that does something else.
        """
        self.begin_call()
        self._is_bf16 = wire == "bf16"
        for number, step in enumerate(steps):
            sends, receives = (
                _rounds(parts, _PIECE_BYTES // vector.itemsize)
                for parts in (step.sends, step.receives)
            )
            sent = 0
            for turn in range(max(len(sends), len(receives))):
                for parts in sends[sent : turn + _WINDOW]:
                    for peer, start, stop in parts:
                        piece = vector[start:stop]
                        payload = to_bf16(piece) if self._is_bf16 else piece
                        self._send(peer, _DATA, tag, number, start, payload.data)
                sent = turn + _WINDOW
                for parts in receives[turn : turn + 1]:
                    self._take(vector, parts, number, tag, step.adds)

    def begin_call(self) -> None:
        """Begins a call, whose deadline counts from here; `run` does so by itself."""
        self._begun_s, self._told = time.monotonic(), False

    def agree(self, number: int, tag: int) -> None:
        """Returns when every host has made this call, with the same number; else GroupMismatch."""
        numbers = np.zeros(self._count, np.uint64)
        numbers[self._spec.rank] = number
        self.run(numbers, all_gather(self._spec.rank, range(self._count + 1)), tag)
        for peer in self._peers:
            if numbers[peer] != number:
                raise self._mismatch(peer, tag, tag)

    def look(self, tag: int) -> None:
        """Raises when a call that all hosts do beside these links cannot be completed."""
        self._take_in()
        self._look(self._peers, tag, time.monotonic())

    def tell(self, word: bytes) -> None:
        """Sends a word to all other hosts."""
        for peer in self._peers:
            self._send(peer, _WORD, payload=word)

    def told(self) -> list[bytes]:
        """Returns the words of others that have come in this epoch since the last call."""
        self._take_in()
        words, self._words = self._words, []
        return words

    def _take(self, vector: Array, parts: Sequence[Part], step: int, tag: int, adds: bool) -> None:
        """Receives pieces of one round, and adds them in ascending order of hosts."""
        rows = self._receive(vector, parts, step, tag)
        if not adds:
            for (_, start, stop), row in zip(parts, rows, strict=True):
                vector[start:stop] = row
            return
        target = vector[parts[0].start : parts[0].stop]
        rows.insert(sum(part.peer < self._spec.rank for part in parts), target)
        total, *others = rows
        for row in others[:-1]:
            total = total + row
        np.add(total, others[-1], target)

    def _receive(self, vector: Array, parts: Sequence[Part], step: int, tag: int) -> list[Array]:
        """Waits until all hosts of `parts` have sent theirs."""
        arrived = self._arrived
        if late := [part.peer for part in parts if not arrived[part.peer]]:
            self._take_in()
            if late := [peer for peer in late if not arrived[peer]]:
                self._await(late, tag)
        rows = []
        for peer, start, stop in parts:
            head, payload = arrived[peer].popleft()
            _, _, sent_step, _, sent_tag, sent_start = _HEAD.unpack(head.buffer)
            nbytes = (stop - start) * (2 if self._is_bf16 else vector.itemsize)
            if (sent_tag, sent_step, sent_start, len(payload)) != (tag, step, start, nbytes):
                raise self._mismatch(peer, tag, sent_tag)
            is_bf16 = self._is_bf16 and nbytes  # torch has no tensor of an empty buffer
            rows.append(
                from_bf16(payload.buffer)
                if is_bf16
                else np.frombuffer(payload.buffer, vector.dtype)
            )
        return rows

    def _await(self, late: list[int], tag: int) -> None:
        with waiting:
            while late := [peer for peer in late if not self._arrived[peer]]:
                self._poller.poll(_LOOK_MS)
                self._take_in()
                now_s = time.monotonic()
                if now_s > self._looked_s + _LOOK_S:
                    self._looked_s = now_s
                    late = [peer for peer in late if not self._arrived[peer]]
                    self._look(late, tag, now_s)

    def _look(self, late: list[int], tag: int, now_s: float) -> None:
        """Raises when there is nothing more to wait for."""
        if self._is_disturbed() or self.has_newer():
            raise Interrupted
        self._check_left(late, describe(tag))
        waited_s = now_s - self._begun_s
        if waited_s > self._timeout_s / 2 and not self._told:
            self._told = True  # so that nobody takes this host for one that is late itself
            for peer in self._peers:
                self._send(peer, _WAITS, tag, payload=json.dumps(late).encode())
        if late and waited_s > self._timeout_s:
            waits = {peer: hosts for peer, (call, hosts) in self._waits.items() if call == tag}
            silent = {host for hosts in (late, *waits.values()) for host in hosts} - {*waits}
            blamed = sorted(silent - {self._spec.rank}) or late
            raise self._timed_out(describe(tag), self._timeout_s, blamed)

    # Messages --------------------------------------------------------------------------------

    def _send(
        self, peer: int, kind: int, tag: int = 0, step: int = 0, start: int = 0,
        payload: bytes | memoryview = b"",
    ) -> None:  # fmt: skip
        head = _HEAD.pack(_MAGIC, kind, step, self.epoch, tag, start)
        self._outboxes[peer].send_multipart([head, payload])

    def _take_in(self) -> None:
        """Sorts what has come in by host, and answers the authenticator's questions."""
        if self._authenticator.socket.poll(0):
            self._authenticate()
        self._handshakes.look()
        while True:
            try:
                _, *frames = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._sort(frames)

    def _authenticate(self) -> None:
        """Accepts the keys of this epoch, and of a later one that others may know already."""
        keys = {*self._ranks}
        if self.has_newer() and self._roster is not None:
            keys |= {end.key.encode() for end in self._roster.endpoints if end}
        self._authenticator.keys = keys
        self._authenticator.answer()

    def _sort(self, frames: list[zmq.Frame]) -> None:
        well_formed = len(frames) == 2 and len(frames[0]) == _HEAD.size
        head = _HEAD.unpack(frames[0].buffer) if well_formed else (0,) * 6
        magic, kind, _, epoch, tag, _ = head
        if magic != _MAGIC:
            self._refused["messages"] += 1
            return
        key = str(frames[0].get("User-Id")).encode()
        if epoch > self.epoch:
            if key in self._authenticator.keys:  # else of a leader that was replaced since
                self._early.append(frames)
            return
        peer = self._ranks.get(key)
        if epoch < self.epoch:  # of a leader of this run, which is told of this epoch soon
            return
        if peer is None:
            self._refused["messages"] += 1
        elif kind == _DATA:
            self._arrived[peer].append(frames)
        elif kind == _HELLO:
            self._present.add(peer)
            if tag != self._crc:
                self._left[peer] = "it was started with another list of hosts and GMIs"
        elif kind == _WORD:
            self._words.append(frames[1].bytes)
        elif kind == _WAITS:
            self._waits[peer] = tag, json.loads(frames[1].bytes)
        elif kind == _LEFT:
            self._left[peer] = frames[1].bytes.decode(errors="replace")

    def _check_left(self, late: Sequence[int], what: str) -> None:
        for peer in late:
            if peer in self._left:
                raise PeerLeft(what, self._rank_of(peer), self._name(peer), self._left[peer])

    def _timed_out(self, what: str, limit_s: float, late: Sequence[int]) -> ReduceTimeout:
        return ReduceTimeout(what, limit_s, [(self._rank_of(p), self._name(p)) for p in late])

    def _mismatch(self, peer: int, tag: int, sent_tag: int) -> GroupMismatch:
        calls = [describe(tag, ()), describe(sent_tag, ())]
        if calls[0] == calls[1]:
            calls = [f"{call}, of another size" for call in calls]
        return GroupMismatch(calls, [self._name(self._spec.rank), self._name(peer)])

    def _rank_of(self, peer: int) -> int:
        return sum(len(names) for names in self._spec.members[:peer])

    def _name(self, peer: int) -> str:
        end = self._endpoints[peer] if self._endpoints else None
        address = f" at {end.address}" if end else ""
        return f"{self._spec.members[peer][0]}, of host {peer}{address}"

    # The end ---------------------------------------------------------------------------------

    def leave(self, reason: str) -> None:
        """Tells the other hosts that this one will not go on, and ends the links."""
        for peer in self._outboxes:
            self._send(peer, _LEFT, payload=reason.encode()[:_PIECE_BYTES])
        self.close()

    def close(self) -> None:
        """Ends the links; waits some seconds for what others have still to be sent."""
        if self._context.closed:
            return
        self._disconnect(_LINGER_MS)
        self._handshakes.close()
        self._inbox.close(0)
        self._authenticator.socket.close(0)
        self._context.term()

    def _disconnect(self, linger_ms: int) -> None:
        self._close_monitors()
        outboxes, self._outboxes = self._outboxes, {}
        for outbox in outboxes.values():
            outbox.close(linger_ms)


def _rounds(parts: Sequence[Part], most: int) -> list[list[Part]]:
    """Cuts parts into pieces; round i has piece i of every part."""
    pieces = [
        [Part(peer, begin, min(begin + most, stop)) for begin in range(start, stop, most)]
        for peer, start, stop in parts
    ]
    return [[piece for piece in turn if piece is not None] for turn in zip_longest(*pieces)]
