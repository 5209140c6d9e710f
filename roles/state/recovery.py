"""Brings a group that was re-formed back to one state, which one GMI has kept and gives to all.

Every GMI keeps the shared state as it was after its last two iterations. An iteration has meetings,
so a GMI is at most one iteration ahead of another: each survivor has kept the newest iteration that
all of them have finished.
"""

from __future__ import annotations

import io
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.comm import Group

_CHUNK: Final = 1 << 18  # numbers of a broadcast, so that a large state needs little memory
_KEPT: Final = 2


class Snapshots:
    """The states after the last two iterations, in memory that is used again and again."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Any]] = {}
        self._spare: dict[str, Any] | None = None

    def keep(self, iteration: int, state: dict[str, Any]) -> None:
        """Copies `state`: dicts, lists and tuples of tensors and plain values."""
        spare = self._kept.pop(iteration, self._spare)
        self._kept[iteration] = _copied(state, spare)
        self._spare = self._kept.pop(min(self._kept)) if len(self._kept) > _KEPT else None

    @property
    def newest(self) -> int:
        """Returns the last iteration that is kept; -1 when none is."""
        return max(self._kept, default=-1)

    def get(self, iteration: int) -> dict[str, Any] | None:
        """Returns the state after `iteration`, if kept; it is overwritten two `keep` later."""
        return self._kept.get(iteration)

    def forget_after(self, iteration: int) -> None:
        """Drops what lies beyond `iteration`: it will be made again."""
        self._kept = {number: state for number, state in self._kept.items() if number <= iteration}


def agree(group: Group, snapshots: Snapshots) -> tuple[int, int] | None:
    """Returns the newest iteration that all survivors have finished, and a rank with its state.

    None when nobody has any. Collective.
    """
    reached = [newest for newest in group.exchange(snapshots.newest + 1) if newest]
    if not reached:
        return None
    iteration = min(reached) - 1
    holders = group.exchange(int(snapshots.get(iteration) is not None))
    return (iteration, holders.index(1)) if any(holders) else None


def spread(group: Group, source: int, state: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the state that rank `source` passes, on all ranks; others pass None. Collective.

    Nothing but tensors and plain values gets through, as with checkpoints.
    """
    payload = _serialized(state) if group.rank == source else torch.empty(0, dtype=torch.uint8)
    nbytes = group.exchange(len(payload))[source]
    numel = min(_CHUNK, -(-nbytes // 4))
    bucket = group.bucket("state", numel, torch.float32)
    received = torch.empty(nbytes, dtype=torch.uint8)
    for start in range(0, nbytes, numel * 4):
        size = min(numel * 4, nbytes - start)
        if group.rank == source:
            bucket.buffer.view(torch.uint8)[:size] = payload[start : start + size]
        received[start : start + size] = bucket.broadcast(source).view(torch.uint8)[:size]
    loaded: dict[str, Any] = torch.load(
        io.BytesIO(received.numpy().tobytes()), map_location="cpu", weights_only=True
    )
    return loaded


def _serialized(state: Any) -> Tensor:
    stream = io.BytesIO()
    torch.save(state, stream)
    return torch.frombuffer(bytearray(stream.getbuffer()), dtype=torch.uint8)


def _copied(value: Any, old: Any) -> Any:
    """Returns a deep copy of `value`, in the tensors of `old` where they fit."""
    if isinstance(value, Tensor):  # stays on its device: nobody waits for a copy to the host
        kind = (value.shape, value.dtype, value.device)
        fits = isinstance(old, Tensor) and (old.shape, old.dtype, old.device) == kind
        return old.copy_(value.detach()) if fits else value.detach().clone()
    if isinstance(value, dict):
        previous = old if isinstance(old, dict) else {}
        return {key: _copied(item, previous.get(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        matches = isinstance(old, (list, tuple)) and len(old) == len(value)
        olds = old if matches else [None] * len(value)
        return type(value)(_copied(a, b) for a, b in zip(value, olds, strict=True))
    return value
