"""Schedules how leaders of hosts combine a vector: what each sends and receives, step by step.

Hosts are connected each with each. A sum is made once, in ascending order of hosts or between two
that meet, and passed on as it is: every host reads the same bits. There are three ways:

    one_step    each sends all of its vector to each
    two_steps   each sums its share of the vector and sends the sum to each: with 2 (n - 1) / n of
                the vector the fewest bytes that can be; a ring has as many, in 2 (n - 1) steps
    halving     recursive halving and doubling: as many bytes, to one host at a time, in
                2 log2(n) steps; the hosts beyond a power of two give what they have to a
                neighbour first, which sends them the sum at the end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Way: TypeAlias = Literal["one_step", "two_steps", "halving"]

GLOO_BYTES: Final = 1_000_000  # below it links were faster than gloo (bench/comm/hosts.py)
_SHORT_BYTES: Final = 64 << 10  # below it a step costs more than the bytes that it saves
_DIRECT: Final = 4  # hosts up to which each speaks to each, where nothing is measured
_ONE_STEP: Final = 8  # hosts up to which one step may be the fastest: it sends n / 2 as much


class Part(NamedTuple):
    """The elements [start, stop) of the vector, to or from the host `peer`."""

    peer: int
    start: int
    stop: int


class Transfer(NamedTuple):
    """Parts that travel at the same time. What is received is added to one's own, or replaces it.

    All hosts have as many of these, and the parts of one have the same number at both ends.

    Where it is added all of `receives` are the same stretch, in ascending order of hosts.
    """

    sends: tuple[Part, ...]
    receives: tuple[Part, ...]
    adds: bool


def ways(count: int) -> tuple[Way, ...]:
    """Returns the ways for `count` hosts of which each may be the fastest."""
    if count <= 2:
        return ("one_step",)
    within: tuple[Way, ...] = ("one_step", "two_steps") if count <= _ONE_STEP else ("two_steps",)
    return within if count == 3 else (*within, "halving")


def usual_way(count: int, nbytes: int) -> Way:
    """Returns the way for a vector of so many bytes where nothing is measured."""
    if count <= 2 or (count <= _DIRECT and nbytes <= _SHORT_BYTES):
        return "one_step"
    return "two_steps" if count <= _DIRECT else "halving"


def all_reduce(way: Way, rank: int, count: int, numel: int) -> list[Transfer]:
    """Returns the steps of host `rank` of `count` that turn each one's vector into the sum."""
    if count == 1:
        return []
    if way == "halving":
        return _halving_doubling(rank, count, numel)
    peers = [peer for peer in range(count) if peer != rank]
    if way == "one_step":
        parts = tuple(Part(peer, 0, numel) for peer in peers)
        return [Transfer(parts, parts, True)]
    bounds = [numel * i // count for i in range(count + 1)]
    sends = tuple(Part(peer, bounds[peer], bounds[peer + 1]) for peer in peers)
    receives = tuple(Part(peer, bounds[rank], bounds[rank + 1]) for peer in peers)
    return [Transfer(sends, receives, True), *all_gather(rank, bounds)]


def sent_bytes(way: Way, count: int, numel: int, itemsize: int) -> int:
    """Returns how many bytes that host sends in an all-reduce which sends the most."""
    # Who sends to each has as many parts as there are hosts, and the last one has the largest.
    ranks = range(count) if way == "halving" else [count - 1]
    schedules = (all_reduce(way, rank, count, numel) for rank in ranks)
    return itemsize * max(sum(p.stop - p.start for t in s for p in t.sends) for s in schedules)


def all_gather(rank: int, bounds: Sequence[int]) -> list[Transfer]:
    """Returns the steps after which each has what host i had from bounds[i] to bounds[i + 1]."""
    peers = [peer for peer in range(len(bounds) - 1) if peer != rank]
    sends = tuple(Part(peer, bounds[rank], bounds[rank + 1]) for peer in peers)
    receives = tuple(Part(peer, bounds[peer], bounds[peer + 1]) for peer in peers)
    return [Transfer(sends, receives, False)] if peers else []


def broadcast(rank: int, count: int, source: int, numel: int) -> list[Transfer]:
    """Returns the steps after which each has the vector of host `source`."""
    if rank != source:
        return [Transfer((), (Part(source, 0, numel),), False)]
    sends = tuple(Part(peer, 0, numel) for peer in range(count) if peer != rank)
    return [Transfer(sends, (), False)]


def _halving_doubling(rank: int, count: int, numel: int) -> list[Transfer]:
    """Rabenseifner's all-reduce; see R. Thakur et al., Collective Communication in MPICH (2005)."""
    power = 1 << (count.bit_length() - 1)
    paired = 2 * (count - power)  # of the first so many, those with an even rank stand aside
    buddy, rest = (Part(rank ^ 1, 0, numel),), Transfer((), (), False)
    if rank < paired and rank % 2 == 0:
        between = 2 * (power.bit_length() - 1)
        return [Transfer(buddy, (), False), *[rest] * between, Transfer((), buddy, False)]
    folded = rank < paired
    position = rank // 2 if folded else rank - paired // 2
    start, stop = 0, numel
    halving, doubling = [], []
    distance = power // 2
    while distance:
        partner = position ^ distance
        peer = 2 * partner + 1 if partner < paired // 2 else partner + paired // 2
        middle = (start + stop) // 2
        kept, sent = (start, middle), (middle, stop)
        if position & distance:
            kept, sent = sent, kept
        kept_part, sent_part = (Part(peer, *kept),), (Part(peer, *sent),)
        halving.append(Transfer(sent_part, kept_part, True))
        doubling.append(Transfer(kept_part, sent_part, False))
        start, stop = kept
        distance //= 2
    # The others rest meanwhile: a step has the same number on all hosts.
    fold = [Transfer((), buddy, True) if folded else rest] if paired else []
    unfold = [Transfer(buddy, (), False) if folded else rest] if paired else []
    return [*fold, *halving, *reversed(doubling), *unfold]
