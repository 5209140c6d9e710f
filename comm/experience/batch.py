"""Makes batches of segments: views of slots where one segment is a batch, else stacked tensors.

T = steps of a segment, S = segments, N = environments of one, B = all environments, the sum of N.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gmi_drl.comm.shm.pinned import is_pinned

from .migrator import SegmentId
from .schema import Schema
from .segment import Segment


@dataclass(frozen=True)
class BatchSlice:
    """A minibatch: environments `start` to `stop` - 1 of a batch, all steps; views of it.

    Per-segment tensors are cut by the reader, who knows what they are.
    """

    columns: Mapping[str, Tensor]  # [T, stop - start, *shape]
    start: int
    stop: int


@dataclass(eq=False)
class ExperienceBatch:
    """Valid until `Batcher.done(batch)`, not to be written: it may lie in the slots of a link."""

    columns: Mapping[str, Tensor]  # {name: [T, B, *shape]}
    per_segment: Mapping[str, Tensor]  # {name: [S, *shape]}
    segments: tuple[SegmentId, ...]  # [S] in the order of the columns' environments
    num_env: tuple[int, ...]  # [S] N of each segment
    stale: tuple[SegmentId, ...]  # too old, and released since the batch before
    _parts: list[Segment] = field(repr=False)
    _buffers: BatchBuffers | None = field(repr=False)

    @property
    def versions(self) -> tuple[int, ...]:
        """Returns [S] the policy version that each segment was collected with."""
        return tuple(segment.policy_version for segment in self.segments)

    def slices(self, n: int) -> Iterator[BatchSlice]:
        """Yields `n` minibatches of B / n environments, in order; sizes differ by one at most."""
        total = sum(self.num_env)
        if not 1 <= n <= total:
            raise ValueError(
                f"{n} slices of a batch of {total} environments: 1 to {total} are possible. "
                "Use fewer minibatches."
            )
        for i in range(n):
            start, stop = total * i // n, total * (i + 1) // n
            parts = {name: c[:, start:stop] for name, c in self.columns.items()}
            yield BatchSlice(parts, start, stop)


class BatchBuffers:
    """Tensors where segments of fixed sizes are stacked, and views for each part: made once."""

    def __init__(self, schema: Schema, num_env: Sequence[int], device: torch.device) -> None:
        self.num_env = tuple(num_env)
        self.columns: dict[str, Tensor] = {}
        self.per_segment: dict[str, Tensor] = {}
        self._starts = [sum(num_env[:i]) for i in range(len(num_env))]
        self._parts: dict[tuple[str, int, int, int], Tensor] = {}
        for channel in schema.channels:
            dtype = getattr(torch, channel.dtype)
            if channel.per_segment:
                shape: tuple[int, ...] = (len(num_env), *channel.shape)
                self.per_segment[channel.name] = torch.zeros(shape, dtype=dtype, device=device)
            else:
                shape = (schema.steps, sum(num_env), *channel.shape)
                self.columns[channel.name] = torch.zeros(shape, dtype=dtype, device=device)

    def part(self, name: str, place: int, step: int, rows: int) -> Tensor:
        """Returns where `rows` steps from `step` on go, of segment `place`: [rows, N, *shape]."""
        key = name, place, step, rows
        target = self._parts.get(key)
        if target is None:
            start = self._starts[place]
            column = self.columns[name]
            target = column[step : step + rows, start : start + self.num_env[place]]
            self._parts[key] = target
        return target


class Collator:
    """Makes batches of segments. BatchBuffers come back by `free` and are used again."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._free: dict[tuple[int, ...], list[BatchBuffers]] = {}

    def batch(self, parts: list[Segment], stale: tuple[SegmentId, ...]) -> ExperienceBatch:
        """Makes a batch of the segments, in this order."""
        columns: dict[str, Tensor] = {}
        per_segment: dict[str, Tensor] = {}
        buffers: BatchBuffers | None = None
        if len(parts) == 1:
            for packet in parts[0].packets:
                for block, tensor in parts[0].blocks(packet):
                    whole = block.per_segment or block.shape[0] == parts[0].schema.steps
                    if whole and (self._device is None or tensor.device == self._device):
                        target = per_segment if block.per_segment else columns
                        target[block.name] = tensor[None] if block.per_segment else tensor
        channels = parts[0].schema.channels
        if len(columns) + len(per_segment) < len(channels):
            buffers = self._buffers(parts)
            for place, part in enumerate(parts):
                self._stack(buffers, place, part, columns.keys() | per_segment.keys())
            columns = buffers.columns | columns
            per_segment = buffers.per_segment | per_segment
        segments = tuple(part.id for part in parts)
        num_env = tuple(part.schema.num_env for part in parts)
        return ExperienceBatch(
            columns, per_segment, segments, num_env, stale, _parts=parts, _buffers=buffers
        )

    def free(self, buffers: BatchBuffers | None) -> None:
        """Takes back the buffers of a batch that is done."""
        if buffers is not None:
            self._free.setdefault(buffers.num_env, []).append(buffers)

    def _buffers(self, parts: Sequence[Segment]) -> BatchBuffers:
        num_env = tuple(part.schema.num_env for part in parts)
        if free := self._free.get(num_env):
            return free.pop()
        device = self._device or parts[0].packets[0].memory.device
        return BatchBuffers(parts[0].schema, num_env, device)

    def _stack(self, buffers: BatchBuffers, place: int, part: Segment, done: set[str]) -> None:
        for packet in part.packets:
            step = packet.header.step
            pinned = is_pinned(packet.memory)  # then its release waits (Receiver.pin)
            for block, tensor in part.blocks(packet):
                if block.name in done:
                    continue
                if block.per_segment:
                    buffers.per_segment[block.name][place].copy_(tensor, non_blocking=pinned)
                else:
                    target = buffers.part(block.name, place, step, block.shape[0])
                    target.copy_(tensor, non_blocking=pinned)
