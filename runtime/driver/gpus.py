"""Chooses the GPUs that calls and actors hold: the scheduler counts them, here they get names.

Who holds which GPU is read from the tables each time, so that none has to be released: a worker
holds GPUs while it has a call that needs some, an actor as long as it lives.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from .processes import Actor, Process

GpuId = int | str


class Gpus:
    """Holds the GPUs of every device. Used by the runtime's thread only."""

    def __init__(
        self, devices: Mapping[int, Mapping[str, float]], processes: Mapping[int, Process],
        actors: Mapping[bytes, Actor],
    ) -> None:  # fmt: skip
        self._processes, self._actors = processes, actors
        self._shares: dict[int, dict[GpuId, float]] = {}  # by device: the share of each GPU
        share = {index: resources.get("GPU", 0.0) for index, resources in devices.items()}
        names = _names(math.ceil(sum(share.values()) - 1e-6))
        begin = 0.0
        for index in sorted(share):
            end = begin + share[index]
            parts = {name: min(end, i + 1) - max(begin, i) for i, name in enumerate(names)}
            self._shares[index] = {name: part for name, part in parts.items() if part > 1e-6}
            begin = end

    def choose(self, device: int, amount: float) -> tuple[GpuId, ...]:
        """Returns the GPUs that a call or an actor gets which demands `amount` of them.

        A fraction is taken of the GPU most in use that has room for it. When only fractions are
        left, a whole GPU may be shared with somebody who holds a part of it.
        """
        free = dict(self._shares.get(device, {}))
        for ids, held_share in self._held(device):
            for id in ids:
                free[id] -= min(1.0, held_share / len(ids))
        if amount < 1:
            fitting = [id for id in free if free[id] >= amount - 1e-6]
            return (min(fitting, key=lambda id: free[id]),) if fitting else _freest(free, 1)
        return _freest(free, math.ceil(amount))

    def _held(self, device: int) -> list[tuple[tuple[GpuId, ...], float]]:
        allocations = []
        for process in self._processes.values():
            if process.actor is None and process.gpu_ids and process.device == device:
                call = next(iter(process.calls.values()), None)
                if call is None and process.to_send:
                    call = process.to_send[0].task
                if call is not None:
                    allocations.append((process.gpu_ids, call.demand.get("GPU", 0.0)))
        for actor in list(self._actors.values()):  # other threads add to it
            if actor.gpu_ids and not actor.dead and actor.device == device:
                allocations.append((actor.gpu_ids, actor.demand["GPU"]))
        return allocations


def _freest(free: Mapping[GpuId, float], number: int) -> tuple[GpuId, ...]:
    """Returns the `number` GPUs of which most is free."""
    order = list(free)
    freest = sorted(order, key=lambda id: -round(free[id], 6))[:number]
    return tuple(sorted(freest, key=order.index))


def _names(number: int) -> list[GpuId]:
    """Returns the names in CUDA_VISIBLE_DEVICES, if it has as many; else 0, 1, ..."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if len(visible) < number or "" in visible:
        return list(range(number))
    return [int(name) if name.isdigit() else name for name in visible[:number]]
