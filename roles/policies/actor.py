"""Acting greedily with a policy that does not change: what serving and evaluation do."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.roles.graphs import Graph, Pool

from .normalize import RunningNormalizer
from .policy import Policy


class GreedyActor:
    """Acts in its most likely way with a policy that does not change."""

    def __init__(self, policy: Policy, normalizer: RunningNormalizer | None) -> None:
        self._policy, self._normalizer = policy, normalizer

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The policy's action rows [N, A] for raw observations [N, D]."""
        seen = observation.to(torch.float32)  # images are bytes
        if self._normalizer is not None:
            seen = self._normalizer.normalize(seen)
        return self._policy.mode(seen)


class CapturedActor(GreedyActor):
    """Acts as a `GreedyActor` does, by a CUDA graph for each shape of observations.

    It is captured when the shape first comes. Actions are this object's own, until the next ones
    for observations of that shape.
    """

    def __init__(self, policy: Policy, normalizer: RunningNormalizer | None, pool: Pool) -> None:
        super().__init__(policy, normalizer)
        self._pool = pool
        self._held: dict[torch.Size, tuple[Tensor, Tensor, Graph]] = {}

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        if observation.shape not in self._held:
            self._held[observation.shape] = self._capture(observation)
        seen, action, graph = self._held[observation.shape]
        seen.copy_(observation)
        graph()
        return action

    def _capture(self, observation: Tensor) -> tuple[Tensor, Tensor, Graph]:
        seen, action = observation.clone(), super().act(observation).clone()
        act = super().act

        def work() -> None:
            action.copy_(act(seen))

        return seen, action, Graph(work, seen.device, pool=self._pool, name="acting")
