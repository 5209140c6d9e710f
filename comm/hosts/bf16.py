"""Turns float32 into bfloat16, the wire format of half the bytes, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def to_bf16(row: Array) -> Array:
    """Rounds float32 [n] in place to what bfloat16 can hold, and returns it so: int16 [n]."""
    tensor = torch.from_numpy(row)
    narrow = tensor.bfloat16()
    tensor.copy_(narrow)
    return narrow.view(torch.int16).numpy()


def from_bf16(payload: memoryview) -> Array:
    """Returns the float32 [n] of what another host has rounded."""
    narrow = torch.frombuffer(payload, dtype=torch.bfloat16)
    return narrow.float().numpy()
