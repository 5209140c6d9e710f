"""MRR, multi-ring reduction, uses rings that have no two ranks on one device (GMI-DRL).

Ring i joins the i-th GMI of every device, the last ring an endpoint of each; NCCL needs one rank a
device. All ranks read the same bits: a ring makes each number of a sum once, and passes copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.group import tags as _tags

from .bucket import SharedBucket
from .rings import Rings
from .staged import DeviceReducer
from .sums import all_reduce_by

if TYPE_CHECKING:
    from .shared_group import SharedGroup

_LAST: Final = "last"


def rings_of(mpl: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Returns the ranks of each ring: `ring 0` ..., and the last ring over an endpoint of each."""
    rings = list(zip(*mpl, strict=True))
    by_name = {f"ring{i}": ranks for i, ranks in enumerate(rings)}
    return {**by_name, _LAST: tuple(ranks[i] for i, ranks in enumerate(rings))}


class _Path:
    """Reduces over a rank's ring, the last ring if it is an endpoint, and its ring again."""

    def __init__(self, host: SharedBucket, device: torch.device) -> None:
        group = host.group
        self._rings: Rings = group.rings(device.type, rings_of(group.mpl))
        self._number = group.place
        self._own = self._rings.get(f"ring{self._number}")
        self._several = len(group.mpl[0]) > 1
        self._first_step = all_reduce_by(self._own, host, device)
        self._last_step = all_reduce_by(self._rings.get(_LAST), host, device)

    def reduce(self, vector: Tensor) -> str | None:
        """Turns `vector` into the sum over all ranks; returns what went wrong, or None."""
        return self._rings.attempt(lambda: self._steps(vector)) if vector.numel() else None

    def _steps(self, vector: Tensor) -> None:
        assert self._own is not None
        assert self._first_step is not None
        self._first_step(vector)
        if self._several:
            if self._last_step is not None:
                self._last_step(vector)
            self._own.broadcast(vector, self._number)  # endpoint i of ring i is on device i


class MrrReducer(SharedBucket):
    """One bucket, reduced by gloo over 127.0.0.1. `result` is this rank's own memory."""

    @cached_property
    def _path(self) -> _Path:  # at the first reduction, between two meetings: collective
        return _Path(self, self.buffer.device)

    def _place_of_result(self) -> Tensor:
        return torch.zeros_like(self.buffer)

    def _writes_result(self, src: int) -> bool:
        return True

    def _combine(self, tag: int, share: Any) -> None:
        _combine(self, self.group, tag, share)


class DeviceMrr(DeviceReducer):
    """One bucket on a GPU, reduced by NCCL where it is."""

    @cached_property
    def _path(self) -> _Path:
        return _Path(self.host, self.buffer.device)

    def _combine(self, tag: int, share: float | None) -> None:
        _combine(self, self.host.group, tag, share)


def _combine(
    bucket: MrrReducer | DeviceMrr, group: SharedGroup, tag: int, share: float | None
) -> None:
    group.meet(tag)
    path = bucket._path
    bucket.result.copy_(bucket.buffer.detach())
    group.meet_after(tag | _tags.PHASE_2, path.reduce(bucket.result))
    if share is not None:
        bucket.result.mul_(float(share))
