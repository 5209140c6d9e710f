"""Reduces over one rank: nothing to combine, nothing shared, the same protocol."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.comm.errors import GroupClosed
from gmi_drl.comm.group.group import Group, ReduceOp

DTYPES = (torch.float32, torch.float64)


class LocalReducer:
    """A bucket of one rank. `result` is a memory of its own, as in every other strategy."""

    rank = 0
    size = 1

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device) -> None:
        self.numel = numel
        self.buffer = torch.zeros(numel, dtype=dtype, device=device)
        self.result = torch.zeros_like(self.buffer)
        self._gathered = torch.zeros(1, numel, dtype=dtype, device=device)

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        if op not in ("sum", "mean"):
            raise ValueError(f"op {op!r}: use 'sum' or 'mean'.")
        return self.result.copy_(self.buffer.detach())

    def gather(self) -> Tensor:
        self._gathered[0].copy_(self.buffer.detach())
        return self._gathered

    def broadcast(self, src: int = 0) -> Tensor:
        if src != 0:
            raise ValueError(f"src {src}: this group has ranks 0 to 0.")
        return self.result.copy_(self.buffer.detach())

    def barrier(self) -> None:
        return None


class LocalGroup(Group):
    """A group of one."""

    def __init__(self, member: str) -> None:
        self.rank = 0
        self.size = 1
        self.members = (member,)
        self.generation = self.joined = 0
        self._closed = False

    def bucket(
        self, name: str, numel: int, dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> LocalReducer:  # fmt: skip
        self._open()
        return LocalReducer(*checked(name, numel, dtype, device))

    def barrier(self) -> None:
        self._open()

    def exchange(self, value: int) -> list[int]:
        self._open()
        return [value]

    def reform(self) -> bool:
        self._open()
        return False

    def finish(self, outcome: str) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise GroupClosed("this group was closed. Join a new one.")


def checked(
    name: str, numel: int, dtype: torch.dtype | None, device: torch.device | None
) -> tuple[int, torch.dtype, torch.device]:
    """Returns the size, type and place of a bucket, or ValueError with what is wrong about them."""
    dtype, device = dtype or torch.float32, torch.device(device or "cpu")
    if numel < 0:
        raise ValueError(f"bucket {name!r}: numel {numel}; it must be 0 or more.")
    if dtype not in DTYPES:
        raise ValueError(f"bucket {name!r}: {dtype} cannot be reduced. Use float32 or float64.")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"bucket {name!r}: device {device}; it must be the CPU or a CUDA device.")
    return numel, dtype, device
