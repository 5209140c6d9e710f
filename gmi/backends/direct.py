"""The backend direct lets GMIs share a GPU with nothing between them: time-slicing.

It works on every NVIDIA GPU, limits no SMs, and isolates nothing; torch alone limits memory.
"""

from __future__ import annotations

from .gpu import GpuBackend


class DirectBackend(GpuBackend):
    """Gives GMIs a GPU on which they take turns."""

    torch_limits_memory = True
