"""The sending end of a ring is as ring.py describes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch

from gmi_drl.comm.errors import LinkClosed, LinkEnded, LinkError, LinkTimeout, SchemaDiffers
from gmi_drl.comm.shm.futex import Fence
from gmi_drl.comm.shm.pinned import PinnedMemory

from .doorbell import Doorbell
from .packet import HEADER_BYTES, HeaderCodec, PacketHeader, PacketSlot
from .protocol import LinkEnd, StreamSpec
from .ring import RingSpec, schema_crc
from .ring_layout import (
    CONTROL_BYTES,
    READY,
    RECEIVER,
    RECEIVER_CLOSED,
    SENDER,
    SENDER_CLOSED,
    SENDER_DOORBELL,
    SENDERS,
    RingLayout,
    RingStream,
    check_control,
    read_layout,
    write_layout,
)
from .shared import claim, peer_text, populate, reserve_pages, words_of


class _SentStream:
    """One stream as the sender knows it."""

    def __init__(self, words: memoryview, places: RingStream) -> None:
        self.places = places
        self.sent = words[places.sent]
        self.slots: list[PacketSlot] = []
        self.headers: list[memoryview] = []
        self.free: list[PacketSlot] = []
        self.busy: list[PacketSlot] = []  # sent, not known to be released
        self.held = [0] * places.slots

    def adopt(self, words: memoryview) -> None:
        """Takes over what a sender before left: what it had not sent is free again."""
        places = self.places
        for slot in self.slots:
            place = slot.place
            freed = words[places.freed + place]
            if words[places.held + place] > self.sent:
                words[places.held + place] = freed
            self.held[place] = words[places.held + place]
            (self.free if self.held[place] == freed else self.busy).append(slot)
        self.free.reverse()  # the first slot first

    def collect(self, words: memoryview) -> bool:
        """Finds slots that were released; whether any is free."""
        freed, held = self.places.freed, self.held
        busy: list[PacketSlot] = []
        for slot in self.busy:
            still = words[freed + slot.place] != held[slot.place]
            (busy if still else self.free).append(slot)
        self.busy = busy
        return bool(self.free)


class RingSender(LinkEnd):
    """See protocol.Sender. `memory` of a slot is shared memory, written once and not copied."""

    def __init__(
        self, spec: RingSpec, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta
    ) -> None:
        self._spec, self._timeout = spec, timeout
        self._closed = False
        self._fence = Fence()
        control = words_of(spec.memfd.map(0, CONTROL_BYTES))
        check_control(control, spec.link, spec.name)
        claim(control, SENDER, spec.name, "sender")
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
        self._origin = HeaderCodec(spec.name, spec.link, schema_crc(schema))
        self._doorbell = spec.doorbell.open()
        self._my_doorbell = Doorbell(memory[SENDER_DOORBELL:])
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._streams = []
        for index, places in enumerate(layout.streams):
            stream = _SentStream(words, places)
            for place in range(places.slots):
                start = places.slot(place)
                payload = whole[start + HEADER_BYTES : start + HEADER_BYTES + places.nbytes]
                stream.slots.append(PacketSlot(payload, index, place))
                stream.headers.append(memory[start : start + HEADER_BYTES])
            stream.adopt(words)
            self._streams.append(stream)
        self._fence()

    def _lay_out(
        self, control: memoryview, schema: bytes, streams: Sequence[StreamSpec]
    ) -> tuple[memoryview, RingLayout]:
        """Maps the whole file; writes what it holds unless a sender before has done so."""
        spec = self._spec
        layout = RingLayout(len(schema), streams)
        if control[SENDER_CLOSED]:
            raise LinkClosed(
                f"{spec.name}: its sender had closed it before its process ended. A link ends "
                "with that; make a new one."
            )
        if control[READY]:
            memory = spec.memfd.map()
            before, previous = read_layout(memory, words_of(memory), spec.name)
            self._check_same(before, previous, schema, streams)
            populate(memory)
            return memory, previous
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
        mine = [(stream.nbytes, stream.slots) for stream in streams]
        if sizes != mine:
            what = f"streams of (nbytes, slots) {mine}, the one before it {sizes}"
        elif before != schema:
            what = f"a schema {schema[:60]!r}, the one before it {before[:60]!r}"
        else:
            return
        raise SchemaDiffers(
            f"{self._spec.name}: the sender has {what}. A replaced sender sends what its "
            "predecessor did; start a new run for another config."
        )

    def pin(self, device: torch.device) -> None:
        if device.type == "cuda" and self._pinned is None:
            self._pinned = PinnedMemory(self._memory, device, f"{self._spec.name}: packets are")

    def reserve(self, stream: int, timeout: timedelta | None = None) -> PacketSlot:
        slot = self.try_reserve(stream)
        if slot is not None:
            return slot
        mine = self._streams[stream]
        if not mine.busy:
            raise LinkError(
                f"{self._spec.name}: all {mine.places.slots} slots of stream {stream} are reserved "
                "here. Send one first, or give the stream more."
            )
        words = self._words
        limit = self._timeout if timeout is None else timeout
        self._my_doorbell.wait(lambda: mine.collect(words) or words[RECEIVER_CLOSED], limit)
        slot = self.try_reserve(stream)
        if slot is None:
            who = self._spec.target
            raise LinkTimeout(
                f"{self._spec.name}: no room for {limit.total_seconds():g} s: {who} has released "
                f"none of the {len(mine.busy)} packets of stream {stream} that are under way; "
                f"{peer_text(words, RECEIVER, who)}",
                who,
            )
        return slot

    def try_reserve(self, stream: int) -> PacketSlot | None:
        if self._closed:
            raise LinkClosed(f"{self._spec.name} has been closed here")
        if self._words[RECEIVER_CLOSED]:
            raise LinkEnded(
                f"{self._spec.name}: {self._spec.target} has closed it and receives nothing more"
            )
        mine = self._streams[stream]
        if not mine.free:
            if not mine.collect(self._words):
                return None
            self._fence()  # what the receiver has read, it has read before we write
        slot = mine.free.pop()
        slot.reserved = True
        return slot

    def send(
        self, slot: PacketSlot, nbytes: int, *, sequence: int, step: int, policy_version: int
    ) -> None:
        if self._closed:
            raise LinkClosed(f"{self._spec.name} has been closed here")
        mine, place = self._streams[slot.stream], slot.place
        places = mine.places
        slot.take(nbytes, places.nbytes)
        if self._pinned is not None:
            self._pinned.wait()
        words, number = self._words, mine.sent
        mine.headers[place][:] = self._origin.pack(
            PacketHeader(
                slot.stream,
                self.incarnation,
                number,
                sequence,
                step,
                policy_version=policy_version,
                nbytes=nbytes,
            )
        )
        mine.sent = mine.held[place] = number + 1
        mine.busy.append(slot)
        words[places.held + place] = number + 1
        words[places.order + number % places.slots] = place
        self._fence()
        words[places.sent] = number + 1
        self._doorbell.ring()

    def under_way(self, stream: int) -> int:
        if self._closed:
            raise LinkClosed(f"{self._spec.name} has been closed here")
        mine = self._streams[stream]
        mine.collect(self._words)
        return len(mine.busy)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fence()
            self._words[SENDER_CLOSED] = 1
            self._doorbell.ring()
            if self._pinned is not None:
                self._pinned.close()
