"""One random stream per environment, seeded as Gymnasium's vectors seed theirs, saved exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_WORD = (1 << 64) - 1


def streams(seed: int, num_env: int) -> list[np.random.Generator]:
    """Environment i's generator, from seed + i (what `gymnasium.vector` gives its i-th one)."""
    return [np.random.Generator(np.random.PCG64(seed + i)) for i in range(num_env)]


def save_streams(generators: list[np.random.Generator]) -> Tensor:
    """[N, 6] int64: both halves of PCG64's state and increment, and its spare 32 bits."""
    rows = []
    for generator in generators:
        whole = generator.bit_generator.state
        state, inc = whole["state"]["state"], whole["state"]["inc"]
        words = (state >> 64, state & _WORD, inc >> 64, inc & _WORD)
        rows.append([*words, int(whole["has_uint32"]), int(whole["uinteger"])])
    return torch.from_numpy(np.array(rows, dtype=np.uint64).view(np.int64))


def load_streams(generators: list[np.random.Generator], saved: Tensor) -> None:
    for generator, row in zip(generators, saved.numpy().view(np.uint64).tolist(), strict=True):
        generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": row[0] << 64 | row[1], "inc": row[2] << 64 | row[3]},
            "has_uint32": row[4],
            "uinteger": row[5],
        }
