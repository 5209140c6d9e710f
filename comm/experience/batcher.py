"""Slices or stacks the agents' experience, with each trainer, to the size training wants."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import torch

from gmi_drl.comm import transports
from gmi_drl.comm.errors import CorruptPacket, ExperienceError, LinkTimeout, SchemaError
from gmi_drl.comm.transports import Receiver

from .batch import Collator, ExperienceBatch
from .counts import BatchCounts
from .migrator import SegmentId
from .schema import check_same
from .segment import AgentLink, Segment, SegmentStatus, Watermark

_SLICE: Final = timedelta(milliseconds=50)  # how often a wait asks `stop`
_TIMEOUT: Final = timedelta(seconds=30)


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
        self,
        receivers: Mapping[int, Receiver],
        batch_segments: int,
        max_policy_lag: int | None,
        timeout: timedelta = _TIMEOUT,
        *,
        device: torch.device | None = None,
    ) -> None:
        if not receivers or batch_segments < 1:
            raise ValueError(
                f"{batch_segments} segments a batch from {len(receivers)} agents: both are 1 or "
                "more. Check experience.batch_segments and the layout."
            )
        self._sources = [AgentLink(gmi_id, r, Watermark()) for gmi_id, r in receivers.items()]
        self._batch_segments, self._max_lag = batch_segments, max_policy_lag
        self._timeout_s = timeout.total_seconds()
        self._stacker = Collator(device)
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
        parts = self._ready[: self._batch_segments]
        try:
            batch = self._stacker.batch(parts, tuple(self._stale))
        except CorruptPacket:
            self._ready = [s for s in self._ready if s.status is SegmentStatus.READY]
            raise
        self._ready = self._ready[self._batch_segments :]
        self._stale.clear()
        for part in parts:
            part.status = SegmentStatus.TAKEN
        return batch

    def done(self, batch: ExperienceBatch) -> None:
        """Gives back the slots of a batch that was trained on; its tensors are void."""
        if any(part.status is not SegmentStatus.TAKEN for part in batch._parts):
            raise ExperienceError(
                "done of a batch that was done before: each one is trained on once. Take the next."
            )
        for part in batch._parts:
            part.settle(SegmentStatus.TRAINED)
        self._stacker.free(batch._buffers)
        batch._buffers = None

    def trained(self, including: ExperienceBatch | None = None) -> dict[int, tuple[int, ...]]:
        """Returns how far each agent's segments are settled, for `resume`; plain numbers.

        By gmi_id: incarnation and sequence of the last one, and the counts up to it, which belong
        in the same snapshot as the parameters. Taken between the training on a batch and its
        `done`, `including` it, a snapshot lets a killed trainer lose and repeat nothing.
        """
        also = frozenset(including._parts) if including is not None else frozenset()
        return {source.gmi_id: source.watermark_with(also).as_tuple() for source in self._sources}

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
                self._time_out(waiting)
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
        here = [source for source in self._sources if source.connect()]
        if here:
            check_same([(source.name, source.schema) for source in here])
        if len(here) == len(self._sources):
            room = sum(source.schema.capacity - 1 for source in here)
            if room < self._batch_segments:
                raise SchemaError(
                    f"{self._batch_segments} segments a batch, but the {len(here)} links to this "
                    f"trainer hold {room} at most, beside one more each; a batch must fit. Raise "
                    "experience.capacity, or lower experience.batch_segments."
                )
            self._checked = True

    def _time_out(self, waiting: Sequence[AgentLink]) -> None:
        have = {segment.source for segment in self._ready}
        late = [source.name for source in waiting if source not in have] or [
            source.name for source in waiting
        ]
        raise LinkTimeout(
            f"{len(self._ready)} of {self._batch_segments} segments within {self._timeout_s:g} s: "
            f"nothing whole came from {', '.join(late)}. Look at its log; raise comm.timeout_s if "
            "its segments take longer.",
            ", ".join(late),
        )
