"""What a rollout's rows are trained towards: advantages and returns, the same units on all GMIs."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig

from .clock import Clock
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
        clock: Clock | None = None,
    ) -> None:
        """`clock` gets what the gather takes as "reduce", and what follows as "train"."""
        self._settings, self._normalizer = settings, value_normalizer
        device = rollout.reward.device
        self._clock = clock or Clock(device)
        width = rollout.raw_observation.shape[-1]
        self._bucket = group.bucket("moments", 3 + 3 + 1 + 2 * width, torch.float64, device)
        self._advantage = torch.zeros_like(rollout.reward)

    def fill(self, rollout: Rollout) -> Tensor:
        """The merged moments of the raw observations of all GMIs.

        On a GPU a gather of several GMIs goes through the host and waits for the device; that of
        one alone does not, nor does anything else here.
        """
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
        self._clock.begin("reduce")
        with phase("reduce"):
            everyone = self._bucket.gather()
        self._clock.begin("train")
        advantages = merge_moments(everyone[:, 0:3])
        if self._normalizer is not None:
            self._normalizer.update(merge_moments(everyone[:, 3:6]))
            rollout["value"].copy_(self._normalizer.normalize(value))
            returns = self._normalizer.normalize(returns)
        rollout["ret"].copy_(returns)
        if settings.normalize_advantage:
            count, mean, squares = advantages.unbind()
            advantage = (advantage - mean) / ((squares / count).sqrt() + 1e-8)
        rollout["advantage"].copy_(advantage)
        return merge_moments(everyone[:, 6:])
