"""Puts the packets of one agent together to segments, in order, each settled once.

How it is known that a segment will never be whole: a stream keeps its order, so when it gave a
packet of a later segment, packets that an earlier one still misses there will not come. The agent
gave that segment up, or a trainer that is gone had released a part of it. And nothing more comes of
an agent's process once its successor was heard of and a poll after that found nothing: what it had
not sent of its last segment does not exist. Such a segment holds slots until then. As long as the
links have room for a batch and one segment more each, its agent can send what shows it to be lost.
"""

from __future__ import annotations

import bisect
import enum
import operator
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.errors import CorruptPacket, LinkEnded
from gmi_drl.comm.transports import Packet, Receiver

from . import lz4_blocks
from .compressor import view
from .migrator import SegmentId
from .schema import Block, Schema

_DROPPED_KEPT: Final = 64

Key = tuple[int, int]  # (incarnation, sequence): grows along a link


class SegmentStatus(enum.Enum):
    """The status of a segment: the last three are final."""

    OPEN = enum.auto()  # packets are missing
    READY = enum.auto()  # whole
    TAKEN = enum.auto()  # in a batch
    TRAINED = enum.auto()
    STALE = enum.auto()
    INCOMPLETE = enum.auto()


class Segment:
    """One segment and its packets, whose slots it holds until it is settled."""

    __slots__ = ("id", "key", "left", "packets", "source", "status", "total")

    def __init__(self, source: AgentLink, id_: SegmentId, left: Sequence[int]) -> None:
        self.source = source
        self.id = id_
        self.key = id_.incarnation, id_.sequence
        self.left = list(left)  # packets to come, by stream
        self.total = sum(left)
        self.packets: list[Packet] = []
        self.status = SegmentStatus.OPEN

    @property
    def schema(self) -> Schema:
        """Returns the schema of its agent."""
        return self.source.schema

    def blocks(self, packet: Packet) -> Sequence[tuple[Block, Tensor]]:
        """Returns the channels in one of its packets: views, or newly decompressed.

        CorruptPacket if they cannot be: the segment is settled as incomplete.
        """
        try:
            return self.source.blocks(packet)
        except CorruptPacket:
            self.settle(SegmentStatus.INCOMPLETE)
            raise

    def settle(self, status: SegmentStatus) -> None:
        """Gives its slots back to the sender."""
        self.status = status
        for packet in self.packets:
            self.source.receiver.release(packet)
        self.packets.clear()
        self.source.settled(self, status)


@dataclass
class Watermark:
    """The segment of an agent up to which all are settled, and what became of them."""

    incarnation: int = -1
    sequence: int = -1
    trained: int = 0
    stale: int = 0
    incomplete: int = 0
    missing: int = 0

    @property
    def key(self) -> Key:
        """Returns the key of the last segment."""
        return self.incarnation, self.sequence

    def add(self, key: Key, status: SegmentStatus) -> None:
        """Counts the next segment as settled."""
        self.incarnation, self.sequence = max(self.key, key)
        self.trained += status is SegmentStatus.TRAINED
        self.stale += status is SegmentStatus.STALE
        self.incomplete += status is SegmentStatus.INCOMPLETE

    def as_tuple(self) -> tuple[int, ...]:
        """Returns plain numbers, for checkpoints."""
        return astuple(self)


class AgentLink:
    """One agent's link, at the trainer's end."""

    def __init__(self, gmi_id: int, receiver: Receiver, watermark: Watermark) -> None:
        self.gmi_id, self.receiver = gmi_id, receiver
        self.name = receiver.source
        self.watermark = watermark
        self.schema: Schema  # once connected
        self.connected = self.ended = False
        self.received = self.repeated = self.packets = self.nbytes = 0
        self.trained, self.stale = watermark.trained, watermark.stale
        self.incomplete = watermark.incomplete
        self._resumed = watermark.key
        self._repeats: set[Key] = set()
        self._last = watermark.key  # the newest that was seen
        self._gaps: set[Key] = set()  # missing ones
        self._dropped: deque[Key] = deque(maxlen=_DROPPED_KEPT)
        self._open: dict[Key, Segment] = {}
        self._order: list[Segment] = []  # by key, from the first that is not settled on
        self._views: dict[tuple[int, int, int], list[tuple[Block, Tensor]]] = {}

    def connect(self) -> bool:
        """Tells whether the agent is there; never waits."""
        if not self.connected and self.receiver.connected():
            self.schema = Schema.from_bytes(self.receiver.schema, self.name)
            self._layouts = self.schema.layouts
            self._newest = [self.watermark.key] * len(self._layouts)
            self.connected = True
        return self.connected

    def drain(self, ready: list[Segment]) -> None:
        """Takes all packets that are there; appends the segments that are whole with them.

        CorruptPacket when one was refused; call it again to go on behind it.
        """
        if self.ended:
            return
        while True:
            try:
                packet = self.receiver.poll()
            except LinkEnded:
                self.ended, packet = True, None
            if packet is None:
                break
            segment = self._take(packet)
            if segment is not None:
                ready.append(segment)
        for segment in [s for key, s in self._open.items() if self.ended or key < self._last]:
            if self._is_lost(segment):
                self._dropped.append(segment.key)
                del self._open[segment.key]
                segment.settle(SegmentStatus.INCOMPLETE)

    def blocks(self, packet: Packet) -> Sequence[tuple[Block, Tensor]]:
        """Returns the channels in a packet. Views are made once for each slot."""
        header, memory = packet.header, packet.memory
        stream = header.stream
        is_last = header.step + self.schema.grouping.streams[stream].rows == self.schema.steps
        layout = self._layouts[stream][is_last]
        key = stream, packet.place, is_last
        views = self._views.get(key)
        if views is None or not views or views[0][1].data_ptr() != memory.data_ptr():
            plain = [block for block in layout.blocks if not block.compressed]
            views = self._views[key] = [(block, view(memory, block)) for block in plain]
        packed = [block for block in layout.blocks if block.compressed]
        if not packed:
            return views
        try:
            arrays: list[Any] = lz4_blocks.unpack(
                memory.numpy(), layout.fixed_bytes, [block.nbytes for block in packed]
            )
        except ValueError as error:
            raise CorruptPacket(self.name, "payload", str(error), "LZ4 blocks") from error
        pairs = zip(packed, arrays, strict=True)
        return views + [(b, torch.from_numpy(a).view(b.shape)) for b, a in pairs]

    def settled(self, segment: Segment, status: SegmentStatus) -> None:
        """Counts a segment; the mark moves over all that are settled from the front on."""
        if status is SegmentStatus.TRAINED:
            self.trained += 1
        elif status is SegmentStatus.STALE:
            self.stale += 1
        else:
            self.incomplete += 1
        while self._order and self._order[0].status.value >= SegmentStatus.TRAINED.value:
            oldest = self._order.pop(0)
            self.watermark.add(oldest.key, oldest.status)
        if self._gaps:
            passed = {key for key in self._gaps if key < self.watermark.key}
            self._gaps -= passed
            self.watermark.missing += len(passed)

    def watermark_with(self, also: Collection[Segment]) -> Watermark:
        """Returns the watermark as it will be once `also` are trained."""
        mark = Watermark(*self.watermark.as_tuple())
        for segment in self._order:
            if segment in also:
                mark.add(segment.key, SegmentStatus.TRAINED)
            elif segment.status.value >= SegmentStatus.TRAINED.value:
                mark.add(segment.key, segment.status)
            else:
                break
        mark.missing += sum(key < mark.key for key in self._gaps)
        return mark

    @property
    def missing(self) -> int:
        """Counts the segments of which nothing came."""
        return self.watermark.missing + len(self._gaps)

    @property
    def under_way(self) -> int:
        """Counts the segments here that are not settled."""
        return sum(s.status.value < SegmentStatus.TRAINED.value for s in self._order)

    def _take(self, packet: Packet) -> Segment | None:
        """Adds a packet to its segment; returns the segment if it is whole now."""
        header = packet.header
        self.packets += 1
        self.nbytes += header.nbytes
        key = header.incarnation, header.sequence
        if key > self._newest[header.stream]:
            self._newest[header.stream] = key
        segment = self._open.get(key)
        if segment is None:
            if key <= self._resumed:
                if key not in self._repeats:
                    self._repeats.add(key)
                    self.repeated += 1
                self.receiver.release(packet)
                return None
            if key in self._dropped:  # found incomplete, and counted
                self.receiver.release(packet)
                return None
            segment = self._begin(key, header.policy_version)
        if not self._fits(packet):
            self.receiver.release(packet)
            raise CorruptPacket(
                self.name, "step or nbytes", f"{header.step}, {header.nbytes}",
                f"those of stream {header.stream} of the schema",
            )  # fmt: skip
        segment.packets.append(packet)
        segment.left[header.stream] -= 1
        segment.total -= 1
        if segment.total:
            return None
        del self._open[key]
        segment.status = SegmentStatus.READY
        self.received += 1
        return segment

    def _begin(self, key: Key, policy_version: int) -> Segment:
        incarnation, sequence = key
        newest = self._last
        if key > newest:
            self._last = key
            first = newest[1] + 1 if incarnation == newest[0] else 0
            self._gaps.update((incarnation, n) for n in range(first, sequence))
        else:  # a trainer that is gone has released another part of this segment
            self._gaps.discard(key)
        id_ = SegmentId(self.gmi_id, incarnation, sequence, policy_version)
        segment = self._open[key] = Segment(self, id_, self.schema.packets)
        bisect.insort(self._order, segment, key=operator.attrgetter("key"))
        return segment

    def _is_lost(self, segment: Segment) -> bool:
        """Tells whether what it misses will not come; asked when nothing is there."""
        if self.ended or segment.id.incarnation < self._last[0]:
            return True
        pairs = zip(segment.left, self._newest, strict=True)
        return any(left and newest > segment.key for left, newest in pairs)

    def _fits(self, packet: Packet) -> bool:
        stream, step, nbytes = packet.header.stream, packet.header.step, packet.header.nbytes
        rows, steps = self.schema.grouping.streams[stream].rows, self.schema.steps
        if step % rows or not 0 <= step < steps:
            return False
        layout = self._layouts[stream][step + rows == steps]
        if layout.nbytes == layout.fixed_bytes:
            return nbytes == layout.nbytes
        return layout.fixed_bytes < nbytes <= layout.nbytes
