"""The sending end of a ZeroMQ link is as zeromq.py describes it."""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import torch
import zmq

from gmi_drl.comm.errors import LinkClosed, LinkEnded, LinkError, LinkTimeout, SchemaDiffers
from gmi_drl.comm.shm.heartbeat import waiting

from .connection_monitor import ConnectionMonitor
from .control_message import (
    BYE,
    END,
    HELLO,
    REFUSED,
    REFUSED_SCHEMA,
    RELEASED,
    ControlMessage,
    pack_hello,
    unpack,
)
from .packet import HeaderCodec, PacketHeader, PacketSlot
from .protocol import LinkEnd, StreamSpec
from .zeromq import LINGER_MS, ZmqSpec, count_incarnation, open_context, set_up

_GOODBYE_S: Final = 5.0  # for the receiver to say that it has everything
_GLANCE_S: Final = 0.5  # for one that may not be there, and to whom nothing was sent


class _SocketStream:
    """The slots of one stream."""

    def __init__(self, index: int, spec: StreamSpec) -> None:
        self.nbytes, self.slots = spec.nbytes, spec.slots
        self.next = 0
        memory = torch.empty((spec.slots, spec.nbytes), dtype=torch.uint8)
        self.free = [PacketSlot(row, index, place) for place, row in enumerate(memory)][::-1]
        self.rows = [memoryview(row.numpy()) for row in memory]
        self.busy: dict[
            int, tuple[PacketSlot, list[bytes | memoryview]]
        ] = {}  # by number, ascending


class ZmqSender(LinkEnd):
    """See protocol.Sender. `memory` of a slot is this process's, and copied by `send`."""

    def __init__(
        self, spec: ZmqSpec, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta
    ) -> None:
        self._spec, self._timeout, self._schema = spec, timeout, schema
        self._specs = list(streams)
        self.incarnation = count_incarnation(spec)
        self._session = secrets.randbits(64)
        self._origin = HeaderCodec(spec.name, spec.link, zlib.crc32(schema))
        self._streams = [_SocketStream(index, stream) for index, stream in enumerate(streams)]
        self._welcome = self._ended = self._goodbye = False
        self._met = False  # a receiver has let it in
        self._refused: LinkError | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = open_context()
        self._connect(self._context)

    def _connect(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Opens a connection, which nothing of an older one can come by."""
        self._welcome = False
        self._socket = context.socket(zmq.DEALER)
        set_up(self._socket, self._spec)
        if keys := self._spec.keys:
            self._socket.curve_serverkey = keys.server_public
            self._socket.curve_publickey = keys.client_public
            self._socket.curve_secretkey = keys.client_secret
        self._handshakes = ConnectionMonitor(self._socket)
        self._socket.connect(self._spec.endpoint)
        firsts = [next(iter(stream.busy), stream.next) for stream in self._streams]
        self._tell(ControlMessage(HELLO, body=pack_hello(self._schema, self._specs, firsts)))

    def _tell(self, note: ControlMessage) -> None:
        note = note._replace(incarnation=self.incarnation, session=self._session)
        self._socket.send(note.pack(self._spec.link))

    def reserve(self, stream: int, timeout: timedelta | None = None) -> PacketSlot:
        limit = self._timeout if timeout is None else timeout
        deadline_s = time.monotonic() + limit.total_seconds()
        mine = self._streams[stream]
        while (slot := self.try_reserve(stream)) is None:
            if not mine.busy:
                raise LinkError(
                    f"{self._spec.name}: all {mine.slots} slots of stream {stream} are reserved "
                    "here. Send one first, or give the stream more."
                )
            if not self._wait(deadline_s):
                raise LinkTimeout(
                    f"{self._spec.name}: no room for {limit.total_seconds():g} s: "
                    f"{self._spec.target} has released none of the {len(mine.busy)} packets of "
                    f"stream {stream} that are under way; {self._known()}",
                    self._spec.target,
                )
        return slot

    def try_reserve(self, stream: int) -> PacketSlot | None:
        self._look()
        if self._ended:
            raise LinkEnded(
                f"{self._spec.name}: {self._spec.target} has closed it and receives nothing more"
            )
        mine = self._streams[stream]
        if not mine.free:
            return None
        slot = mine.free.pop()
        slot.reserved = True
        return slot

    def pin(self, device: torch.device) -> None:
        """Does nothing: a socket copies."""

    def send(
        self, slot: PacketSlot, nbytes: int, *, sequence: int, step: int, policy_version: int
    ) -> None:
        mine = self._streams[slot.stream]
        self._look()
        slot.take(nbytes, mine.nbytes)
        number = mine.next
        header = PacketHeader(
            slot.stream,
            self.incarnation,
            number,
            sequence,
            step,
            policy_version=policy_version,
            nbytes=nbytes,
        )
        payload: memoryview = mine.rows[slot.place][:nbytes]
        frames: list[bytes | memoryview] = [self._origin.pack(header), payload]
        mine.next = number + 1
        mine.busy[number] = slot, frames
        if self._welcome:
            self._socket.send_multipart(frames)

    def under_way(self, stream: int) -> int:
        self._look()
        return len(self._streams[stream].busy)

    def _look(self) -> None:
        """Takes in what the receiver has said, and what became of the connection."""
        context = self._context
        if context is None:
            raise LinkClosed(f"{self._spec.name} has been closed here")
        lost = self._handshakes.look()  # before what it had still said
        while self._socket.poll(0):
            note = unpack(self._socket.recv(), self._spec.link, self._spec.name)
            if (note.incarnation, note.session) != (self.incarnation, self._session):
                continue
            if note.kind == RELEASED:
                mine = self._streams[note.stream]
                if (one := mine.busy.pop(note.number, None)) is not None:
                    mine.free.append(one[0])
            elif note.kind in (REFUSED, REFUSED_SCHEMA):
                error = SchemaDiffers if note.kind == REFUSED_SCHEMA else LinkError
                self._refused = error(f"{self._spec.name}: {note.body.decode(errors='replace')}")
            elif note.kind == END:
                self._ended = True
            elif note.kind == BYE:
                self._goodbye = True
            elif not self._welcome:
                self._welcome = self._met = True
                for stream in self._streams:
                    for _, frames in stream.busy.values():
                        self._socket.send_multipart(frames)
        if self._refused is not None:
            raise self._refused
        if lost and not self._ended:
            self._disconnect(0)
            self._connect(context)

    def _wait(self, deadline_s: float) -> bool:
        """Waits until something has come in; False when the deadline has passed."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._handshakes.socket, zmq.POLLIN)
        with waiting:
            poller.poll(max(1, int(left_s * 1000)))
        return True

    def _known(self) -> str:
        """Says what is known of the other end, for an error."""
        spec, seen = self._spec, self._handshakes
        if self._welcome:
            return "it is connected."
        if not seen.reached:
            return f"it does not listen at {spec.endpoint}; is it running?"
        if not spec.keys:
            return "something listens there that does not answer."
        why = seen.failed or "it was broken off before its end"
        return (
            f"something listens at {spec.endpoint}, but the CURVE handshake did not succeed: "
            f"{why}. Both ends need the LinkSpec of the same run."
        )

    def close(self) -> None:
        context = self._context
        if context is None:
            return
        begin_s = time.monotonic()
        told: zmq.Socket[bytes] | None = None
        with contextlib.suppress(LinkError):
            self._look()
            while not (self._ended or self._goodbye):
                if self._welcome and told is not self._socket:  # again by a new connection
                    self._tell(ControlMessage(BYE))
                    told = self._socket
                seen = self._handshakes
                # Who was let in once, or needs no key, is let in by whoever replaces that receiver:
                # a handshake that failed has met one that was dying.
                wrong_keys = self._spec.keys and seen.failed
                known = self._met or (
                    not wrong_keys and (seen.reached or any(mine.busy for mine in self._streams))
                )
                if not self._wait(begin_s + (_GOODBYE_S if known else _GLANCE_S)):
                    break
                self._look()
        self._context = None
        heard = self._welcome and not (self._ended or self._goodbye)
        self._disconnect(LINGER_MS if heard else 0)
        context.term()

    def _disconnect(self, linger_ms: int) -> None:
        self._handshakes.close()
        self._socket.close(linger_ms)
