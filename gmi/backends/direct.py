"""The backend direct lets GMIs share a GPU with nothing between them: time-slicing.

Works on every NVIDIA GPU and needs no daemon. There is no limit on SMs and no isolation; that on
memory is kept by torch alone (see `memory`).
"""

from __future__ import annotations

from .gpu import GpuBackend


class DirectBackend(GpuBackend):
    """GMIs that take turns on a GPU."""

    torch_limits_memory = True
