"""What goes wrong on the device, told in the log without waiting for the device."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)
_EVERY = 256  # steps between two looks at a GPU's counts


class Counts:
    """Two counters on the device, added to by the captured step: environment steps that became
    unstable, and ones in which contacts or constraint rows were dropped.

    `look` after every step. On the CPU it reads them; on a GPU it asks for a copy now and then and
    reads that at a later call, when it has arrived. Each is logged the 1st, 2nd, 4th, 8th ... time.
    """

    def __init__(self, env_id: str, room: str, device: torch.device) -> None:
        self.on_device = torch.zeros(2, dtype=torch.int64, device=device)  # unstable, dropped
        self._env_id, self._room = env_id, room
        self._told = [0, 0]
        self._steps = 0
        on_gpu = device.type == "cuda"
        self._copy = torch.zeros(2, dtype=torch.int64, pin_memory=True) if on_gpu else None
        self._arrived: Any = None  # torch.cuda.Event of a copy under way

    def add(self, unstable: Tensor, dropped: Tensor) -> None:
        """Count two masks [N]; no host work beyond the launches."""
        self.on_device += torch.stack([unstable.sum(), dropped.sum()])

    def look(self) -> None:
        if self._copy is None:
            self._tell(self.on_device)
            return
        self._steps += 1
        if self._arrived is None:
            if self._steps % _EVERY == 0:
                self._copy.copy_(self.on_device, non_blocking=True)
                self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._arrived.record()
        elif self._arrived.query():
            self._arrived = None
            self._tell(self._copy)

    def load(self, values: list[int]) -> None:
        """Go on from these counts, of which all has been told."""
        self.on_device.copy_(torch.tensor(values))
        self._told = list(values)

    def _tell(self, counts: Tensor) -> None:
        now: list[int] = counts.tolist()
        unstable, dropped = (
            a.bit_length() > b.bit_length() for a, b in zip(now, self._told, strict=True)
        )
        self._told = now
        if unstable:
            _log.warning(
                "%s: %d environment steps became unstable so far (not finite, or beyond 1e10); "
                "their episodes ended. Make actions smaller or frame_skip lower.",
                self._env_id, now[0],
            )  # fmt: skip
        if dropped:
            _log.warning(
                "%s: in %d environment steps so far, contacts did not all fit and were ignored: "
                "%s",
                self._env_id, now[1], self._room,
            )  # fmt: skip
