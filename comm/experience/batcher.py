"""Slices or stacks the agents' experience, with each trainer, to the size training wants.

A batch is views of slots where one segment is a batch, else stacked tensors. T = steps of a
segment, S = segments, N = environments of one, B = all environments, the sum of N.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import torch
from torch import Tensor

from gmi_drl.comm import transports
from gmi_drl.comm.errors import CorruptPacket, ExperienceError, LinkTimeout, SchemaError
from gmi_drl.comm.group.group import DEFAULT_TIMEOUT
from gmi_drl.comm.shm.pinned import is_pinned
from gmi_drl.comm.transports import Receiver

from .counts import BatchCounts
from .migrator import SegmentId
from .schema import Schema, check_same
from .segment import AgentLink, Segment, SegmentStatus, Watermark

_SLICE: Final = timedelta(milliseconds=50)  # how often a wait asks `stop`


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
            columns = {name: c[:, start:stop] for name, c in self.columns.items()}
            yield BatchSlice(columns, start, stop)


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
                    is_complete = block.per_segment or block.shape[0] == parts[0].schema.steps
                    if is_complete and (self._device is None or tensor.device == self._device):
                        target = per_segment if block.per_segment else columns
                        target[block.name] = tensor[None] if block.per_segment else tensor
        channels = parts[0].schema.channels
        if len(columns) + len(per_segment) < len(channels):
            buffers = self._buffers(parts)
            for index, segment in enumerate(parts):
                self._stack(buffers, index, segment, columns.keys() | per_segment.keys())
            columns = buffers.columns | columns
            per_segment = buffers.per_segment | per_segment
        segments = tuple(segment.id for segment in parts)
        num_env = tuple(segment.schema.num_env for segment in parts)
        return ExperienceBatch(
            columns, per_segment, segments, num_env, stale, _parts=parts, _buffers=buffers
        )

    def free(self, buffers: BatchBuffers | None) -> None:
        """Takes back the buffers of a batch that is done."""
        if buffers is not None:
            self._free.setdefault(buffers.num_env, []).append(buffers)

    def _buffers(self, parts: Sequence[Segment]) -> BatchBuffers:
        num_env = tuple(segment.schema.num_env for segment in parts)
        if free := self._free.get(num_env):
            return free.pop()
        device = self._device or parts[0].packets[0].memory.device
        return BatchBuffers(parts[0].schema, num_env, device)

    def _stack(self, buffers: BatchBuffers, index: int, segment: Segment, done: set[str]) -> None:
        for packet in segment.packets:
            step = packet.header.step
            pinned = is_pinned(packet.memory)  # then its release waits (Receiver.pin)
            for block, tensor in segment.blocks(packet):
                if block.name in done:
                    continue
                if block.per_segment:
                    buffers.per_segment[block.name][index].copy_(tensor, non_blocking=pinned)
                else:
                    target = buffers.part(block.name, index, step, block.shape[0])
                    target.copy_(tensor, non_blocking=pinned)


class Batcher:
    """The receivers of one trainer as one. Not for several threads at once.

    `receivers`: by the gmi_id of the agent. `batch_segments`: segments of a batch.
    `max_policy_lag`: how many versions behind the trainer's a segment may be; None for any.
    `timeout`: of each wait for a batch. `device`: where batches lie; None for where they arrive.

    Segments come in the order in which they were whole. Their slots stay taken until `done`, so
    that a trainer that is killed before it loses none: the process that replaces it is given them
    again. Together the links must have room for a batch, and one segment more each.
    """

    def __init__(
        self, receivers: Mapping[int, Receiver], batch_segments: int, max_policy_lag: int | None,
        timeout: timedelta = DEFAULT_TIMEOUT, *, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        if not receivers or batch_segments < 1:
            raise ValueError(
                f"{batch_segments} segments a batch from {len(receivers)} agents: both are 1 or "
                "more. Check experience.batch_segments and the layout."
            )
        self._sources = [AgentLink(gmi_id, r, Watermark()) for gmi_id, r in receivers.items()]
        self._batch_segments, self._max_lag = batch_segments, max_policy_lag
        self._timeout_s = timeout.total_seconds()
        self._collator = Collator(device)
        self._ready: list[Segment] = []
        self._stale: list[SegmentId] = []
        self._checked = self._begun = False
        self._waited_s = 0.0

    def next(
        self, policy_version: int, stop: Callable[[], bool] | None = None
    ) -> ExperienceBatch | None:
        """Returns the next batch; None when `stop` says so or all agents have closed their links.

        `policy_version`: the trainer's, against which the age of segments is judged. Waits for
        whole segments; LinkTimeout names the agents that sent none. SchemaError if two agents do
        not send the same, CorruptPacket if a packet was refused; the next call goes on behind it.
        """
        self._begun = True
        self._drain(policy_version)
        if len(self._ready) < self._batch_segments:
            start_s = time.monotonic()
            try:
                if not self._wait(policy_version, start_s + self._timeout_s, stop):
                    return None
            finally:
                self._waited_s += time.monotonic() - start_s
        segments = self._ready[: self._batch_segments]
        try:
            batch = self._collator.batch(segments, tuple(self._stale))
        except CorruptPacket:
            self._ready = [s for s in self._ready if s.status is SegmentStatus.READY]
            raise
        self._ready = self._ready[self._batch_segments :]
        self._stale.clear()
        for segment in segments:
            segment.status = SegmentStatus.TAKEN
        return batch

    def done(self, batch: ExperienceBatch) -> None:
        """Gives back the slots of a batch that was trained on; its tensors are void."""
        if any(segment.status is not SegmentStatus.TAKEN for segment in batch._parts):
            raise ExperienceError(
                "done of a batch that was done before: each one is trained on once. Take the next."
            )
        for segment in batch._parts:
            segment.settle(SegmentStatus.TRAINED)
        self._collator.free(batch._buffers)
        batch._buffers = None

    def trained(self, including: ExperienceBatch | None = None) -> dict[int, tuple[int, ...]]:
        """Returns how far each agent's segments are settled, for `resume`; plain numbers.

        By gmi_id: incarnation and sequence of the last one, and the counts up to it, which belong
        in the same snapshot as the parameters. Taken between the training on a batch and its
        `done`, `including` it, a snapshot lets a killed trainer lose and repeat nothing.
        """
        extra = frozenset(including._parts) if including is not None else frozenset()
        return {source.gmi_id: source.watermark_with(extra).as_tuple() for source in self._sources}

    def resume(self, trained: Mapping[int, Sequence[int]]) -> None:
        """Goes on behind what `trained` gave; before the first `next`.

        Segments up to there that come again are counted as repeated, and not trained on.
        """
        if self._begun:
            raise ExperienceError("resume after next: say what was trained on before any batch.")
        self._sources = [
            AgentLink(s.gmi_id, s.receiver, Watermark(*trained[s.gmi_id]))
            if s.gmi_id in trained
            else s
            for s in self._sources
        ]

    @property
    def refused(self) -> int:
        """Returns how many connections of strangers its receivers have refused."""
        return sum(source.receiver.refused for source in self._sources)

    def counts(self, gmi_id: int | None = None) -> BatchCounts:
        """Counts what came of the segments of one agent, or of all."""
        sources = [s for s in self._sources if gmi_id is None or s.gmi_id == gmi_id]
        names = [f.name for f in dataclasses.fields(BatchCounts) if f.name != "waited_s"]
        sums = {name: sum(getattr(source, name) for source in sources) for name in names}
        return BatchCounts(**sums, waited_s=self._waited_s)

    def _wait(self, version: int, deadline_s: float, stop: Callable[[], bool] | None) -> bool:
        """Tells whether there are enough segments."""
        while len(self._ready) < self._batch_segments:
            if stop is not None and stop():
                return False
            waiting = [source for source in self._sources if not source.ended]
            if not waiting:
                return False
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._raise_timeout(waiting)
            receivers = [source.receiver for source in waiting]
            transports.wait_any(receivers, min(_SLICE, timedelta(seconds=left_s)))
            self._drain(version)
        return True

    def _drain(self, version: int) -> None:
        if not self._checked:
            self._check()
        for source in self._sources:
            if source.connected:
                source.drain(self._ready)
        if self._max_lag is None:
            return
        oldest = version - self._max_lag
        if any(segment.id.policy_version < oldest for segment in self._ready):
            for segment in self._ready:
                if segment.id.policy_version < oldest:
                    segment.settle(SegmentStatus.STALE)
                    self._stale.append(segment.id)
            self._ready = [s for s in self._ready if s.status is SegmentStatus.READY]

    def _check(self) -> None:
        """Looks for agents that have come, and whether they send what belongs together."""
        connected = [source for source in self._sources if source.connect()]
        if connected:
            check_same([(source.name, source.schema) for source in connected])
        if len(connected) == len(self._sources):
            room = sum(source.schema.capacity - 1 for source in connected)
            if room < self._batch_segments:
                raise SchemaError(
                    f"{self._batch_segments} segments a batch, but the {len(connected)} links to "
                    f"this trainer hold {room} at most, beside one more each; a batch must fit. "
                    "Raise experience.capacity, or lower experience.batch_segments."
                )
            self._checked = True

    def _raise_timeout(self, waiting: Sequence[AgentLink]) -> None:
        senders = {segment.source for segment in self._ready}
        late = [source.name for source in waiting if source not in senders] or [
            source.name for source in waiting
        ]
        raise LinkTimeout(
            f"{len(self._ready)} of {self._batch_segments} segments within {self._timeout_s:g} s: "
            f"nothing whole came from {', '.join(late)}. Look at its log; raise comm.timeout_s if "
            "its segments take longer.",
            ", ".join(late),
        )
