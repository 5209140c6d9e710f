"""Sums of vectors in shared memory: which part of them a rank makes, block by block."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from gmi_drl.comm.shm.alignment import round_up

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
                for other in rest[1:]:
                    add(out, other, out)
            else:
                np.copyto(out, first)
            if share is not None:
                np.multiply(out, share, out)


def slot_bytes(numel: int, itemsize: int) -> int:
    """From one slot of a bucket to the next: whole pages, and a little."""
    return round_up(numel * itemsize, _PAGE) + _SKEW


def rank_slice(numel: int, itemsize: int, rank: int, size: int) -> tuple[int, int]:
    """The stretch [start, stop) that `rank` sums: an equal share in whole cache lines."""
    line = _LINE // itemsize
    share = round_up(-(-numel // size), line)
    return min(rank * share, numel), min((rank + 1) * share, numel)


def cache_blocks(start: int, stop: int, itemsize: int) -> list[tuple[int, int]]:
    """[start, stop) cut into pieces that fit into a cache."""
    step = _BLOCK_BYTES // itemsize
    return [(a, min(a + step, stop)) for a in range(start, stop, step)]
