"""MPR, multi-process reduction: one host's processes combine vectors in memory they share.

A bucket is a stretch of one anonymous file that every rank maps: a slot for each rank, the result,
and two banks for gathering. Gradients live in the slots and results are read where they are, so
that nothing is copied. To reduce, every rank combines its own k-th part of all the slots.

Why nothing is read that is being written (meeting: see barrier.py):
- Slots. A rank writes its slot between its calls. Others read it between the first and the second
  meeting of a reduce, where its owner is inside the call as well.
- Result. Written between the two meetings; read from the second one until the reader's next call
  on this bucket. That call's first meeting is left only when all have arrived there, so all have
  read.
- Gather. A rank copies its slot to its row of bank n mod 2 before the meeting of its n-th gather.
  It writes that bank again in gather n + 2, after the meeting of n + 1, where all had finished
  with the rows of n. One meeting and one copy of one's own slot.
- Growth. Meetings agree on a new bucket's place before anybody makes the file longer, and nobody
  can be at the next bucket before all are done with this one: the file only grows, and making it
  as long as it is changes nothing.
- Generations. After `reform` buckets are made anew in the same memory. By then every process of
  the group that lives has arrived there: none reads or writes a bucket of before, unless it kept a
  tensor of one, which is why calls on such buckets raise.
Sums go over the ranks in ascending order, one rank a part: all ranks read the same bits.
"""

from __future__ import annotations

import contextlib
import mmap
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gmi_drl.runtime.memfd import Memfd

from . import tags as _tags
from .barrier import YIELDS, Barrier
from .errors import GroupClosed, GroupMismatch, GroupReformed
from .group import Group, ReduceOp
from .header import header_bytes
from .local import checked
from .tags import describe, make_tag

_PAGE: Final = mmap.PAGESIZE
_HUGE: Final = 2 << 20
_LINE: Final = 64
_SKEW: Final = 4 * _LINE  # slots at the same offset in a page would be mistaken for each other
_BLOCK_BYTES: Final = 128 << 10  # of one slot, so that a block's sum stays in the cache
_LONG_BYTES: Final = 3 << 19  # measured with 4 ranks on 2 cores, 50 KB to 3 MB
_OPS: Final = {"sum": _tags.SUM, "mean": _tags.MEAN}
_MAX_BUCKETS: Final = 1 << 16

_Array = np.ndarray[Any, np.dtype[Any]]


class MprReducer:
    """One bucket, in shared memory."""

    def __init__(self, group: MprGroup, index: int, numel: int, memory: memoryview) -> None:
        self.rank, self.size, self.numel = group.rank, group.size, numel
        self._group, self._index, self._generation = group, index, group.generation
        self._calls = self._gathers = 0
        dtype = group.dtypes[index]
        stride = slot_bytes(numel, dtype)
        flat = np.frombuffer(memory, np.uint8).reshape(-1, stride)
        rows = flat[:, : numel * dtype.itemsize].view(dtype)
        size = self.size
        slots, result = rows[:size], rows[size]
        banks = (rows[size + 1 : 2 * size + 1], rows[2 * size + 1 : 3 * size + 1])
        self.buffer: Tensor = torch.from_numpy(slots[self.rank])
        self.result: Tensor = torch.from_numpy(result)
        self._slots = list(slots)
        self._result = result
        self._rows = [bank[self.rank] for bank in banks]
        self._banks = [torch.from_numpy(bank) for bank in banks]
        start, stop = part(numel, dtype.itemsize, self.rank, size)
        self._blocks = _blocks(self._slots, result, start, stop)
        # Where cores are shared, whoever has long to work is only disturbed by yields.
        self._yields = min(YIELDS, _LONG_BYTES // max(numel * dtype.itemsize, 1))
        self._share = dtype.type(1 / size)
        # Each rank touches first what it writes, so that the pages are there and near it.
        self._slots[self.rank].fill(0)
        result[start:stop].fill(0)

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        try:
            tag = self._tag(_OPS[op])
        except KeyError:
            raise ValueError(f"op {op!r}: use 'sum' or 'mean'.") from None
        meet, add = self._group.meet, np.add
        meet(tag, 0, self._yields)
        for out, first, second, rest in self._blocks:
            add(first, second, out)
            for other in rest:
                add(out, other, out)
            if op == "mean":
                np.multiply(out, self._share, out)
        meet(tag | _tags.PHASE_2, 0, self._yields)
        return self.result

    def gather(self) -> Tensor:
        tag = self._tag(_tags.GATHER)
        self._gathers += 1
        bank = self._gathers & 1
        np.copyto(self._rows[bank], self._slots[self.rank])
        self._group.meet(tag)
        return self._banks[bank]

    def broadcast(self, src: int = 0) -> Tensor:
        if not 0 <= src < self.size:
            raise ValueError(f"src {src}: this group has ranks 0 to {self.size - 1}.")
        tag = self._tag(_tags.BROADCAST, src)
        self._group.meet(tag)
        if self.rank == src:
            np.copyto(self._result, self._slots[src])
        self._group.meet(tag | _tags.PHASE_2)
        return self.result

    def barrier(self) -> None:
        self._group.meet(self._tag(_tags.BARRIER))

    def _tag(self, call: int, source: int = 0) -> int:
        if self._generation != self._group.generation:
            raise GroupReformed(
                f"a bucket of generation {self._generation}", self._group.generation
            )
        self._calls += 1
        return make_tag(call, self._index, self._calls, source)


class MprGroup(Group):
    """One process of several that share the memory of `memfd`."""

    def __init__(self, memfd: Memfd, rank: int, members: Sequence[str], timeout: timedelta) -> None:
        self.rank, self.size, self.members = rank, len(members), tuple(members)
        self.dtypes: list[np.dtype[Any]] = []  # by bucket
        self._names: list[str] = []  # by bucket
        self._memfd = memfd
        self._end = header_bytes(self.size)
        self._barrier = Barrier(memfd.map(0, self._end), rank, members, timeout)
        self.generation = self.joined = self._barrier.generation
        self._calls = 0

    def bucket(self, name: str, numel: int, dtype: torch.dtype | None = None) -> MprReducer:
        numel, torch_dtype = checked(name, numel, dtype)
        index = len(self._names)
        if index == _MAX_BUCKETS:
            raise ValueError(f"bucket {name!r}: a group has at most {_MAX_BUCKETS}. Reuse some.")
        kind = np.dtype("f4" if torch_dtype == torch.float32 else "f8")
        what = f"bucket {name!r} of {numel} {kind.name}"
        self._barrier.write_text(what)
        self.meet(make_tag(_tags.CREATE, index, zlib.crc32(what.encode())))
        slots = 3 * self.size + 1  # slots, result, two banks; what is never touched takes no memory
        nbytes = slots * slot_bytes(numel, kind)
        start = _up(self._end, _HUGE if nbytes >= _HUGE else _PAGE)
        self._end = start + nbytes
        if self._memfd.size < self._end:
            self._memfd.resize(self._end)
        memory = self._memfd.map(start, nbytes)
        if nbytes >= _HUGE and isinstance(memory.obj, mmap.mmap):
            with contextlib.suppress(OSError):  # a kernel that knows no huge pages here
                memory.obj.madvise(mmap.MADV_HUGEPAGE)
        self._names.append(repr(name))
        self.dtypes.append(kind)
        return MprReducer(self, index, numel, memory)

    def barrier(self) -> None:
        self._calls += 1
        self.meet(make_tag(_tags.BARRIER, count=self._calls))

    def exchange(self, value: int) -> list[int]:
        self._calls += 1
        self.meet(make_tag(_tags.EXCHANGE, count=self._calls), value)
        return self._barrier.values()

    def reform(self) -> None:
        if self._barrier.reform():
            self._names, self.dtypes = [], []
            self._end, self._calls = header_bytes(self.size), 0
            self.generation = self._barrier.generation

    def finish(self, outcome: str) -> None:
        self._barrier.finish(outcome)

    def close(self) -> None:
        self._barrier.leave(GroupClosed("the group was closed"))

    def meet(self, tag: int, value: int = 0, yields: int = YIELDS) -> None:
        """Meets all ranks; GroupMismatch on every one of them unless all brought this tag."""
        if self._barrier.meet(tag, value, yields):
            return
        calls = [self._in_words(rank, tag) for rank, tag in enumerate(self._barrier.tags())]
        error = GroupMismatch(calls, self.members)
        self._barrier.leave(error, announce=False)
        raise error

    def _in_words(self, rank: int, tag: int) -> str:
        if tag & 7 == _tags.CREATE:
            return self._barrier.read_text(rank)
        return describe(tag, self._names)


def slot_bytes(numel: int, dtype: np.dtype[Any]) -> int:
    """From one slot of a bucket to the next: whole pages, and a little."""
    return _up(numel * dtype.itemsize, _PAGE) + _SKEW


def part(numel: int, itemsize: int, rank: int, size: int) -> tuple[int, int]:
    """The stretch [start, stop) that `rank` sums: an equal share in whole cache lines."""
    line = _LINE // itemsize
    share = _up(-(-numel // size), line)
    return min(rank * share, numel), min((rank + 1) * share, numel)


def _blocks(
    slots: Sequence[_Array], result: _Array, start: int, stop: int
) -> list[tuple[_Array, _Array, _Array, list[_Array]]]:
    """The part cut into blocks: (where the sum goes, first, second and other addends) of each."""
    step = _BLOCK_BYTES // result.itemsize
    found = []
    for a in range(start, stop, step):
        b = min(a + step, stop)
        first, second, *rest = (slot[a:b] for slot in slots)
        found.append((result[a:b], first, second, rest))
    return found


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
