"""Logs what goes wrong on the device without waiting for the device."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)
_EVERY = 256  # steps between two looks at a GPU's counts


class FaultCounters:
    """Counts on the device the steps that became unstable, and those that dropped contacts.

    The captured step adds to them. Call `poll` after every step: on the CPU it reads them; on a GPU
    it asks for a copy now and then and reads that at a later call, when it has arrived. Each is
    logged the 1st, 2nd, 4th, 8th ... time.
    """

    def __init__(self, env_id: str, room: str, device: torch.device) -> None:
        self.on_device = torch.zeros(2, dtype=torch.int64, device=device)  # unstable, dropped
        self._env_id, self._room = env_id, room
        self._logged = [0, 0]
        self._steps = 0
        on_gpu = device.type == "cuda"
        self._copy = torch.zeros(2, dtype=torch.int64, pin_memory=True) if on_gpu else None
        self._copied: Any = None  # torch.cuda.Event of a copy under way

    def add(self, unstable: Tensor, dropped: Tensor) -> None:
        """Counts two masks [N]; no host work beyond the launches."""
        self.on_device += torch.stack([unstable.sum(), dropped.sum()])

    def poll(self) -> None:
        if self._copy is None:
            self._log_new(self.on_device)
            return
        self._steps += 1
        if self._copied is None:
            if self._steps % _EVERY == 0:
                self._copy.copy_(self.on_device, non_blocking=True)
                self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._copied.record()
        elif self._copied.query():
            self._copied = None
            self._log_new(self._copy)

    def load(self, values: list[int]) -> None:
        """Goes on from these counts, of which all has been logged."""
        self.on_device.copy_(torch.tensor(values))
        self._logged = list(values)

    def _log_new(self, counts: Tensor) -> None:
        totals: list[int] = counts.tolist()
        unstable, dropped = (
            a.bit_length() > b.bit_length() for a, b in zip(totals, self._logged, strict=True)
        )
        self._logged = totals
        if unstable:
            _log.warning(
                "%s: %d environment steps became unstable so far (not finite, or beyond 1e10); "
                "their episodes ended. Make actions smaller or frame_skip lower.",
                self._env_id, totals[0],
            )  # fmt: skip
        if dropped:
            _log.warning(
                "%s: in %d environment steps so far, contacts did not all fit and were ignored: "
                "%s",
                self._env_id, totals[1], self._room,
            )  # fmt: skip
