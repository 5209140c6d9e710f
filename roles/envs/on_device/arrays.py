"""Computes the tasks' array functions, and their random numbers, in torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.envs.counter_rng import uniform
from gmi_drl.roles.envs.mujoco.arrays import Arrays


class TorchArrays(Arrays):
    """Computes with float32 tensors on one device."""

    module: Any = torch
    copy: Any = staticmethod(torch.clone)
    cross: Any = staticmethod(torch.linalg.cross)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def constant(self, a: Any) -> Tensor:
        return torch.tensor(a, dtype=torch.float32, device=self.device)

    def join(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts, -1)

    def rows(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    def take(self, a: Tensor, rows: Tensor) -> Tensor:
        return a.index_select(1, rows)

    def square_sum(self, a: Tensor) -> Tensor:
        return a.square().sum(1)

    def weighted_sum(self, weight: Tensor, a: Tensor) -> Tensor:
        # Not a matrix product: in TF32 that would give positions to three digits.
        return (a * weight[:, None]).sum(1)

    def none(self, a: Tensor) -> Tensor:
        return torch.zeros(len(a), dtype=torch.bool, device=a.device)

    def write_columns(self, out: Tensor, parts: list[Tensor]) -> None:
        out.copy_(torch.cat(parts, 1))


class CounterGenerator:
    """Gives the `count`-th draws of N streams where a task expects a numpy Generator.

    Draws are [N, size] on the device, a function of key and count alone.
    """

    def __init__(self, key: Tensor, count: Tensor) -> None:
        self._key, self._count, self._requests = key, count, 0

    def uniform(self, low: float, high: float, size: int) -> Tensor:
        return low + (high - low) * self._next(size)

    def standard_normal(self, size: int) -> Tensor:
        # Box and Muller; 1 - u is never 0.
        radius, turn = self._next(2 * size).chunk(2, 1)
        return torch.sqrt(-2 * torch.log(1 - radius)) * torch.cos(2 * math.pi * turn)

    def _next(self, size: int) -> Tensor:
        """Returns uniform numbers; every request counts in a stream of its own."""
        self._requests += 1
        return uniform(self._key + self._requests, self._count, size, torch.float32)
