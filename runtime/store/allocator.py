"""Decides which bytes of the arena a new block gets: a pure allocator in plain Python.

Blocks of a page or more have whole pages to themselves and are taken from the lowest address on,
so that memory which was touched before is used again first. Smaller blocks are taken from the
highest address down, so that many small long-lived objects leave large holes whole. Free blocks lie
in bins by the power of two of their size, sorted by address; neighbours are joined when freed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice
from typing import Final

from .alignment import round_up

PAGE: Final = 4096
LINE: Final = 64
_MAX_COMPARED: Final = 64  # for so many blocks in a hole all places in it are compared
_MAX_TRIED: Final = 16  # holes of each bin that are tried at first


class Allocator:
    """Gives out blocks of `nbytes` bytes that never overlap."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes - nbytes % LINE
        self.used_bytes = 0  # with the bytes that rounding adds
        self._used: dict[int, int] = {}  # offset -> size
        self._ends: dict[int, int] = {}  # free blocks: offset -> end
        self._starts: dict[int, int] = {}  # free blocks: end -> offset
        self._bins: list[list[int]] = [[] for _ in range(self.nbytes.bit_length() + 1)]
        self._add(0, self.nbytes)

    def holes(self) -> Iterable[tuple[int, int]]:
        """Returns (offset, end) of all that is free."""
        return self._ends.items()

    def allocate(self, nbytes: int) -> int | None:
        """Returns the offset of a new block; None if no hole is large enough."""
        size = block_bytes(nbytes)
        place = self._find(size)
        if place is None:
            return None
        hole, offset = place
        end = self._remove(hole)
        if hole < offset:
            self._add(hole, offset)
        if offset + size < end:
            self._add(offset + size, end)
        self._used[offset] = size
        self.used_bytes += size
        return offset

    def free(self, offset: int) -> None:
        """Frees the block at `offset`."""
        size = self._used.pop(offset)
        self.used_bytes -= size
        self._join(offset, offset + size)

    def to_free(self, nbytes: int, offsets: Iterable[int]) -> list[int] | None:
        """Returns which of `offsets` to free so that `nbytes` fit; None if all are not enough.

        Of the blocks that make the first large enough hole the fewest bytes are freed.
        """
        size = block_bytes(nbytes)
        joined: list[tuple[int, int, int, int]] = []
        place = self._find(size)
        for offset in offsets:
            if place is not None:
                break
            end = offset + self._used[offset]
            joined.append((offset, end, *self._join(offset, end)))
            place = self._find(size)
        for offset, end, start, stop in reversed(joined):
            self._remove(start)
            if start < offset:
                self._add(start, offset)
            if end < stop:
                self._add(end, stop)
        if place is None:
            return None
        if not joined:
            return []
        _, _, start, stop = joined[-1]  # the hole that it made
        blocks = [(offset, end) for offset, end, _, _ in joined if start <= offset < stop]
        return _cheapest(blocks, start, stop, size, place[1])

    def _find(self, size: int) -> tuple[int, int] | None:
        """Returns (a hole, the offset of a block of `size` in it), roughly by first fit."""
        ends, small, own_bin = self._ends, size < PAGE, size.bit_length()
        if own_bin >= len(self._bins):
            return None
        best: tuple[int, int] | None = None
        for number in range(len(self._bins) - 1, own_bin - 1, -1):
            holes = self._bins[number]
            if not holes:
                continue
            # A hole in a larger bin can only be too small for the alignment.
            for hole in islice(reversed(holes) if small else holes, _MAX_TRIED):
                offset = _fit(hole, ends[hole], size)
                if offset >= 0:
                    if best is None or (offset > best[1]) == small:
                        best = hole, offset
                    break
        if best is None:
            for number in (own_bin, own_bin + 1):
                for hole in self._bins[number] if number < len(self._bins) else ():
                    offset = _fit(hole, ends[hole], size)
                    if offset >= 0:
                        return hole, offset
        return best

    def _join(self, offset: int, end: int) -> tuple[int, int]:
        """Frees these bytes; returns the hole that they have become part of."""
        start, stop = self._starts.get(offset, offset), self._ends.get(end, end)
        if start < offset:
            self._remove(start)
        if end < stop:
            self._remove(end)
        self._add(start, stop)
        return start, stop

    def _add(self, offset: int, end: int) -> None:
        self._ends[offset] = end
        self._starts[end] = offset
        insort(self._bins[(end - offset).bit_length()], offset)

    def _remove(self, offset: int) -> int:
        end = self._ends.pop(offset)
        del self._starts[end]
        offsets = self._bins[(end - offset).bit_length()]
        del offsets[bisect_left(offsets, offset)]
        return end


def block_bytes(nbytes: int) -> int:
    """Returns the bytes of an object's block: whole cache lines, or pages from one page on."""
    unit = PAGE if nbytes >= PAGE else LINE
    return max(LINE, round_up(nbytes, unit))


def _fit(hole: int, end: int, size: int) -> int:
    """Returns where in the hole a block of `size` lies; -1 if it does not fit."""
    if size < PAGE:
        return end - size if end - hole >= size else -1
    offset = round_up(hole, PAGE)
    return offset if offset + size <= end else -1


def _cheapest(
    blocks: list[tuple[int, int]], start: int, stop: int, size: int, first: int
) -> list[int]:
    """Returns the `blocks` with the fewest bytes to free for `size` bytes in `start` to `stop`.

    `first` is one place where they fit; other candidates begin or end with a block.
    """
    unit = PAGE if size >= PAGE else LINE
    places = [first]
    if len(blocks) <= _MAX_COMPARED:
        places += [round_up(offset, unit) for offset, _ in blocks]
        places += [(end - size) // unit * unit for _, end in (*blocks, (0, stop))]

    def overlapping(place: int) -> list[int]:
        ends = place + size
        return [i for i, (offset, end) in enumerate(blocks) if place < end and offset < ends]

    def cost(chosen: list[int]) -> tuple[int, int]:
        return sum(blocks[number][1] - blocks[number][0] for number in chosen), sum(chosen)

    choices = [overlapping(place) for place in places if start <= place <= stop - size]
    return [blocks[number][0] for number in min(choices, key=cost)]
