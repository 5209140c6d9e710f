"""Sorts experience into channels, with each agent, as it is collected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from gmi_drl.comm.errors import ExperienceError

from .compressor import Compressor
from .counts import DispatchCounts
from .migrator import SegmentId
from .schema import Schema

_BROKEN: Final = -1


class Dispatcher:
    """`begin`, `put` for each step, `end`: one segment. Not for several threads at once.

    `put` and `end` copy what they are given, and wait while the trainers have no room: LinkTimeout
    names them, LinkEnded says that they have closed, WaitStopped that `stop` (see Migrator) did.
    After an error `begin` the next segment, which gives up what was not sent.
    """

    def __init__(self, schema: Schema, compressor: Compressor) -> None:
        self.schema, self._compressor = schema, compressor
        self._next: int | None = None  # the step to put; None between segments
        self._version = 0
        self._sent = self._lost = self._unsent = 0

    def begin(self, policy_version: int) -> None:
        """Begins a segment, all of it collected with this version of the policy.

        One that was begun and not ended is given up, and counted as lost, or as unsent when no
        packet of it was sent.
        """
        if self._next is not None:
            if self._compressor.abandon():
                self._lost += 1
            else:
                self._unsent += 1
        self._next, self._version = 0, policy_version

    def put(self, t: int, tensors: Mapping[str, Tensor]) -> None:
        """Puts step t of the segment, 0 to T - 1 in order: {channel: [N, *shape]}."""
        if t != self._next or t >= self.schema.steps:
            is_begun = self._next is not None and self._next >= 0
            expected = f"step {self._next} is next" if is_begun else "begin() first"
            raise ExperienceError(
                f"put of step {t}: {expected}; a segment has steps 0 to {self.schema.steps - 1}, "
                "in order. Then call end()."
            )
        self._next = _BROKEN  # unless this ends well
        self._compressor.put(t, tensors, self._version)
        self._next = t + 1

    def end(self, tensors: Mapping[str, Tensor] | None = None) -> SegmentId:
        """Ends a whole segment with {per-segment channel: [*shape]}; returns its id."""
        if self._next != self.schema.steps:
            raise ExperienceError(
                f"end of a segment of which not all {self.schema.steps} steps were put. Put "
                "them all, or begin() anew to give it up."
            )
        self._next = _BROKEN
        segment = self._compressor.end(tensors or {}, self._version)
        self._next = None
        self._sent += 1
        return segment

    def counts(self) -> DispatchCounts:
        """Counts what this process has sent so far."""
        migrator = self._compressor.migrator
        return DispatchCounts(
            sent=self._sent, lost=self._lost, unsent=self._unsent, packets=migrator.packets,
            nbytes=migrator.nbytes, waited_s=migrator.waited_s,
        )  # fmt: skip
