"""What a rollout's rows are trained towards: advantages and returns, the same units on all GMIs."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig

from .gae import gae
from .normalize import RunningNormalizer, batch_moments, merge_moments
from .phases import phase
from .rollout import Rollout


class Targets:
    """Fills the advantage, return and value columns of a rollout; one gather with all GMIs.

    Advantages are normalised by the mean and deviation over the experience of all GMIs, returns
    and values by the value normaliser, which learns from the returns of all GMIs first.
    """

    def __init__(
        self,
        rollout: Rollout,
        settings: AlgorithmConfig,
        value_normalizer: RunningNormalizer | None,
        group: Group,
    ) -> None:
        self._settings, self._normalizer = settings, value_normalizer
        width = rollout.raw_observation.shape[-1]
        self._bucket = group.bucket("moments", 3 + 3 + 1 + 2 * width, torch.float64)
        self._advantage = torch.zeros_like(rollout.reward)

    def fill(self, rollout: Rollout) -> tuple[Tensor, float]:
        """The merged moments of the raw observations of all GMIs, and the seconds waited."""
        settings, value = self._settings, rollout["value"]
        advantage = gae(
            rollout.reward,
            value,
            rollout.done,
            rollout.last_value,
            settings.gamma,
            settings.lam,
            self._advantage,
        )
        returns = advantage + value
        mine = self._bucket.buffer
        batch_moments(advantage.view(-1, 1), mine[0:3])
        batch_moments(returns.view(-1, 1), mine[3:6])
        batch_moments(rollout.raw_observation.flatten(0, 1), mine[6:])
        start = perf_counter()
        with phase("reduce"):
            everyone = self._bucket.gather()
        waited = perf_counter() - start
        advantages = merge_moments(everyone[:, 0:3])
        if self._normalizer is not None:
            self._normalizer.update(merge_moments(everyone[:, 3:6]))
            rollout["value"].copy_(self._normalizer.normalize(value))
            returns = self._normalizer.normalize(returns)
        rollout["ret"].copy_(returns)
        if settings.normalize_advantage:
            count, mean, squares = advantages.tolist()
            advantage = (advantage - mean) / ((squares / count) ** 0.5 + 1e-8)
        rollout["advantage"].copy_(advantage)
        return merge_moments(everyone[:, 6:]), waited
