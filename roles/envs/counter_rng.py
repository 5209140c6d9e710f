"""Draws random numbers by counting: draw k of environment i is a function of (seed + i, k).

So a batch can be split over GMIs, or moved to another device, and every environment still draws
the same; and to save the generator is to save one counter per environment.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, as int64
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def splitmix64(z: Tensor) -> Tensor:
    """Applies SplitMix64's finaliser to int64 (Steele, Lea, Flood 2014)."""
    z = (z ^ _shift(z, 30)) * _MIX1  # int64 products wrap around, as wanted
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # logical, where torch shifts in the sign


def stream_keys(seed: int, num_env: int, device: torch.device) -> Tensor:
    """Returns the stream of each environment, [N] int64."""
    return splitmix64((torch.arange(num_env, device=device) + seed) * _GOLDEN + 1)


def uniform(key: Tensor, count: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Returns [N, size] in [0, 1): the `count`-th row (count is [N]) of every stream."""
    lane = torch.arange(1, size + 1, device=key.device)
    words = splitmix64(key[:, None] + (count[:, None] * size + lane) * _GOLDEN)
    bits = 53 if dtype == torch.float64 else 24
    return _shift(words, 64 - bits).to(dtype) * 2.0**-bits
