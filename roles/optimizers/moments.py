"""Moments that all trainers share once an update: each writes its own, all get everyone's."""

from __future__ import annotations

import torch

from gmi_drl.comm import Group


class SharedMoments:
    """A bucket of `numel` float64 numbers: `mine` [numel] to write, `everyone` [k, numel] to read.

    `by_sum`: on a GPU they are gathered by adding up zeros, everywhere but in one's own row, as
    strategy ipc can reduce without the host, and gathers through it.
    """

    def __init__(self, group: Group, numel: int, device: torch.device, by_sum: bool) -> None:
        self._by_sum = by_sum and group.size > 1
        rows = group.size if self._by_sum else 1
        self._bucket = group.bucket("moments", rows * numel, torch.float64, device)
        if self._by_sum:
            self.mine = self._bucket.buffer.view(rows, numel)[group.rank]
            self.everyone = self._bucket.result.view(rows, numel)
        else:
            self.mine = self._bucket.buffer
            self.everyone = torch.zeros(group.size, numel, dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Clears `mine`; to be called before it is written."""
        if self._by_sum:
            self._bucket.buffer.zero_()

    def gather(self) -> None:
        """Fill `everyone`; collective."""
        if self._by_sum:
            self._bucket.reduce("sum")
        else:
            self.everyone.copy_(self._bucket.gather())
