"""What a rollout's rows are trained towards: advantages and returns, the same units on all GMIs."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.graphs import Pool, static_on
from gmi_drl.roles.optimizers.together import Together
from gmi_drl.roles.policies.normalize import RunningNormalizer, batch_moments, merge_moments
from gmi_drl.roles.samples.rollout import Rollout
from gmi_drl.roles.telemetry.clock import Clock

from .gae import gae


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
        clock: Clock | None = None,
        pool: Pool | None = None,
        static: bool | None = None,
    ) -> None:
        """`clock` gets what the gather takes as "reduce", and what follows as "train".

        `static`: the way of a GPU, wherever the rollout is (None: on all devices but the CPU).
        `pool`: where that way's work is captured, when it is first done after `connect`; None:
        nowhere.
        """
        self._rollout, self._settings, self._normalizer = rollout, settings, value_normalizer
        self._clock, self._pool = clock or Clock(rollout.reward.device), pool
        self._static = static_on(rollout.reward.device, static)
        self._advantage = torch.zeros_like(rollout.reward)
        self._together: Together | None = None

    def connect(self, group: Group) -> None:
        """Make the bucket that moments are gathered in; again after the group was re-formed."""
        self.close()
        device, width = self._advantage.device, self._rollout.raw_observation.shape[-1]
        numel = 3 + 3 + 1 + 2 * width
        # On a GPU the moments are gathered by adding up zeros, everywhere but in one's own row:
        # strategy ipc can reduce without the host, and gathers through it.
        self._by_sum = self._static and group.size > 1
        rows = group.size if self._by_sum else 1
        self._bucket = group.bucket("moments", rows * numel, torch.float64, device)
        if self._by_sum:
            self._mine = self._bucket.buffer.view(rows, numel)[group.rank]
            self._everyone = self._bucket.result.view(rows, numel)
        else:
            self._mine = self._bucket.buffer
            self._everyone = torch.zeros(group.size, numel, dtype=torch.float64, device=device)
        self._seen = torch.zeros(1 + 2 * width, dtype=torch.float64, device=device)
        learned = [] if self._normalizer is None else self._normalizer.tensors
        self._together = Together(
            self._measure,
            self._gather,
            self._normalize,
            alone=group.size == 1,
            keep=[self._rollout["value"], *learned],
            clock=self._clock,
            pool=self._pool,
            name="what a rollout is trained towards",
        )

    def fill(self) -> Tensor:
        """The merged moments of the raw observations of all GMIs, good until the next call.

        On a GPU it waits for nothing but the other GMIs, once it is captured; a reduction through
        the host waits for the device.
        """
        assert self._together is not None
        self._together()
        return self._seen

    def close(self) -> None:
        """Let captured work go; it waits for what is queued."""
        if self._together is not None:
            self._together.close()

    def _measure(self) -> None:
        rollout, settings, value = self._rollout, self._settings, self._rollout["value"]
        advantage = gae(
            rollout.reward,
            value,
            rollout.done,
            rollout.last_value,
            settings.gamma,
            settings.lam,
            self._advantage,
        )
        mine = self._mine
        if self._by_sum:
            self._bucket.buffer.zero_()
        batch_moments(advantage.view(-1, 1), mine[0:3])
        batch_moments((advantage + value).view(-1, 1), mine[3:6])
        batch_moments(rollout.raw_observation.flatten(0, 1), mine[6:])

    def _gather(self) -> None:
        if self._by_sum:
            self._bucket.reduce("sum")
        else:
            self._everyone.copy_(self._bucket.gather())

    def _normalize(self) -> None:
        rollout, value, everyone = self._rollout, self._rollout["value"], self._everyone
        advantage = self._advantage
        returns = advantage + value
        if self._normalizer is not None:
            self._normalizer.update(merge_moments(everyone[:, 3:6]))
            value.copy_(self._normalizer.normalize(value))
            returns = self._normalizer.normalize(returns)
        rollout["ret"].copy_(returns)
        if self._settings.normalize_advantage:
            count, mean, squares = merge_moments(everyone[:, 0:3]).unbind()
            advantage = (advantage - mean) / ((squares / count).sqrt() + 1e-8)
        rollout["advantage"].copy_(advantage)
        self._seen.copy_(merge_moments(everyone[:, 6:]))
