"""Joins the tensors of a channel until a transfer is worth making.

Each tensor is copied once, into the slot of the link, by views of the slot that are made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from gmi_drl.comm.errors import ExperienceError
from gmi_drl.comm.shm.pinned import is_pinned
from gmi_drl.comm.transports import PacketSlot

from . import lz4_blocks
from .migrator import Migrator, SegmentId
from .schema import Block, PacketLayout, Schema

_VIEWS_KEPT: Final = 4096  # slots of a stream, over all links; above that all views are made anew


Target = tuple[str, Tensor, torch.Size, torch.dtype]  # a channel's name, and where it goes


class _Views:
    """The channels of a slot's memory: those of each step, by row, and those of the segment."""

    __slots__ = ("memory", "once", "pinned", "rows")

    def __init__(
        self, memory: Tensor, layout: PacketLayout, row_count: int, staged: Mapping[str, Tensor]
    ) -> None:
        self.memory = memory
        # Then the sender waits for the copies (Sender.pin); what is compressed is read before.
        self.pinned = not staged and is_pinned(memory)
        self.rows: list[list[Target]] = [[] for _ in range(row_count)]
        self.once: list[Target] = []
        for block in layout.blocks:
            tensor = staged[block.name] if block.compressed else view(memory, block)
            if block.per_segment:
                self.once.append((block.name, tensor, tensor.shape, tensor.dtype))
                continue
            for row, target in zip(self.rows, tensor, strict=True):
                row.append((block.name, target, target.shape, target.dtype))


class _StreamWriter:
    """Fills the packets of one stream."""

    def __init__(self, schema: Schema, stream: int) -> None:
        self.stream = stream
        self.usual, self.last = schema.layouts[stream]
        self.row_count = schema.grouping.streams[stream].rows
        self.steps = schema.steps
        self.waits = self.usual.blocks != self.last.blocks  # for per-segment channels, at the end
        self._packed = [block for block in self.last.blocks if block.compressed]
        self._staged = {
            block.name: torch.zeros(block.shape, dtype=torch.uint8) for block in self._packed
        }
        self._views: dict[int, _Views] = {}
        self._slot: PacketSlot | None = None
        self.rows: list[list[Target]] = []  # of the packet that is being filled
        self.once: list[Target] = []
        self.pinned = False

    def begin(self, migrator: Migrator) -> None:
        """Begins a packet; waits for room."""
        self._slot = slot = migrator.reserve(self.stream)
        key = slot.memory.data_ptr()
        views = self._views.get(key)
        if views is None:
            if self._packed and slot.memory.is_cuda:
                raise ValueError(
                    f"lz4 channel {self._packed[0].name!r}: this link's memory is on a GPU, LZ4 "
                    "compresses on the CPU. Take it out of experience.lz4."
                )
            if len(self._views) >= _VIEWS_KEPT:
                self._views.clear()
            views = _Views(slot.memory, self.last, self.row_count, self._staged)
            self._views[key] = views
        self.rows, self.once, self.pinned = views.rows, views.once, views.pinned

    def send(self, migrator: Migrator, t: int, policy_version: int) -> None:
        """Sends the packet whose last step is t."""
        slot = self._slot
        assert slot is not None
        is_last = t + 1 == self.steps
        layout = self.last if is_last else self.usual
        nbytes = layout.nbytes
        if self._packed:
            memory: Any = slot.memory.numpy()
            blocks = [block for block in layout.blocks if block.compressed]
            staged = [self._staged[block.name].numpy() for block in blocks]
            nbytes = lz4_blocks.pack(memory, layout.fixed_bytes, staged)
        migrator.send(slot, nbytes, t + 1 - self.row_count, policy_version)
        self._slot = None


class Compressor:
    """The streams of one agent. LZ4 is used for the channels that the schema names."""

    def __init__(self, schema: Schema, migrator: Migrator) -> None:
        self.schema, self.migrator = schema, migrator
        self._writers = [_StreamWriter(schema, s) for s in range(len(schema.grouping.streams))]
        self._names = [
            [c.name for c in schema.channels if c.per_segment is k] for k in (False, True)
        ]

    def put(self, t: int, tensors: Mapping[str, Tensor], policy_version: int) -> None:
        """Joins the tensors of step t, and sends the packets that are full with them.

        Waits for room where a packet begins.
        """
        if len(tensors) != len(self._names[0]):
            self._refuse(tensors, False)
        migrator, is_last = self.migrator, t + 1 == self.schema.steps
        for writer in self._writers:
            row = t % writer.row_count
            if row == 0:
                writer.begin(migrator)
            self._copy(tensors, writer.rows[row], False, writer.pinned)
            if row + 1 == writer.row_count and not (is_last and writer.waits):
                writer.send(migrator, t, policy_version)

    def end(self, tensors: Mapping[str, Tensor], policy_version: int) -> SegmentId:
        """Adds the per-segment tensors and sends what waited for them."""
        if len(tensors) != len(self._names[1]):
            self._refuse(tensors, True)
        for writer in self._writers:
            if writer.waits:
                self._copy(tensors, writer.once, True, writer.pinned)
                writer.send(self.migrator, self.schema.steps - 1, policy_version)
        return self.migrator.end(policy_version)

    def abandon(self) -> bool:
        """Gives the segment up; returns whether part of it was sent."""
        return self.migrator.abandon()

    def _copy(
        self, tensors: Mapping[str, Tensor], targets: Sequence[Target], per_segment: bool,
        pinned: bool,
    ) -> None:  # fmt: skip
        for name, target, shape, dtype in targets:
            tensor = tensors.get(name)
            if tensor is None:
                self._refuse(tensors, per_segment)
            if tensor.shape != shape or tensor.dtype != dtype:
                raise ExperienceError(
                    f"channel {name!r}: {tensor.dtype} {list(tensor.shape)} was put, the schema "
                    f"has {dtype} {list(shape)}. Convert it, or change the channel."
                )
            if tensor.requires_grad:  # the slot is no part of its graph
                tensor = tensor.detach()
            target.copy_(tensor, non_blocking=pinned)

    def _refuse(self, tensors: Mapping[str, Tensor], per_segment: bool) -> NoReturn:
        raise ExperienceError(
            f"channels {', '.join(tensors) or '(none)'} were put; those that have a tensor a "
            f"{'segment' if per_segment else 'step'} are "
            f"{', '.join(self._names[per_segment]) or '(none)'}. Put each of them, and no other."
        )


def view(memory: Tensor, block: Block) -> Tensor:
    """Returns a block that is not compressed, in the memory [nbytes] uint8 of its packet."""
    raw = memory[block.offset : block.offset + block.nbytes]
    dtype: torch.dtype = getattr(torch, block.dtype)
    return raw.view(dtype).view(block.shape)
