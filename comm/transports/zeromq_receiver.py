"""The receiving end of a ZeroMQ link is as zeromq.py describes it."""

from __future__ import annotations

import collections
import socket
import time
import zlib
from datetime import timedelta
from typing import Any

import torch
import zmq
from zmq.utils import z85

from gmi_drl.comm.errors import CorruptPacket, LinkClosed, LinkEnded, LinkError, LinkTimeout
from gmi_drl.comm.shm.heartbeat import waiting

from .connection_monitor import ConnectionMonitor
from .control_message import (
    BYE,
    END,
    HELLO,
    REFUSED,
    REFUSED_SCHEMA,
    RELEASED,
    WELCOME,
    ControlMessage,
    unpack,
    unpack_hello,
)
from .packet import HeaderCodec, Packet
from .protocol import LinkEnd, StreamSpec
from .zeromq import LINGER_MS, ZmqSpec, open_context, set_up

_ALIGN = 8  # of the largest numbers
_ZAP = "inproc://zeromq.zap.01"


class _Sender:
    """The sender whose packets are taken."""

    def __init__(self, note: ControlMessage, peer: bytes, firsts: list[int]) -> None:
        self.incarnation, self.session, self.peer = note.incarnation, note.session, peer
        self.next = firsts
        self.kept: set[tuple[int, int]] = set()  # (stream, number) not released


class ZmqReceiver(LinkEnd):
    """See protocol.Receiver. `memory` of a packet is what libzmq has received it into."""

    doorbell = None  # it is woken by its sockets
    doorbell_key = None

    def __init__(self, spec: ZmqSpec, timeout: timedelta) -> None:
        self.source = spec.source
        self._spec, self._timeout = spec, timeout
        self._sender: _Sender | None = None
        self._schema: bytes | None = None
        self._specs: list[StreamSpec] = []
        self._arrived: collections.deque[Packet | CorruptPacket] = collections.deque()
        self._ended = False
        self._context: zmq.Context[zmq.Socket[bytes]] | None = open_context()
        try:
            self._listen(self._context)
        except BaseException:
            self._context.destroy(0)
            raise

    def _listen(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        spec = self._spec
        self._zap: zmq.Socket[bytes] | None = None
        self._socket = one = context.socket(zmq.ROUTER)
        set_up(one, spec)
        if spec.keys:
            self._zap = context.socket(zmq.REP)
            self._zap.bind(_ZAP)
            one.curve_server = True
            one.curve_secretkey = spec.keys.server_secret
            one.curve_publickey = spec.keys.server_public
            one.zap_domain = b"gmi-drl"
        else:
            self._check_free(spec.endpoint.removeprefix("ipc://"))
        self._handshakes = ConnectionMonitor(one)
        try:
            one.bind(spec.endpoint)
        except zmq.ZMQError as error:
            raise LinkError(
                f"{spec.name}: its receiver cannot listen at {spec.endpoint} ({error.strerror}). "
                "A link has one receiver, on the host that the address belongs to."
            ) from error

    def _check_free(self, path: str) -> None:
        """Raises LinkError if somebody listens: libzmq would take the place of it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except OSError:
                return
        raise LinkError(
            f"{self._spec.name}: its receiver is open already, at {path}. A link has one "
            "receiver; a new one takes over when that process is gone."
        )

    @property
    def schema(self) -> bytes:
        deadline_s = time.monotonic() + self._timeout.total_seconds()
        while not self.connected():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise LinkTimeout(
                    f"{self._spec.name}: {self.source} has not come within "
                    f"{self._timeout.total_seconds():g} s; {self._known()}",
                    self.source,
                )
            poller = zmq.Poller()
            for one in self.sockets():
                poller.register(one, zmq.POLLIN)
            with waiting:
                poller.poll(max(1, int(left_s * 1000)))
        assert self._schema is not None
        return self._schema

    def connected(self) -> bool:
        self._look()
        return self._schema is not None

    def sockets(self) -> list[Any]:
        """Returns what becomes readable when there is something to look at."""
        return [one for one in (self._socket, self._zap, self._handshakes.socket) if one]

    def ready(self) -> bool:
        """Tells whether `poll` has something to say: a packet, or the end."""
        self._look()
        return bool(self._arrived) or self._ended

    def poll(self) -> Packet | None:
        if self._context is None or not self._arrived:
            self._look()
        if self._arrived:
            one = self._arrived.popleft()
            if isinstance(one, CorruptPacket):
                raise one
            return one
        if self._ended:
            raise LinkEnded(
                f"{self._spec.name}: {self.source} has closed it, and all packets were received"
            )
        return None

    def pin(self, device: torch.device) -> None:
        """Does nothing: a socket copies."""

    def release(self, packet: Packet) -> None:
        self._look()
        stream, incarnation, number = packet.header[:3]
        packet.take(self._spec.name)
        if self._sender is not None and self._sender.incarnation == incarnation:
            self._sender.kept.discard((stream, number))
            self._tell(ControlMessage(RELEASED, stream, number=number))

    def close(self) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        if not self._ended:  # else its sender is gone, and there is nobody to write it to
            self._tell(ControlMessage(END))
        self._handshakes.close()
        self._socket.close(LINGER_MS)
        if self._zap:
            self._zap.close(0)
        context.term()

    def _look(self) -> None:
        """Takes in what has arrived, and answers the authenticator's questions."""
        if self._context is None:
            raise LinkClosed(f"{self._spec.name} has been closed here")
        self._handshakes.look()
        while self._zap is not None and self._zap.poll(0):
            self._authenticate(self._zap)
        while self._socket.poll(0):
            peer, *frames = self._socket.recv_multipart(copy=False)
            try:
                if len(frames) == 1:
                    self._hear(peer.bytes, unpack(frames[0].bytes, *self._mine()))
                elif len(frames) == 2:
                    self._take(peer.bytes, *frames)
                else:
                    raise CorruptPacket(
                        self._spec.name, "number of parts", str(len(frames)), "1 or 2"
                    )
            except CorruptPacket as error:
                self._arrived.append(error)

    def _mine(self) -> tuple[int, str]:
        return self._spec.link, self._spec.name

    def _authenticate(self, zap: zmq.Socket[bytes]) -> None:
        """Lets in whoever has the sender's key, and nobody else (ZAP, ZeroMQ RFC 27)."""
        version, request, _, _, _, mechanism, *credentials = zap.recv_multipart()
        keys = self._spec.keys
        allowed = (
            keys is not None
            and mechanism == b"CURVE"
            and len(credentials) == 1
            and z85.encode(credentials[0]) == keys.client_public
        )
        status = (b"200", b"OK") if allowed else (b"400", b"not the key of this link's sender")
        zap.send_multipart([version, request, *status, b"", b""])

    def _hear(self, peer: bytes, note: ControlMessage) -> None:
        sender = self._sender
        if note.kind == HELLO:
            self._greet(peer, note)
        elif note.kind == BYE and sender is not None and peer == sender.peer:
            self._ended = True
            self._tell(ControlMessage(BYE))  # all that came before has been received

    def _greet(self, peer: bytes, note: ControlMessage) -> None:
        schema, specs, firsts = unpack_hello(note.body, self._spec.name)
        sender = self._sender
        if sender is not None and note[2:4] == (sender.incarnation, sender.session):
            sender.peer = peer  # the same one, by a new connection
        elif self._ended or (sender is not None and note.incarnation <= sender.incarnation):
            state = "closed by its sender" if self._ended else "open for a later sender"
            return self._refuse(peer, note, REFUSED, f"the link is {state}. Make a new link.")
        elif self._schema not in (None, schema) or self._specs not in ([], specs):
            text = "the sender before this one had another schema, or other streams. A replaced "
            text += "sender sends what its predecessor did; start a new run for another config."
            return self._refuse(peer, note, REFUSED_SCHEMA, text)
        else:
            self._sender = _Sender(note, peer, firsts)
            self._schema, self._specs = schema, specs
            self._origin = HeaderCodec(self._spec.name, self._spec.link, zlib.crc32(schema))
            self._capacities = [spec.nbytes for spec in specs]
        self._tell(ControlMessage(WELCOME))

    def _refuse(self, peer: bytes, note: ControlMessage, kind: int, text: str) -> None:
        answer = note._replace(kind=kind, body=text.encode())
        self._socket.send_multipart([peer, answer.pack(self._spec.link)])

    def _tell(self, note: ControlMessage) -> None:
        if (sender := self._sender) is not None:
            note = note._replace(incarnation=sender.incarnation, session=sender.session)
            self._socket.send_multipart([sender.peer, note.pack(self._spec.link)])

    def _take(self, peer: bytes, head: zmq.Frame, payload: zmq.Frame) -> None:
        sender = self._sender
        if sender is None or peer != sender.peer:
            return  # of a connection that was lost: sent again by the new one, or gone
        header = self._origin.unpack(head.bytes, self._capacities)
        for field, value, expected_value in (
            ("incarnation", header.incarnation, sender.incarnation),
            ("nbytes", header.nbytes, len(payload)),
        ):
            if value != expected_value:
                raise CorruptPacket(self._spec.name, field, str(value), str(expected_value))
        key, expected = (header.stream, header.number), sender.next[header.stream]
        for refused in range(expected, header.number):  # connections keep the order
            self._tell(ControlMessage(RELEASED, header.stream, number=refused))
        if header.number < expected:  # sent again
            if key not in sender.kept:
                self._tell(ControlMessage(RELEASED, header.stream, number=header.number))
            return
        sender.next[header.stream] = header.number + 1
        sender.kept.add(key)
        self._arrived.append(Packet(header, _tensor(payload), 0))

    def _known(self) -> str:
        """Says what is known of the other end, for an error."""
        seen = self._handshakes
        if not seen.reached:
            return f"nobody has connected to {self._spec.endpoint}; is it running?"
        if seen.failed and self._spec.keys:
            return (
                f"somebody connects, but the CURVE handshake does not succeed: {seen.failed}. "
                "Both ends need the LinkSpec of the same run."
            )
        return "somebody has connected that says nothing of this link."


def _tensor(frame: zmq.Frame) -> torch.Tensor:
    """Returns a frame's memory, copied only where numbers could not be read from it."""
    buffer = frame.buffer
    if not len(buffer):
        return torch.empty(0, dtype=torch.uint8)
    if buffer.readonly:
        buffer = memoryview(bytearray(buffer))
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    return tensor.clone() if tensor.data_ptr() % _ALIGN else tensor
