"""HAR, hierarchical reduction, sums inside each device and then over a ring of leaders (GMI-DRL).

The leaders' ring works on the device's result where it lies. All ranks read the same bits: sums
inside a device go over ascending ranks, one rank a part, and a ring makes each number once.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.group import tags as _tags
from gmi_drl.comm.group.group import ReduceOp

from . import ipc
from .bucket import SharedBucket
from .rings import Rings
from .staged import DeviceReducer, StagedReducer
from .sums import Bf16Sum, SliceSum, all_reduce_by, rank_slice

_RING: Final = "leaders"


class _Leader:
    """The leaders' ring as one rank sees it; a rank that is no leader does nothing in it."""

    def __init__(self, host: SharedBucket, kind: torch.device) -> None:
        group = host.group
        # The paper's leaders: rank % M == 0 of M ranks on every device.
        leaders = tuple(ranks[0] for ranks in group.mpl)
        self._rings: Rings = group.rings(kind.type, {_RING: leaders})
        ring = self._rings.get(_RING)
        self._step = all_reduce_by(ring, host, kind)

    def reduce(self, vector: Tensor, share: float | None) -> str | None:
        """Turns the device's sum `vector` into the sum of all; returns what went wrong, or None."""
        step = self._step
        if step is None or not vector.numel():
            return None
        fault = self._rings.attempt(lambda: step(vector))
        if share is not None:
            vector.mul_(share)
        return fault


class HarReducer(SharedBucket):
    """One bucket, in shared memory inside a device, and by gloo over 127.0.0.1 between them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        group = self.group
        ranks, result = group.mpl[group.device], self.results[group.device]
        start, stop = rank_slice(self.numel, result.itemsize, group.place, len(ranks))
        self._sum: SliceSum | Bf16Sum = SliceSum(
            [self.slots[r] for r in ranks], result, start, stop
        )
        if self.bf16_slots:
            self._sum = Bf16Sum([self.bf16_slots[r] for r in ranks], self.result, start, stop)
        result[start:stop].fill(0)

    @cached_property
    def _leader(self) -> _Leader:  # at the first reduction, between two meetings: collective
        return _Leader(self, self.buffer.device)

    def _place_of_result(self) -> Tensor:
        return torch.from_numpy(self.results[self.group.device])

    def _writes_result(self, src: int) -> bool:
        return self.group.place == 0

    def _combine(self, tag: int, share: Any) -> None:
        meet = self.group.meet
        self.contribute()
        meet(tag)
        leader = self._leader
        self._sum()
        meet(tag | _tags.stage(1))  # the device's sum is whole
        fault = leader.reduce(self.result, None if share is None else float(share))
        self.group.meet_after(tag | _tags.PHASE_2, fault)


class DeviceHar(DeviceReducer):
    """One bucket on a GPU.

    Where every rank can use CUDA IPC, sums are made in the memory of each GPU and the leaders' ring
    is NCCL's, on the result where it lies; else it all goes through the host.
    """

    def _place(self, device: torch.device) -> tuple[Tensor, Tensor]:
        group, host = self.host.group, self.host
        self._in_gpu: ipc.GpuSum | None = None
        if not all(group.exchange(int(ipc.why_not(device) is None))):
            return super()._place(device)
        ranks = group.mpl[group.device]
        self._owns_result = group.place == 0
        self._in_gpu = in_gpu = ipc.GpuSum(
            group, ranks, ranks[0], host.numel, dtype=host.buffer.dtype, device=device
        )
        return in_gpu.buffer, in_gpu.result

    @cached_property
    def _leader(self) -> _Leader:
        return _Leader(self.host, self.buffer.device)

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        return super().reduce(op) if self._in_gpu else StagedReducer.reduce(self, op)

    def _combine(self, tag: int, share: float | None) -> None:
        in_gpu, group = self._in_gpu, self.host.group
        assert in_gpu is not None
        in_gpu.written()
        group.meet(tag)
        leader = self._leader
        in_gpu.add(None)
        group.meet(tag | _tags.stage(1))
        in_gpu.until_added()
        fault = leader.reduce(in_gpu.result, share)  # it runs on a stream behind the sum
        in_gpu.reduced()
        group.meet_after(tag | _tags.PHASE_2, fault)
        in_gpu.until_reduced()
