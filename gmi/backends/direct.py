"""The backend direct lets GMIs share a GPU with nothing between them: time-slicing.

It works on every NVIDIA GPU, limits no SMs, and isolates nothing; torch alone limits memory.
"""

from __future__ import annotations

from .gpu import GpuBackend


class DirectBackend(GpuBackend):
    """GMIs that take turns on a GPU."""

    torch_limits_memory = True
