"""Counts what was sent and what became of it, at both ends (docs/experience.md: what adds up)."""

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
