"""The receiving end of a ring is as ring.py describes it."""

from __future__ import annotations

import collections
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gmi_drl.comm.errors import CorruptPacket, LinkClosed, LinkEnded, LinkTimeout
from gmi_drl.comm.shm.futex import Fence
from gmi_drl.comm.shm.liveness import is_alive
from gmi_drl.comm.shm.pinned import PinnedMemory

from .doorbell import Doorbell
from .packet import HEADER_BYTES, HeaderCodec, Packet
from .protocol import LinkEnd
from .ring import RingSpec, schema_crc
from .ring_layout import (
    CONTROL_BYTES,
    READY,
    RECEIVER,
    RECEIVER_CLOSED,
    SENDER,
    SENDER_CLOSED,
    SENDER_DOORBELL,
    RingLayout,
    RingStream,
    check_control,
    read_layout,
)
from .shared import claim, peer_text, populate, words_of

if TYPE_CHECKING:
    from torch import Tensor


class _ReceivedStream:
    """One stream as the receiver knows it."""

    def __init__(self, words: memoryview, places: RingStream, fence: Fence) -> None:
        self.places = places
        self.next = words[places.sent]  # the number that is received next
        fence()
        unreleased = []
        for place in range(places.slots):
            held = words[places.held + place]
            if held <= self.next and held != words[places.freed + place]:
                unreleased.append((held - 1, place))
        self.again = collections.deque(sorted(unreleased))  # (number, place) given once more
        self.headers: list[memoryview] = []
        self.whole: list[Tensor] = []
        self.views: list[Tensor] = []  # of each slot, as long as its last packet
        self.lengths = [places.nbytes] * places.slots  # of those


class RingReceiver(LinkEnd):
    """See protocol.Receiver. `memory` of a packet is shared memory, where the sender wrote it."""

    def __init__(self, spec: RingSpec, timeout: timedelta) -> None:
        self.source = spec.source
        self._spec, self._timeout = spec, timeout
        self._closed = False
        self._fence = Fence()
        memory = spec.memfd.map(0, CONTROL_BYTES)
        self._words = words_of(memory)
        check_control(self._words, spec.link, spec.name)
        if self._words[RECEIVER_CLOSED]:
            raise LinkClosed(
                f"{spec.name}: its receiver had closed it before its process ended. A link ends "
                "with that; make a new one."
            )
        claim(self._words, RECEIVER, spec.name, "receiver")
        self.doorbell = spec.doorbell.open()
        self.doorbell_key = spec.doorbell.key
        self._senders_doorbell = Doorbell(memory[SENDER_DOORBELL:])
        self._schema: bytes | None = None
        self._streams: list[_ReceivedStream] = []
        self._turn = 0  # the stream that is looked at first
        self._device: torch.device | None = None  # that packets are copied to, if it is a GPU
        self._pinned: PinnedMemory | None = None

    @property
    def schema(self) -> bytes:
        self._check_open()
        if not self.connected():
            self.doorbell.wait(self.connected, self._timeout)
        if self._schema is None:
            raise LinkTimeout(
                f"{self._spec.name}: {self.source} has not come within "
                f"{self._timeout.total_seconds():g} s; "
                f"{peer_text(self._words, SENDER, self.source)}",
                self.source,
            )
        return self._schema

    def pin(self, device: torch.device) -> None:
        if device.type == "cuda":
            self._device = device
            self._pin()

    def _pin(self) -> None:
        """Pins as soon as both the device and the memory are known."""
        if self._device is not None and self._schema is not None and self._pinned is None:
            self._pinned = PinnedMemory(
                self._memory, self._device, f"{self._spec.name}: packets are"
            )

    def connected(self) -> bool:
        if self._schema is None:
            if not self._words[READY]:
                return False
            self._fence()
            self._open()
        return True

    def _open(self) -> None:
        memory = self._spec.memfd.map()
        words = words_of(memory)
        schema, layout = read_layout(memory, words, self._spec.name)
        populate(memory)
        self._lay_out(words, memory, layout)
        self._origin = HeaderCodec(self._spec.name, self._spec.link, schema_crc(schema))
        self._capacities = [places.nbytes for places in layout.streams]
        self._words, self._schema, self._memory = words, schema, memory
        self._pin()

    def _lay_out(self, words: memoryview, memory: memoryview, layout: RingLayout) -> None:
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        for places in layout.streams:
            stream = _ReceivedStream(words, places, self._fence)
            for place in range(places.slots):
                start = places.slot(place)
                stream.headers.append(memory[start : start + HEADER_BYTES])
                payload = whole[start + HEADER_BYTES : start + HEADER_BYTES + places.nbytes]
                stream.whole.append(payload)
            stream.views = list(stream.whole)
            self._streams.append(stream)

    def sender_lives(self) -> bool:
        """Tells whether the sender's process runs."""
        return is_alive(self._words[SENDER], self._words[SENDER + 1])

    def sockets(self) -> list[Any]:
        """Returns nothing: see `doorbell`."""
        return []

    def ready(self) -> bool:
        """Tells whether `poll` has something to say: a packet, or the end."""
        self._check_open()
        if not self.connected():
            return False
        words = self._words
        for stream in self._streams:
            if stream.again or words[stream.places.sent] > stream.next:
                return True
        return bool(words[SENDER_CLOSED])

    def poll(self) -> Packet | None:
        self._check_open()
        if self._schema is None and not self.connected():
            return None
        words, streams, turn = self._words, self._streams, self._turn
        closed = words[SENDER_CLOSED]
        if closed:
            self._fence()  # all that it sent is seen now
        number = len(streams)
        for index in range(turn, turn + number):
            index %= number
            stream = streams[index]
            if stream.again:
                return self._take(index, stream, *stream.again.popleft())
            if words[stream.places.sent] > stream.next:
                self._turn = index + 1
                self._fence()
                count, places = stream.next, stream.places
                stream.next += 1
                place = words[places.order + count % places.slots]
                if place >= places.slots or words[places.held + place] != count + 1:
                    self._misplaced(index, stream, count)
                return self._take(index, stream, count, place)
        if closed:
            raise LinkEnded(
                f"{self._spec.name}: {self.source} has closed it, and all packets were received"
            )
        return None

    def _take(self, index: int, stream: _ReceivedStream, number: int, place: int) -> Packet:
        try:
            header = self._origin.unpack(bytes(stream.headers[place]), self._capacities)
            for field, value, expected in (
                ("stream", header.stream, index),
                ("number", header.number, number),
            ):
                if value != expected:
                    raise CorruptPacket(self._origin.where, field, str(value), str(expected))
        except CorruptPacket:
            self._free(stream, place, number)
            raise
        if stream.lengths[place] != header.nbytes:
            # A view costs as much as a copy of some kilobytes: packets of a stream are alike.
            stream.views[place] = stream.whole[place][: header.nbytes]
            stream.lengths[place] = header.nbytes
        return Packet(header, stream.views[place], place)

    def _misplaced(self, index: int, stream: _ReceivedStream, number: int) -> NoReturn:
        """Raises CorruptPacket: the order word of a packet does not lead to it."""
        words, places = self._words, stream.places
        slot = words[places.order + number % places.slots]
        for place in range(places.slots):
            if words[places.held + place] == number + 1:
                self._free(stream, place, number)
        where = f"{self._spec.name}, stream {index}"
        raise CorruptPacket(where, "slot", str(slot), f"the slot of packet {number}")

    def release(self, packet: Packet) -> None:
        self._check_open()
        place = packet.take(self._spec.name)
        if self._pinned is not None:
            self._pinned.wait()
        self._free(self._streams[packet.header.stream], place, packet.header.number)

    def _free(self, stream: _ReceivedStream, place: int, number: int) -> None:
        self._fence()  # it was read before it may be written
        self._words[stream.places.freed + place] = number + 1
        self._senders_doorbell.ring()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._words[RECEIVER_CLOSED] = 1
            self._senders_doorbell.ring()  # first: the sender need not wait for this one's GPU
            if self._pinned is not None:
                self._pinned.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"{self._spec.name} has been closed here")
