"""The two ends of a ZeroMQ link are as zeromq.py describes them."""

from __future__ import annotations

import collections
import contextlib
import secrets
import time
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import zmq

from gmi_drl.comm.errors import CorruptPacket, LinkError, SchemaDiffers

from . import control_message as control
from .control_message import HELLO, REFUSED, RELEASED, ControlMessage, pack_hello, unpack
from .curve import PIECE_BYTES, Authenticator, ConnectionMonitor, secure
from .packet import HeaderCodec, Packet, PacketHeader, PacketSlot
from .protocol import Receiver, Sender, StreamSpec, poll_sockets
from .zeromq import ZmqSpec, count_incarnation

_GOODBYE_S: Final = 5.0  # for the receiver to say that it has everything
_GLANCE_S: Final = 0.5  # for a receiver that may not be there, and was sent nothing
_LINGER_MS: Final = 2000
_HEARTBEAT_MS: Final = 2000
_HEARTBEAT_TIMEOUT_MS: Final = 10_000  # after it a host that says nothing is taken to be gone
_SCHEMA_BYTES: Final = PIECE_BYTES // 2  # as HELLO is one frame, with 24 bytes for each stream
_ALIGN: Final = 8  # of the largest numbers


def _configure(sock: zmq.Socket[bytes], spec: ZmqSpec) -> None:
    """Sets what the sockets of both ends have in common."""
    sock.set_hwm(0)  # the slots are what bounds it
    # Before `bind`, which copies it: a connection lost just before `close` ends by the copy, and
    # by libzmq's default waits for ever to write to nobody. One that stands ends by close's own.
    sock.linger = 0
    sock.ipv6 = "[" in spec.endpoint
    sock.heartbeat_ivl, sock.heartbeat_timeout = _HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS


class _SocketStream:
    """The slots of one stream."""

    def __init__(self, index: int, spec: StreamSpec) -> None:
        self.nbytes = spec.nbytes
        self.next = 0
        memory = torch.empty((spec.slots, spec.nbytes), dtype=torch.uint8)
        self.free = [PacketSlot(row, index, place) for place, row in enumerate(memory)][::-1]
        self.rows = [memoryview(row.numpy()) for row in memory]
        self.busy: dict[int, tuple[PacketSlot, list[bytes | memoryview]]] = {}  # by number


class ZmqSender(Sender):
    """See protocol.Sender. `memory` of a slot is this process's, where libzmq reads it.

    A slot that was released is written again, perhaps while its packet is sent once more by a new
    connection: the receiver has had that one, and drops it by its number.
    """

    _spec: ZmqSpec

    def __init__(
        self, spec: ZmqSpec, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta
    ) -> None:
        if len(schema) > _SCHEMA_BYTES:
            raise LinkError(
                f"{spec.name}: a schema of {len(schema):,} bytes; between hosts it may have "
                f"{_SCHEMA_BYTES:,}. Send fewer channels."
            )
        self._spec, self._timeout, self._schema = spec, timeout, schema
        self._specs = list(streams)
        self.incarnation = count_incarnation(spec)
        self._session = secrets.randbits(64)
        self._origin = HeaderCodec(spec.name, spec.link, zlib.crc32(schema))
        self._streams: list[_SocketStream] = [
            _SocketStream(index, stream) for index, stream in enumerate(streams)
        ]
        self._welcome = self._ended = self._goodbye = False
        self._was_let_in = False  # a receiver has let it in
        self._refused: LinkError | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connect()

    def _connect(self) -> None:
        """Opens a connection, which nothing of an older one can come by."""
        self._welcome = False
        self._socket = self._context.socket(zmq.DEALER)
        _configure(self._socket, self._spec)
        keys = self._spec.keys
        secure(self._socket, keys.server_public, keys.client_public, keys.client_secret)
        self._handshakes = ConnectionMonitor(self._socket)
        self._socket.connect(self._spec.endpoint)
        firsts = [next(iter(stream.busy), stream.next) for stream in self._streams]
        self._tell(ControlMessage(HELLO, body=pack_hello(self._schema, self._specs, firsts)))

    def _tell(self, note: ControlMessage) -> None:
        note = note._replace(incarnation=self.incarnation, session=self._session)
        self._socket.send(note.pack(self._spec.link))

    def try_reserve(self, stream: int) -> PacketSlot | None:
        self._look()
        if self._ended:
            raise self._ended_there()
        state = self._streams[stream]
        if not state.free:
            return None
        slot = state.free.pop()
        slot.reserved = True
        return slot

    def send(
        self, slot: PacketSlot, nbytes: int, *, sequence: int, step: int, policy_version: int
    ) -> None:
        state = self._streams[slot.stream]
        self._look()
        slot.take(nbytes, state.nbytes)
        number = state.next
        header = PacketHeader(
            slot.stream, self.incarnation, number, sequence, step,
            policy_version=policy_version, nbytes=nbytes,
        )  # fmt: skip
        row: memoryview = state.rows[slot.place]
        starts = range(0, max(nbytes, 1), PIECE_BYTES)
        pieces = [row[start : min(start + PIECE_BYTES, nbytes)] for start in starts]
        frames: list[bytes | memoryview] = [self._origin.pack(header), *pieces]
        state.next = number + 1
        state.busy[number] = slot, frames
        if self._welcome:
            self._socket.send_multipart(frames, copy=False)

    def under_way(self, stream: int) -> int:
        self._look()
        return len(self._streams[stream].busy)

    def _look(self) -> None:
        """Takes in what the receiver has said, and what became of the connection."""
        if self._closed:
            raise self._closed_here()
        lost = self._handshakes.look()  # before what it had still said
        while self._socket.poll(0):
            note = unpack(self._socket.recv(), self._spec.link, self._spec.name)
            if (note.incarnation, note.session) != (self.incarnation, self._session):
                continue
            if note.kind == RELEASED:
                state = self._streams[note.stream]
                if (sent := state.busy.pop(note.number, None)) is not None:
                    state.free.append(sent[0])
            elif note.kind in (REFUSED, control.REFUSED_SCHEMA):
                error = SchemaDiffers if note.kind == control.REFUSED_SCHEMA else LinkError
                self._refused = error(f"{self._spec.name}: {note.body.decode(errors='replace')}")
            elif note.kind == control.END:
                self._ended = True
            elif note.kind == control.BYE:
                self._goodbye = True
            elif not self._welcome:
                self._welcome = self._was_let_in = True
                for stream in self._streams:
                    for _, frames in stream.busy.values():
                        self._socket.send_multipart(frames, copy=False)
        if self._refused is not None:
            raise self._refused
        if lost and not self._ended:
            self._disconnect(0)
            self._connect()

    def _wait_for_room(self, stream: int, timeout_s: float) -> None:
        poll_sockets([self._socket, self._handshakes.socket], timeout_s)

    def _peer_text(self) -> str:
        spec, monitor = self._spec, self._handshakes
        if self._welcome:
            return "it is connected."
        if not monitor.reached:
            return f"it does not listen at {spec.endpoint}; is it running?"
        reason = monitor.failed or "it was broken off before its end"
        return (
            f"something listens at {spec.endpoint}, but the CURVE handshake did not succeed: "
            f"{reason}. Both ends need the LinkSpec of the same run."
        )

    def give_up(self) -> None:
        self._ended = True  # as if the receiver had closed

    def close(self) -> None:
        if self._closed:
            return
        begin_s = time.monotonic()
        bye_socket: zmq.Socket[bytes] | None = None
        with contextlib.suppress(LinkError):
            self._look()
            while not (self._ended or self._goodbye):
                if self._welcome and bye_socket is not self._socket:  # again by a new connection
                    self._tell(ControlMessage(control.BYE))
                    bye_socket = self._socket
                monitor = self._handshakes
                # A sender that was let in once is let in by the receiver's successor too: a
                # handshake that failed has met a receiver that was dying.
                is_known = self._was_let_in or (
                    not monitor.failed and (monitor.reached or any(s.busy for s in self._streams))
                )
                left_s = begin_s + (_GOODBYE_S if is_known else _GLANCE_S) - time.monotonic()
                if left_s <= 0:
                    break
                poll_sockets([self._socket, self._handshakes.socket], left_s)
                self._look()
        self._closed = True
        is_connected = self._welcome and not (self._ended or self._goodbye)
        self._disconnect(_LINGER_MS if is_connected else 0)
        self._context.term()

    def _disconnect(self, linger_ms: int) -> None:
        self._handshakes.close()
        self._socket.close(linger_ms)


class _KnownSender:
    """The sender whose packets the receiver takes."""

    def __init__(self, note: ControlMessage, peer: bytes, firsts: list[int]) -> None:
        self.incarnation, self.session, self.peer = note.incarnation, note.session, peer
        self.next = firsts
        self.kept: set[tuple[int, int]] = set()  # (stream, number) not released


class ZmqReceiver(Receiver):
    """See protocol.Receiver. `memory` of a packet is what libzmq has received it into."""

    _spec: ZmqSpec

    def __init__(self, spec: ZmqSpec, timeout: timedelta) -> None:
        self.source = spec.source
        self._spec, self._timeout = spec, timeout
        self._sender: _KnownSender | None = None
        self._specs: list[StreamSpec] = []
        self._arrived: collections.deque[Packet | CorruptPacket] = collections.deque()
        self._ended = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._listen()
        except BaseException:
            self._context.destroy(0)
            raise

    def _listen(self) -> None:
        spec = self._spec
        self._socket = router = self._context.socket(zmq.ROUTER)
        _configure(router, spec)
        self._authenticator = Authenticator(self._context, {spec.keys.client_public})
        self._authenticator.guard(router, spec.keys.server_public, spec.keys.server_secret)
        self._handshakes = ConnectionMonitor(router)
        try:
            router.bind(spec.endpoint)
        except zmq.ZMQError as error:
            raise LinkError(
                f"{spec.name}: its receiver cannot listen at {spec.endpoint} ({error.strerror}). "
                "A link has one receiver, on the host that the address belongs to."
            ) from error

    @property
    def refused(self) -> int:
        return self._handshakes.failures

    def connected(self) -> bool:
        self._look()
        return self._schema is not None

    def sockets(self) -> list[Any]:
        return [self._socket, self._authenticator.socket, self._handshakes.socket]

    def ready(self) -> bool:
        self._look()
        return bool(self._arrived) or self._ended

    def poll(self) -> Packet | None:
        if self._closed or not self._arrived:
            self._look()
        if self._arrived:
            arrival = self._arrived.popleft()
            if isinstance(arrival, CorruptPacket):
                raise arrival
            return arrival
        if self._ended:
            raise self._ended_there()
        return None

    def release(self, packet: Packet) -> None:
        self._look()
        stream, incarnation, number = packet.header[:3]
        packet.take(self._spec.name)
        if self._sender is not None and self._sender.incarnation == incarnation:
            self._sender.kept.discard((stream, number))
            self._tell(ControlMessage(RELEASED, stream, number=number))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._ended:  # else its sender is gone, and there is nobody to write it to
            self._tell(ControlMessage(control.END))
        self._handshakes.close()
        self._socket.close(_LINGER_MS)
        self._authenticator.socket.close(0)
        self._context.term()

    def _look(self) -> None:
        """Takes in what has arrived, and answers the authenticator's questions."""
        if self._closed:
            raise self._closed_here()
        self._handshakes.look()
        self._authenticator.answer()
        while self._socket.poll(0):
            peer, *frames = self._socket.recv_multipart(copy=False)
            try:
                if len(frames) == 1:
                    note = unpack(frames[0].bytes, self._spec.link, self._spec.name)
                    self._handle_note(peer.bytes, note)
                else:
                    self._take(peer.bytes, *frames)
            except CorruptPacket as error:
                self._arrived.append(error)

    def _handle_note(self, peer: bytes, note: ControlMessage) -> None:
        sender = self._sender
        if note.kind == HELLO:
            self._handle_hello(peer, note)
        elif note.kind == control.BYE and sender is not None and peer == sender.peer:
            self._ended = True
            self._tell(ControlMessage(control.BYE))  # all that came before has been received

    def _handle_hello(self, peer: bytes, note: ControlMessage) -> None:
        schema, specs, firsts = control.unpack_hello(note.body, self._spec.name)
        sender = self._sender
        if sender is not None and note[2:4] == (sender.incarnation, sender.session):
            sender.peer = peer  # the same one, by a new connection
        elif self._ended or (sender is not None and note.incarnation <= sender.incarnation):
            state = "closed by its sender" if self._ended else "open for a later sender"
            return self._refuse(peer, note, REFUSED, f"the link is {state}. Make a new link.")
        elif self._schema not in (None, schema) or self._specs not in ([], specs):
            text = "the sender before this one had another schema, or other streams. A replaced "
            text += "sender sends what its predecessor did; start a new run for another config."
            return self._refuse(peer, note, control.REFUSED_SCHEMA, text)
        else:
            self._sender = _KnownSender(note, peer, firsts)
            self._schema, self._specs = schema, specs
            self._origin = HeaderCodec(self._spec.name, self._spec.link, zlib.crc32(schema))
            self._capacities = [spec.nbytes for spec in specs]
        self._tell(ControlMessage(control.WELCOME))

    def _refuse(self, peer: bytes, note: ControlMessage, kind: int, text: str) -> None:
        answer = note._replace(kind=kind, body=text.encode())
        self._socket.send_multipart([peer, answer.pack(self._spec.link)])

    def _tell(self, note: ControlMessage) -> None:
        if (sender := self._sender) is not None:
            note = note._replace(incarnation=sender.incarnation, session=sender.session)
            self._socket.send_multipart([sender.peer, note.pack(self._spec.link)])

    def _take(self, peer: bytes, head: zmq.Frame, *pieces: zmq.Frame) -> None:
        sender = self._sender
        if sender is None or peer != sender.peer:
            return  # of a connection that was lost: sent again by the new one, or gone
        header = self._origin.unpack(head.bytes, self._capacities)
        for field, value, expected_value in (
            ("incarnation", header.incarnation, sender.incarnation),
            ("nbytes", header.nbytes, sum(map(len, pieces))),
        ):
            if value != expected_value:
                raise CorruptPacket(self._spec.name, field, str(value), str(expected_value))
        key, expected = (header.stream, header.number), sender.next[header.stream]
        # Connections keep the order: those between were refused. They are under way at the sender,
        # so not more than its slots.
        slots = self._specs[header.stream].slots
        for refused in range(max(expected, header.number - slots), header.number):
            self._tell(ControlMessage(RELEASED, header.stream, number=refused))
        if header.number < expected:  # sent again
            if key not in sender.kept:
                self._tell(ControlMessage(RELEASED, header.stream, number=header.number))
            return
        sender.next[header.stream] = header.number + 1
        sender.kept.add(key)
        self._arrived.append(Packet(header, _joined(pieces), 0))

    def _peer_text(self) -> str:
        monitor = self._handshakes
        if not monitor.reached:
            return f"nobody has connected to {self._spec.endpoint}; is it running?"
        if monitor.failed:
            return (
                f"somebody connects, but the CURVE handshake does not succeed: {monitor.failed}. "
                "Both ends need the LinkSpec of the same run."
            )
        return "somebody has connected that says nothing of this link."


def _joined(pieces: Sequence[zmq.Frame]) -> torch.Tensor:
    """Returns the memory of a packet's only piece, or a copy of all of them."""
    if len(pieces) == 1:
        return _tensor(pieces[0])
    memory = torch.empty(sum(map(len, pieces)), dtype=torch.uint8)
    array: Any = memory.numpy()
    row, start = memoryview(array), 0
    for piece in pieces:
        row[start : start + len(piece)] = piece.buffer
        start += len(piece)
    return memory


def _tensor(frame: zmq.Frame) -> torch.Tensor:
    """Returns a frame's memory, copied only where numbers could not be read from it."""
    buffer = frame.buffer
    if not len(buffer):
        return torch.empty(0, dtype=torch.uint8)
    if buffer.readonly:
        buffer = memoryview(bytearray(buffer))
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    return tensor.clone() if tensor.data_ptr() % _ALIGN else tensor
