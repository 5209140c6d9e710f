"""Gives an agent's steps priorities before a trainer has drawn them (Horgan et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.placement import ReplayConfig
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import Storage, checked_priorities


class FirstPriorities:
    """Values an agent's steps as a trainer does, by the policy that the agent has."""

    def __init__(
        self,
        algorithm: Algorithm,
        batch: Batch,
        generator: torch.Generator,
        stacking: Stacking | None = None,
    ) -> None:
        """`batch`: the one that steps are collected in; `generator`: of the noise of losses."""
        settings, shape = algorithm.settings, batch["reward"].shape
        self._algorithm, self._generator = algorithm, generator
        self._storage = Storage(
            batch, algorithm.replayed, shape.numel(), generator.device, n_step=settings.n_step,
            gamma=settings.gamma, bootstrap_time_limit=settings.bootstrap_time_limit,
            stacking=stacking,
        )  # fmt: skip
        self.priorities = torch.zeros(shape, device=generator.device)  # [T, N], of the last batch

    @classmethod
    def wanted(
        cls,
        algorithm: Algorithm,
        batch: Batch,
        generator: torch.Generator,
        stacking: Stacking | None = None,
    ) -> FirstPriorities | None:
        """Returns them where a replay draws by priorities and the algorithm gives first ones."""
        settings = algorithm.settings
        if not isinstance(settings, ReplayConfig) or settings.sampler != "prioritized":
            return None
        # Hindsight changes the goals of steps, and with them what they are worth.
        has_first_priorities = type(algorithm).first_priorities is not Algorithm.first_priorities
        # Sequences have the greatest priority so far.
        if settings.hindsight or not has_first_priorities or batch.sequences is not None:
            return None
        return cls(algorithm, batch, generator, stacking)

    @torch.no_grad()
    def of(self, batch: Batch) -> Tensor:
        """Returns the `priorities` of a batch; sums of rewards end with it."""
        storage = self._storage
        storage.clear()
        storage.put(batch)
        rows = storage.gather(torch.arange(len(storage), device=storage.device))
        minibatch = rows.transitions(self._algorithm.normalizers.observations)
        self._algorithm.draw_noise(minibatch, self._generator)
        priorities = checked_priorities(self._algorithm.first_priorities(minibatch), len(storage))
        return self.priorities.copy_(priorities.view_as(self.priorities))
