"""A shared bucket has its place in memory that all ranks map, whatever the strategy.

It is a stretch of one anonymous file: a slot for each rank, a result for each device, two banks for
gathering, and with the bfloat16 wire format a row for each rank's contribution. Gradients live in
the slots, and results are read where they are.

Why nothing is read that is being written (meeting: see barrier.py):
- Slots. A rank writes its slot between its calls. Others read it between the first and the last
  meeting of a call, where its owner is inside the call as well.
- Results. Written between the first and the last meeting of a call; read after it until the
  reader's next call on this bucket. That call's first meeting is left only when all have arrived
  there, so all have read.
- Gather. A rank copies its slot to its row of bank n mod 2 before the meeting of its n-th gather.
  It writes that bank again in gather n + 2, after the meeting of n + 1, where all had finished
  with the rows of n. One meeting and one copy of one's own slot.
- Generations. After `reform` buckets are made anew in the same memory. By then every process of
  the group that lives has arrived there: none reads or writes a bucket of before, unless it kept a
  tensor of one, which is why calls on such buckets raise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from gmi_drl.comm.errors import GroupReformed
from gmi_drl.comm.group import tags as _tags
from gmi_drl.comm.group.group import ReduceOp
from gmi_drl.comm.group.tags import make_tag

from .sums import Array, slot_bytes

if TYPE_CHECKING:
    from .shared_group import SharedGroup

_PASSED_ON: Final = 0xFFF  # in the place of a broadcast's source
_OPS: Final = {"sum": _tags.SUM, "mean": _tags.MEAN}


def bucket_bytes(group: SharedGroup, numel: int, dtype: np.dtype[Any]) -> int:
    """Returns how much of the file a bucket takes; what is never touched takes no memory."""
    rows = 3 * group.size + len(group.mpl) + (group.size if uses_bf16(group, dtype) else 0)
    return rows * slot_bytes(numel, dtype.itemsize)


def uses_bf16(group: SharedGroup, dtype: np.dtype[Any]) -> bool:
    """Tells whether contributions travel as bfloat16."""
    return group.wire == "bf16" and dtype == np.float32


class SharedBucket(ABC):
    """A bucket of the host; a strategy says how `reduce` moves the numbers.

    `memory` is what bucket_bytes asks for, and stays mapped as long as a tensor of it lives.
    """

    def __init__(
        self, group: SharedGroup, index: int, numel: int, dtype: np.dtype[Any], memory: memoryview
    ) -> None:
        self.rank, self.size, self.numel = group.rank, group.size, numel
        self.group, self.memory = group, memory
        self._index, self._generation = index, group.generation
        self._calls = self._gathers = 0
        self.stride = slot_bytes(numel, dtype.itemsize)
        flat = np.frombuffer(memory, np.uint8).reshape(-1, self.stride)
        rows = flat[:, : numel * dtype.itemsize].view(dtype)
        size, first_bank = self.size, self.size + len(group.mpl)
        banks = rows[first_bank : first_bank + 2 * size].reshape(2, size, numel)
        self.slots: list[Array] = list(rows[:size])
        self.results: list[Array] = list(rows[size:first_bank])  # by place in MPL
        self._rows = [bank[self.rank] for bank in banks]
        self._banks = [torch.from_numpy(bank) for bank in banks]
        self.bf16_slots: list[Tensor] = []  # by rank, bfloat16; empty with the float32 wire format
        if uses_bf16(group, dtype):
            halves = flat[first_bank + 2 * size :, : numel * 2].view(np.uint16)
            self.bf16_slots = [torch.from_numpy(row).view(torch.bfloat16) for row in halves]
        self.buffer: Tensor = torch.from_numpy(self.slots[self.rank])
        self.result: Tensor = self._place_of_result()
        self._share = dtype.type(1 / size)
        # Each rank touches first what it writes, so that the pages are there and near it.
        self.buffer.zero_()

    _one_result = False  # whether all ranks read their result at the same place

    @abstractmethod
    def _place_of_result(self) -> Tensor:
        """Returns where reduce and broadcast leave what they give, zeros [numel]."""

    @abstractmethod
    def _writes_result(self, src: int) -> bool:
        """Tells whether this rank is the one that writes `result` in a broadcast from `src`."""

    @abstractmethod
    def _combine(self, tag: int, share: Any) -> None:
        """Sums all ranks' contributions, times `share` if there is one, into `result`.

        Begins and ends with a meeting, of `tag` and of tag | PHASE_2.
        """

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        tag = self.tag_of(op)
        self._combine(tag, self._share if op == "mean" else None)
        return self.result

    def gather(self) -> Tensor:
        tag = self.tag(_tags.GATHER)
        self._gathers += 1
        bank = self._gathers & 1
        np.copyto(self._rows[bank], self.slots[self.rank])
        self.group.meet(tag)
        return self._banks[bank]

    def broadcast(self, src: int = 0) -> Tensor:
        if not 0 <= src < self.size:
            raise ValueError(f"src {src}: this group has ranks 0 to {self.size - 1}.")
        tag = self.tag(_tags.BROADCAST, src)
        self.group.meet(tag)
        if self._writes_result(src):
            self.result.copy_(torch.from_numpy(self.slots[src]))
        self.group.meet(tag | _tags.PHASE_2)
        return self.result

    def barrier(self) -> None:
        self.group.meet(self.tag(_tags.BARRIER))

    def pass_on(self, stage: Callable[[Array], None]) -> None:
        """Lets rank 0 turn its result, by `stage`, into the result of all; see comm.hosts.

        Collective, right after a call that gave the result. Nobody reads one meanwhile: all are in
        here, or still in that call.
        """
        shared_result, tag = self.results[0], self.tag(_tags.BROADCAST, _PASSED_ON)
        if self.rank == 0:
            own_result = self.result.numpy()
            if own_result.ctypes.data != shared_result.ctypes.data:
                np.copyto(shared_result, own_result)
            stage(shared_result)
        self.group.meet(tag)
        if not self._one_result:
            if self._writes_result(0) and self.result.data_ptr() != shared_result.ctypes.data:
                self.result.copy_(torch.from_numpy(shared_result))
            self.group.meet(tag | _tags.PHASE_2)

    def contribute(self) -> None:
        """Leaves this rank's contribution where others read it, if that is not `buffer` itself."""
        if self.bf16_slots:
            self.bf16_slots[self.rank].copy_(self.buffer.detach())

    def tag_of(self, op: str) -> int:
        """Returns the tag of the next reduction."""
        if op not in _OPS:
            raise ValueError(f"op {op!r}: use 'sum' or 'mean'.")
        return self.tag(_OPS[op])

    def tag(self, call: int, source: int = 0) -> int:
        """Returns the next call's tag; GroupReformed when this bucket is of an older generation."""
        if self._generation != self.group.generation:
            raise GroupReformed(f"a bucket of generation {self._generation}", self.group.generation)
        self._calls += 1
        return make_tag(call, self._index, self._calls, source)
