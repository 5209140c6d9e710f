"""Joins the tensors of a channel until a transfer is worth making.

Rows are written where they will be read: each tensor is copied once, from the agent's into the
slot of the link. Views of a slot, one for each row of each channel, are made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.transports import Slot

from . import lz4_blocks
from .migrator import Migrator, SegmentId
from .schema import Block, Schema

_VIEWS_KEPT: Final = 64  # beyond a link's slots; then all are made anew


class _Views:
    """A slot's memory as channels: by row those of a step, and those of a segment."""

    __slots__ = ("memory", "once", "rows")

    def __init__(self, memory: Tensor, blocks: Sequence[Block], staged: Mapping[str, Tensor]):
        self.memory = memory
        self.rows: list[list[tuple[str, Tensor]]] = []
        self.once: list[tuple[str, Tensor]] = []
        for block in blocks:
            whole = staged[block.name] if block.compressed else view(memory, block)
            if block.per_segment:
                self.once.append((block.name, whole))
                continue
            self.rows = self.rows or [[] for _ in range(block.shape[0])]
            for row, part in zip(self.rows, whole, strict=True):
                row.append((block.name, part))


class _StreamWriter:
    """Fills the packets of one stream."""

    def __init__(self, schema: Schema, stream: int) -> None:
        self.stream = stream
        self.usual, self.last = schema.layouts[stream]
        self.row_count = schema.grouping.streams[stream].rows
        self.steps = schema.steps
        self.packed = [block for block in self.last.blocks if block.compressed]
        self._staged = {
            block.name: torch.zeros(block.shape, dtype=torch.uint8) for block in self.packed
        }
        self._views: dict[int, _Views] = {}
        self._keep = schema.streams()[stream].slots + _VIEWS_KEPT
        self.slot: Slot | None = None
        self.views: _Views | None = None
        self.now: list[tuple[str, Tensor]] = []  # where this step's tensors go
        self.raw_bytes = 0

    def step(self, migrator: Migrator, t: int) -> list[tuple[str, Tensor]]:
        """Where the tensors of step t go; reserves a slot where a packet begins."""
        row = t % self.row_count
        if row == 0 or self.views is None:
            self.begin(migrator)
        assert self.views is not None
        return self.views.rows[row] if self.views.rows else []

    def begin(self, migrator: Migrator) -> None:
        self.slot = slot = migrator.reserve(self.stream)
        key = slot.place
        views = self._views.get(key)
        if views is None or views.memory is not slot.memory:
            if self.packed and slot.memory.is_cuda:
                raise ValueError(
                    f"lz4 channel {self.packed[0].name!r}: this link's memory is on a GPU, LZ4 "
                    "compresses on the CPU. Take it out of experience.lz4."
                )
            if len(self._views) >= self._keep:
                self._views.clear()
            views = self._views[key] = _Views(slot.memory, self.last.blocks, self._staged)
        self.views = views

    def send(self, migrator: Migrator, t: int, policy_version: int) -> None:
        """Sends the packet whose last step is t."""
        slot = self.slot
        assert slot is not None
        last = t + 1 == self.steps
        layout = self.last if last else self.usual
        nbytes = layout.nbytes
        if self.packed:
            memory: Any = slot.memory.numpy()
            blocks = [block for block in layout.blocks if block.compressed]
            staged = [self._staged[block.name].numpy() for block in blocks]
            nbytes = lz4_blocks.pack(memory, layout.fixed_bytes, staged)
        migrator.send(slot, nbytes, t + 1 - self.row_count, policy_version)
        self.raw_bytes += layout.raw_bytes
        self.slot = self.views = None


class Compressor:
    """The streams of one agent. LZ4 is used for the channels that the schema names."""

    def __init__(self, schema: Schema, migrator: Migrator) -> None:
        self.schema, self.migrator = schema, migrator
        self._writers = [_StreamWriter(schema, s) for s in range(len(schema.grouping.streams))]
        self._waits = [bool(w.last.blocks != w.usual.blocks) for w in self._writers]
        self._once = {c.name: torch.Size(c.shape) for c in schema.channels if c.per_segment}

    @property
    def raw_bytes(self) -> int:
        """Bytes of the numbers in what was sent."""
        return sum(writer.raw_bytes for writer in self._writers)

    def put(self, t: int, tensors: Mapping[str, Tensor], policy_version: int) -> None:
        """Joins the tensors of step t, and sends the packets that are full with them.

        Waits for room where a packet begins.
        """
        last = t + 1 == self.schema.steps
        for writer, waits in zip(self._writers, self._waits, strict=True):
            for name, target in writer.step(self.migrator, t):
                target.copy_(tensors[name])
            if (t + 1) % writer.row_count == 0 and not (last and waits):
                writer.send(self.migrator, t, policy_version)

    def end(self, tensors: Mapping[str, Tensor], policy_version: int) -> SegmentId:
        """Adds the per-segment tensors and sends what waited for them."""
        for writer, waits in zip(self._writers, self._waits, strict=True):
            if waits:
                assert writer.views is not None
                for name, target in writer.views.once:
                    target.copy_(tensors[name])
                writer.send(self.migrator, self.schema.steps - 1, policy_version)
        return self.migrator.end(policy_version)

    def abandon(self) -> bool:
        """Gives the segment up; whether part of it was sent."""
        for writer in self._writers:
            writer.slot = writer.views = None
        return self.migrator.abandon()


def view(memory: Tensor, block: Block) -> Tensor:
    """A block that is not compressed, in the memory [nbytes] uint8 of its packet."""
    part = memory[block.offset : block.offset + block.nbytes]
    dtype: torch.dtype = getattr(torch, block.dtype)
    return part.view(dtype).view(block.shape)
