"""The two ends of a ring are as ring.py describes them."""

from __future__ import annotations

import collections
import contextlib
import itertools
import mmap
import os
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import torch
from torch import Tensor

from gmi_drl.comm.errors import CorruptPacket, LinkClosed, LinkError, SchemaDiffers
from gmi_drl.comm.shm.futex import Fence
from gmi_drl.comm.shm.liveness import claim, is_alive, peer_text
from gmi_drl.comm.shm.pinned import PinnedMemory
from gmi_drl.gmi.usage.processes import host_memory
from gmi_drl.runtime.store.alignment import round_up
from gmi_drl.runtime.store.memfd import Memfd

from .doorbell import DOORBELL_BYTES, Doorbell
from .packet import HEADER_BYTES, HeaderCodec, Packet, PacketHeader, PacketSlot
from .protocol import Receiver, Sender, StreamSpec
from .ring import CONTROL_BYTES, RingSpec

SENDER, SENDERS, SENDER_CLOSED = 8, 10, 11
SCHEMA_BYTES, STREAMS, READY = 16, 17, 18
RECEIVER, RECEIVER_CLOSED = 32, 34
SENDER_DOORBELL: Final = 384  # in bytes
_LINE: Final = 64
_PAGE: Final = 4096

assert mmap.PAGESIZE % _PAGE == 0
assert SENDER_DOORBELL >= (RECEIVER_CLOSED + 1) * 8
assert SENDER_DOORBELL + DOORBELL_BYTES <= CONTROL_BYTES

_POPULATE_WRITE: Final = 23  # Linux 5.14
_KEPT_FREE: Final = 64 << 20  # for all else on the machine


class RingStream:
    """The places of one stream's words (by index) and slots (by byte)."""

    __slots__ = ("freed", "held", "nbytes", "order", "sent", "slots", "start", "stride")

    def __init__(self, spec: StreamSpec, word: int) -> None:
        line = _LINE // 8
        self.nbytes, self.slots = spec.nbytes, spec.slots
        self.sent = word
        self.order = word + line
        self.held = self.order + spec.slots
        self.freed = round_up(self.held + spec.slots, line)
        self.start = 0
        self.stride = round_up(HEADER_BYTES + spec.nbytes, _LINE)

    @property
    def end(self) -> int:
        """Returns the first word behind this stream's."""
        return round_up(self.freed + self.slots, _LINE // 8)

    def slot(self, place: int) -> int:
        """Returns where a slot begins, with its packet's header."""
        return self.start + place * self.stride


class RingLayout:
    """The places of everything, which follow from the sizes alone."""

    def __init__(self, schema_bytes: int, specs: Sequence[StreamSpec]) -> None:
        self.schema = CONTROL_BYTES
        self.sizes = round_up(self.schema + schema_bytes, _LINE) // 8  # the word
        self.streams: list[RingStream] = []
        word = round_up(self.sizes + 2 * len(specs), _LINE // 8)
        for spec in specs:
            self.streams.append(RingStream(spec, word))
            word = self.streams[-1].end
        self.words_end = round_up(word * 8, _LINE)
        start = round_up(self.words_end, _PAGE)
        for stream in self.streams:
            stream.start = start
            start = round_up(start + stream.slots * stream.stride, _PAGE)
        self.nbytes = start


def write_layout(memory: memoryview, words: memoryview, layout: RingLayout, schema: bytes) -> None:
    """Writes what the file holds; its pages are reserved, and nobody reads them yet."""
    memory[layout.schema : layout.schema + len(schema)] = schema
    sizes = itertools.chain(*((stream.nbytes, stream.slots) for stream in layout.streams))
    for index, number in enumerate(sizes):
        words[layout.sizes + index] = number
    for stream in layout.streams:  # left by one that was killed at this, of other sizes
        for index in range(stream.sent, stream.end):
            words[index] = 0
    words[SCHEMA_BYTES], words[STREAMS] = len(schema), len(layout.streams)


def read_layout(memory: memoryview, words: memoryview) -> tuple[bytes, RingLayout]:
    """Reads the schema, and where everything is; `memory` is the whole file, ready."""
    schema_bytes = words[SCHEMA_BYTES]
    schema = bytes(memory[CONTROL_BYTES : CONTROL_BYTES + schema_bytes])
    sizes = RingLayout(schema_bytes, []).sizes
    pairs = [(words[sizes + 2 * k], words[sizes + 2 * k + 1]) for k in range(words[STREAMS])]
    return schema, RingLayout(schema_bytes, [StreamSpec(*pair) for pair in pairs])


def reserve_pages(memfd: Memfd, nbytes: int, what: str) -> None:
    """Makes the file at least `nbytes` long, all of it backed by memory.

    A full memory is a LinkError here, not a SIGBUS later. No file system bounds anonymous files, so
    what is available is looked at first: the kernel kills processes when too much is asked for.
    """
    size = memfd.size
    missing = nbytes - size
    if missing <= 0:
        return
    room = max(0, host_memory().free_bytes - _KEPT_FREE)
    if missing > room:
        raise _memory_error(what, missing, f"the machine has {room:,} bytes to spare")
    try:
        os.posix_fallocate(memfd.fd, size, missing)
    except OSError as error:
        raise _memory_error(what, missing, os.strerror(error.errno or 0)) from error


def _memory_error(what: str, nbytes: int, why: str) -> LinkError:
    return LinkError(
        f"{what}: {nbytes:,} bytes of shared memory asked for, and not to be had ({why}). Use "
        "fewer slots, shorter segments or fewer environments per GMI, or free memory."
    )


def words_of(memory: memoryview) -> memoryview:
    """Returns the 64-bit words of shared memory; each is read or written in one access."""
    return memory.cast("Q")


def populate(memory: memoryview) -> None:
    """Enters a mapping's pages in this process's page table, quicker than their faults would."""
    if isinstance(memory.obj, mmap.mmap):
        with contextlib.suppress(OSError):  # an older kernel: they are faulted in
            memory.obj.madvise(_POPULATE_WRITE)


def _claim(words: memoryview, at: int, link: str, end: str) -> None:
    if process := claim(words, at):
        raise LinkError(
            f"{link}: its {end} is open already, in process {process}. A link has one {end}; a new "
            "one takes over when that process is gone."
        )


def _closed_error(name: str, end: str) -> LinkClosed:
    return LinkClosed(
        f"{name}: its {end} had closed it before its process ended. A link ends with that; make a "
        "new one."
    )


def _slots(memory: memoryview, places: RingStream) -> tuple[list[memoryview], list[Tensor]]:
    """Returns the header and the payload of each slot."""
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    starts = [places.slot(place) for place in range(places.slots)]
    payloads = [start + HEADER_BYTES for start in starts]
    return (
        [memory[start : start + HEADER_BYTES] for start in starts],
        [flat[start : start + places.nbytes] for start in payloads],
    )


class _SentStream:
    """One stream as the sender knows it."""

    def __init__(
        self, words: memoryview, places: RingStream, index: int, memory: memoryview
    ) -> None:
        self.places = places
        self.sent = words[places.sent]
        self.headers, payloads = _slots(memory, places)
        self.free: list[PacketSlot] = []
        self.busy: list[PacketSlot] = []  # sent, not known to be released
        self.held = [0] * places.slots
        # What a sender before had not sent is free again.
        for place, payload in enumerate(payloads):
            freed = words[places.freed + place]
            if words[places.held + place] > self.sent:
                words[places.held + place] = freed
            self.held[place] = words[places.held + place]
            free = self.held[place] == freed
            (self.free if free else self.busy).append(PacketSlot(payload, index, place))
        self.free.reverse()  # the first slot first

    def collect(self, words: memoryview) -> bool:
        """Collects the slots that were released; returns whether any is free."""
        freed, held = self.places.freed, self.held
        busy: list[PacketSlot] = []
        for slot in self.busy:
            is_busy = words[freed + slot.place] != held[slot.place]
            (busy if is_busy else self.free).append(slot)
        self.busy = busy
        return bool(self.free)


class RingSender(Sender):
    """See protocol.Sender. `memory` of a slot is shared memory, written once and not copied."""

    _spec: RingSpec

    def __init__(
        self, spec: RingSpec, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta
    ) -> None:
        self._spec, self._timeout = spec, timeout
        self._fence = Fence()
        control = words_of(spec.memfd.map(0, CONTROL_BYTES))
        _claim(control, SENDER, spec.name, "sender")
        try:
            memory, layout = self._lay_out(control, schema, streams)
        except BaseException:
            control[SENDER] = 0
            raise
        self._memory = memory
        self._pinned: PinnedMemory | None = None
        self._words = words = words_of(memory)
        self.incarnation = words[SENDERS]
        words[SENDERS] += 1
        self._origin = HeaderCodec(spec.name, spec.link, zlib.crc32(schema))
        self._doorbell = spec.doorbell.open()
        self._my_doorbell = Doorbell(memory[SENDER_DOORBELL:])
        self._streams: list[_SentStream] = [
            _SentStream(words, places, index, memory) for index, places in enumerate(layout.streams)
        ]
        self._fence()

    def _lay_out(
        self, control: memoryview, schema: bytes, streams: Sequence[StreamSpec]
    ) -> tuple[memoryview, RingLayout]:
        """Maps the whole file; writes what it holds unless a sender before has done so."""
        spec = self._spec
        if control[SENDER_CLOSED]:
            raise _closed_error(spec.name, "sender")
        if control[READY]:
            memory = spec.memfd.map()
            written, layout = read_layout(memory, words_of(memory))
            self._check_same(written, layout, schema, streams)
            populate(memory)
            return memory, layout
        layout = RingLayout(len(schema), streams)
        reserve_pages(spec.memfd, layout.nbytes, spec.name)
        memory = spec.memfd.map(0, layout.nbytes)
        populate(memory)
        words = words_of(memory)
        write_layout(memory, words, layout, schema)
        self._fence()
        words[READY] = 1
        return memory, layout

    def _check_same(
        self, before: bytes, previous: RingLayout, schema: bytes, streams: Sequence[StreamSpec]
    ) -> None:
        sizes = [(stream.nbytes, stream.slots) for stream in previous.streams]
        own_sizes = [(stream.nbytes, stream.slots) for stream in streams]
        if sizes != own_sizes:
            difference = f"streams of (nbytes, slots) {own_sizes}, the one before it {sizes}"
        elif before != schema:
            difference = f"a schema {schema[:60]!r}, the one before it {before[:60]!r}"
        else:
            return
        raise SchemaDiffers(
            f"{self._spec.name}: the sender has {difference}. A replaced sender sends what its "
            "predecessor did; start a new run for another config."
        )

    def pin(self, device: torch.device) -> None:
        if device.type == "cuda" and self._pinned is None:
            self._pinned = PinnedMemory(self._memory, device, f"{self._spec.name}: packets are")

    def try_reserve(self, stream: int) -> PacketSlot | None:
        if self._closed:
            raise self._closed_here()
        if self._words[RECEIVER_CLOSED]:
            raise self._ended_there()
        state = self._streams[stream]
        if not state.free:
            if not state.collect(self._words):
                return None
            self._fence()  # what the receiver has read, it has read before we write
        slot = state.free.pop()
        slot.reserved = True
        return slot

    def _wait_for_room(self, stream: int, timeout_s: float) -> None:
        state, words = self._streams[stream], self._words
        self._my_doorbell.wait(
            lambda: state.collect(words) or words[RECEIVER_CLOSED], timedelta(seconds=timeout_s)
        )

    def _peer_text(self) -> str:
        return peer_text(self._words, RECEIVER, self._spec.target)

    def send(
        self, slot: PacketSlot, nbytes: int, *, sequence: int, step: int, policy_version: int
    ) -> None:
        if self._closed:
            raise self._closed_here()
        state, place = self._streams[slot.stream], slot.place
        places = state.places
        slot.take(nbytes, places.nbytes)
        if self._pinned is not None:
            self._pinned.wait()
        words, number = self._words, state.sent
        header = PacketHeader(
            slot.stream, self.incarnation, number, sequence, step,
            policy_version=policy_version, nbytes=nbytes,
        )  # fmt: skip
        state.headers[place][:] = self._origin.pack(header)
        state.sent = state.held[place] = number + 1
        state.busy.append(slot)
        words[places.held + place] = number + 1
        words[places.order + number % places.slots] = place
        self._fence()
        words[places.sent] = number + 1
        self._doorbell.ring()

    def under_way(self, stream: int) -> int:
        if self._closed:
            raise self._closed_here()
        state = self._streams[stream]
        state.collect(self._words)
        return len(state.busy)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fence()
            self._words[SENDER_CLOSED] = 1
            self._doorbell.ring()
            if self._pinned is not None:
                self._pinned.close()


class _ReceivedStream:
    """One stream as the receiver knows it."""

    def __init__(
        self, words: memoryview, places: RingStream, fence: Fence, memory: memoryview
    ) -> None:
        self.places = places
        self.next = words[places.sent]  # the number that is received next
        fence()
        unreleased = []
        for place in range(places.slots):
            held = words[places.held + place]
            if held <= self.next and held != words[places.freed + place]:
                unreleased.append((held - 1, place))
        self.again = collections.deque(sorted(unreleased))  # (number, place) given once more
        self.headers, self.whole = _slots(memory, places)
        self.views = list(self.whole)  # of each slot, as long as its last packet
        self.lengths = [places.nbytes] * places.slots  # the lengths of the views


class RingReceiver(Receiver):
    """See protocol.Receiver. `memory` of a packet is shared memory, where the sender wrote it."""

    _spec: RingSpec

    def __init__(self, spec: RingSpec, timeout: timedelta) -> None:
        self.source = spec.source
        self._spec, self._timeout = spec, timeout
        self._fence = Fence()
        memory = spec.memfd.map(0, CONTROL_BYTES)
        self._words = words_of(memory)
        if self._words[RECEIVER_CLOSED]:
            raise _closed_error(spec.name, "receiver")
        _claim(self._words, RECEIVER, spec.name, "receiver")
        self.doorbell: Doorbell = spec.doorbell.open()
        self._senders_doorbell = Doorbell(memory[SENDER_DOORBELL:])
        self._streams: list[_ReceivedStream] = []
        self._turn = 0  # the stream that is looked at first
        self._device: torch.device | None = None  # that packets are copied to, if it is a GPU
        self._pinned: PinnedMemory | None = None

    def pin(self, device: torch.device) -> None:
        if device.type == "cuda":
            self._device = device
            self._pin()

    def _pin(self) -> None:
        """Pins as soon as both the device and the memory are known."""
        if self._device is not None and self._schema is not None and self._pinned is None:
            purpose = f"{self._spec.name}: packets are"
            self._pinned = PinnedMemory(self._memory, self._device, purpose)

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
        schema, layout = read_layout(memory, words)
        populate(memory)
        for places in layout.streams:
            self._streams.append(_ReceivedStream(words, places, self._fence, memory))
        self._origin = HeaderCodec(self._spec.name, self._spec.link, zlib.crc32(schema))
        self._capacities = [places.nbytes for places in layout.streams]
        self._words, self._schema, self._memory = words, schema, memory
        self._pin()

    def sender_lives(self) -> bool:
        """Tells whether the sender's process runs."""
        return is_alive(self._words[SENDER], self._words[SENDER + 1])

    def _peer_text(self) -> str:
        return peer_text(self._words, SENDER, self.source)

    def ready(self) -> bool:
        if self._closed:
            raise self._closed_here()
        if not self.connected():
            return False
        words = self._words
        for stream in self._streams:
            if stream.again or words[stream.places.sent] > stream.next:
                return True
        return bool(words[SENDER_CLOSED])

    def poll(self) -> Packet | None:
        if self._closed:
            raise self._closed_here()
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
                return self._take(index, stream, count, words[places.order + count % places.slots])
        if closed:
            raise self._ended_there()
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

    def release(self, packet: Packet) -> None:
        if self._closed:
            raise self._closed_here()
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
