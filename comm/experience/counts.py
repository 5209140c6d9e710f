"""Counts what was sent and what became of it, at both ends.

Of one link, over all the processes that were its ends:

    sent + lost = trained + stale + incomplete + missing + under way

as soon as what was lost has been seen; a segment that was being sent when its agent was killed
counts as lost. A trainer that is killed takes its counts since its last snapshot with it: what it
had released as too old or not whole is then missing where a later segment of the same agent's
process shows the gap, and else in no count.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DispatchCounts:
    """Counts of an agent's process since it began: segments, unless it says otherwise."""

    sent: int = 0  # whole
    lost: int = 0  # given up when part of them was sent: the other end sees them as incomplete
    unsent: int = 0  # given up before any of it was sent: the other end never hears of them
    packets: int = 0
    nbytes: int = 0  # as sent
    waited_s: float = 0.0  # for room: back-pressure


@dataclass(frozen=True)
class BatchCounts:
    """Counts of a trainer since it, or what it was resumed from, began: segments mostly."""

    received: int = 0  # whole, and not before
    trained: int = 0
    stale: int = 0  # too old to be trained on
    incomplete: int = 0  # of which a part came and the rest never will
    missing: int = 0  # of which nothing came, though a later one did
    repeated: int = 0  # given again, though they were settled before: not trained on again
    under_way: int = 0  # here, whole or in part, and not settled; those in the link come on top
    packets: int = 0
    nbytes: int = 0
    waited_s: float = 0.0  # for segments
