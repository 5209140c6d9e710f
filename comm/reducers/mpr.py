"""MPR, multi-process reduction, combines vectors in memory that a host's processes share.

Each rank sums its own part of all slots, in ascending order of ranks: all read the same bits. Why
no part is read while it is written stands in bucket.py.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.group import tags as _tags
from gmi_drl.comm.group.barrier import YIELDS

from .bucket import SharedBucket
from .sums import Bf16Sum, SliceSum, rank_slice

_LONG_BYTES: Final = 3 << 19  # measured with 4 ranks on 2 cores, 50 KB to 3 MB


class MprReducer(SharedBucket):
    """One bucket, in shared memory."""

    _one_result = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        result, nbytes = self.results[0], self.results[0].nbytes
        start, stop = rank_slice(self.numel, result.itemsize, self.rank, self.size)
        self._sum: SliceSum | Bf16Sum = SliceSum(self.slots, result, start, stop)
        if self.bf16_slots:
            self._sum = Bf16Sum(self.bf16_slots, self.result, start, stop)
        # Where cores are shared, yields only disturb a rank that has a long sum to make.
        self._yields = min(YIELDS, _LONG_BYTES // max(nbytes, 1))
        result[start:stop].fill(0)

    def _place_of_result(self) -> Tensor:
        return torch.from_numpy(self.results[0])

    def _writes_result(self, src: int) -> bool:
        return self.rank == src

    def _combine(self, tag: int, share: Any) -> None:
        meet = self.group.meet
        self.contribute()
        meet(tag, 0, self._yields)
        self._sum(share)
        meet(tag | _tags.PHASE_2, 0, self._yields)
