"""Sums vectors in shared memory, block by block, in float32 or over the bfloat16 wire format.

With bfloat16 a number is rounded to 8 significant bits when it leaves its rank, and a partial sum
when it leaves its ring or device (docs/reduction.md: the error). The rounding does not depend on
the reader: all ranks read the same bits. float64 buckets travel as they are.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gmi_drl.runtime.store.alignment import round_up

if TYPE_CHECKING:
    from .bucket import SharedBucket
    from .rings import Ring


_PAGE: Final = mmap.PAGESIZE
_LINE: Final = 64
_SKEW: Final = 4 * _LINE  # slots at the same offset in a page would be mistaken for each other
_BLOCK_BYTES: Final = 128 << 10  # of one slot, so that a block's sum stays in the cache

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class SliceSum:
    """The sum of `addends` in ascending order over [start, stop), written to `out`."""

    def __init__(self, addends: Sequence[Array], out: Array, start: int, stop: int) -> None:
        self._blocks = []
        for a, b in cache_blocks(start, stop, out.itemsize):
            first, *rest = (addend[a:b] for addend in addends)
            self._blocks.append((out[a:b], first, rest))

    def __call__(self, share: Any = None) -> None:
        """Makes the sum; times `share` if one is given."""
        add = np.add
        for out, first, rest in self._blocks:
            if rest:
                add(first, rest[0], out)
                for addend in rest[1:]:
                    add(out, addend, out)
            else:
                np.copyto(out, first)
            if share is not None:
                np.multiply(out, share, out)


def slot_bytes(numel: int, itemsize: int) -> int:
    """Returns the bytes from one slot of a bucket to the next: whole pages, and a little."""
    return round_up(numel * itemsize, _PAGE) + _SKEW


def rank_slice(numel: int, itemsize: int, rank: int, size: int) -> tuple[int, int]:
    """Returns the stretch [start, stop) that `rank` sums: an equal share in whole cache lines."""
    line = _LINE // itemsize
    share = round_up(-(-numel // size), line)
    return min(rank * share, numel), min((rank + 1) * share, numel)


def cache_blocks(start: int, stop: int, itemsize: int) -> list[tuple[int, int]]:
    """Cuts [start, stop) into pieces that fit into a cache."""
    step = _BLOCK_BYTES // itemsize
    return [(a, min(a + step, stop)) for a in range(start, stop, step)]


class Bf16Sum:
    """A SliceSum of bfloat16 addends [numel] each; `out` [numel] is float32."""

    def __init__(self, addends: Sequence[Tensor], out: Tensor, start: int, stop: int) -> None:
        self._blocks = [
            (out[a:b], [addend[a:b] for addend in addends])
            for a, b in cache_blocks(start, stop, out.itemsize)
        ]

    def __call__(self, share: Any = None) -> None:
        for out, (first, *rest) in self._blocks:
            out.copy_(first)
            for addend in rest:
                out.add_(addend)
            if share is not None:
                out.mul_(float(share))


class Bf16Ring:
    """All-reduce over a ring where contributions travel as bfloat16.

    Each rank adds its share of everyone's contribution in float32, in the order of the ring, and
    passes the sum to all: 3/4 of the bytes of a float32 ring, and 2.5 vectors of memory.
    """

    def __init__(self, ring: Ring, numel: int, device: torch.device) -> None:
        self._ring, self._numel = ring, numel
        chunk = -(-numel // ring.size)
        shape = (ring.size, chunk)
        self._sent = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self._received = torch.zeros_like(self._sent)
        self._part = torch.zeros(chunk, device=device)
        self._whole = torch.zeros(shape, device=device)

    def all_reduce(self, vector: Tensor) -> None:
        """Turns `vector` [numel] float32 into the sum over the ring, the same bits everywhere."""
        self._sent.view(-1)[: self._numel].copy_(vector)
        # Bytes: not every backend moves bfloat16.
        sent, received = (t.view(-1).view(torch.uint8) for t in (self._sent, self._received))
        self._ring.all_to_all(received, sent)
        self._part.copy_(self._received[0])
        for row in self._received[1:]:
            self._part.add_(row)
        self._ring.all_gather(self._whole.view(-1), self._part)
        vector.copy_(self._whole.view(-1)[: self._numel])


def all_reduce_by(
    ring: Ring | None, bucket: SharedBucket, device: torch.device
) -> Callable[[Tensor], None] | None:
    """Returns what all-reduces a bucket over `ring` in its wire format; None without a ring."""
    if ring is None:
        return None
    return Bf16Ring(ring, bucket.numel, device).all_reduce if bucket.bf16_slots else ring.all_reduce
