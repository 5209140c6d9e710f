"""Returns and lengths of finished episodes."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class EpisodeStats:
    """Follows N environments and keeps what the episodes that ended brought.

    Returns are undiscounted and unscaled, as the environment pays them.
    """

    def __init__(self, num_env: int) -> None:
        self._return = torch.zeros(num_env)
        self._length = torch.zeros(num_env)
        self._finished: deque[tuple[float, float]] = deque()

    def add(self, reward: Tensor, done: Tensor) -> bool:
        """Count one step, [N] each; True if an episode ended with it."""
        self._return += reward if reward.is_cpu else reward.cpu()
        self._length += 1
        if not done.any():
            return False
        for i in done.nonzero().squeeze(-1).tolist():
            self._finished.append((float(self._return[i]), float(self._length[i])))
            self._return[i] = 0
            self._length[i] = 0
        return True

    def drain(self) -> list[tuple[float, float]]:
        """(return, length) of the episodes that ended since the last call."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    def state_dict(self) -> dict[str, Tensor]:
        return {"return": self._return.clone(), "length": self._length.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._return.copy_(state["return"])
        self._length.copy_(state["length"])
