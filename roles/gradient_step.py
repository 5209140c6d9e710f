"""One step of gradient descent that all trainers take together: reduce, clip, Adam.

The gradient and the parts of a minibatch's loss travel in one bucket: one reduction a minibatch,
after which every rank holds the same numbers and takes the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig

from .errors import DivergedError
from .phases import phase
from .policy import FlatParameters


class GradientStep:
    """The flat parameters of a policy, their optimizer, and the bucket of their gradient.

    `tail` names the parts of a loss that are reported; the first is given to `take`'s hook.
    """

    def __init__(self, policy: nn.Module, tail: Sequence[str], settings: AlgorithmConfig) -> None:
        self._tail, self._max_norm = tuple(tail), settings.max_grad_norm
        self.parameters = FlatParameters(policy)
        self._gradient = torch.zeros_like(self.parameters.data)
        self.parameters.data.grad = self._gradient
        self.optimizer = torch.optim.Adam(
            [self.parameters.data], lr=settings.learning_rate, eps=1e-5, fused=True
        )
        self._totals, self._steps = self._gradient.new_zeros(len(self._tail)), 0

    def connect(self, group: Group) -> None:
        """Make the bucket that gradients are reduced in; again after the group was re-formed."""
        n, device = self.parameters.numel, self.parameters.data.device
        # Autograd accumulates straight into the memory that is reduced.
        self._reducer = group.bucket("gradient", n + len(self._tail), torch.float32, device)
        self._local = self._reducer.buffer
        self.parameters.bind_gradients(self._local)
        self._totals.zero_()  # of an update that the re-forming cut short
        self._steps = 0

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.optimizer.param_groups[0]["lr"] = value

    def take(self, parts: Any, before: Callable[[float], None] | None = None) -> float:
        """One step down the mean over all ranks of `parts.total`; collective.

        `before` is called with the mean of the tail's first part, ahead of the optimizer. Returns
        the seconds spent in the reduction.
        """
        local, n = self._local, self.parameters.numel
        local.zero_()
        torch.autograd.backward(parts.total)
        with torch.no_grad():
            torch.stack([getattr(parts, name) for name in self._tail], out=local[n:])
            start = perf_counter()
            with phase("reduce"):
                result = self._reducer.reduce("mean")
            waited = perf_counter() - start
            if before is not None:
                before(float(result[n]))
            # `result` is shared and read-only: clip into a gradient of our own.
            scale = 1.0
            if self._max_norm:
                norm = float(torch.linalg.vector_norm(result[:n]))
                scale = min(1.0, self._max_norm / (norm + 1e-6))
            self._gradient.copy_(result[:n]).mul_(scale)
            self.optimizer.step()
            self._totals += result[n:]
            self._steps += 1
        return waited

    def means(self) -> dict[str, float]:
        """Means of the tail over all ranks and the steps since the last call.

        DivergedError, on every rank alike, if one is not finite.
        """
        means = (self._totals / self._steps).tolist()
        stats = dict(zip(self._tail, means, strict=True))
        self._totals.zero_()
        self._steps = 0
        if not all(math.isfinite(mean) for mean in means):
            raise DivergedError(stats)
        return stats
