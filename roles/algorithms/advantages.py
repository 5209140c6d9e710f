"""Advantages of fresh experience by GAE, for algorithms that train on rows of it: A2C, PG, PPO."""

from __future__ import annotations

import torch
from torch import Tensor

from gmi_drl.roles.policies.normalize import SCALAR_MOMENTS, batch_moments, merge_moments
from gmi_drl.roles.returns import gae, gae_of_turns
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses


class AdvantageActorCritic(Algorithm):
    """Fills `advantage` and `ret` of each row; a subclass has the `loss` of rows.

    Advantages are GAE's, normalised over the experience of all GMIs if the settings say so; values
    are learned in the units of a value normaliser, which learns from the returns of all GMIs first.
    """

    filled = ("advantage", "ret")
    bootstrap = ("value",)
    num_batch_moments = 2 * SCALAR_MOMENTS  # of the advantages, then of the returns
    _advantage = torch.empty(0)  # [T, N], of the last batch that was measured

    def measure(self, batch: Batch, out: Tensor) -> None:
        reward, value = batch["reward"], batch["value"]
        if self._advantage.shape != reward.shape:
            self._advantage = torch.zeros_like(reward)
        gamma, lam, last = self.settings.gamma, self.settings.lam, batch.bootstrap["value"]
        done, advantage = batch["done"], self._advantage
        if (present := batch.columns.get("present")) is None:
            gae(reward, value, done, last, gamma, lam=lam, out=advantage)
        else:
            gae_of_turns(reward, value, done, present, last, gamma, lam=lam, out=advantage)
            present = present.flatten()
        batch_moments(advantage.view(-1, 1), out[:SCALAR_MOMENTS], present)
        batch_moments((advantage + value).view(-1, 1), out[SCALAR_MOMENTS:], present)

    def learn_batch_moments(self, moments: Tensor) -> None:
        if self.normalizers.values is not None:
            self.normalizers.values.update(merge_moments(moments[:, SCALAR_MOMENTS:]))

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        value, advantage, normalizer = batch["value"], self._advantage, self.normalizers.values
        returns = advantage + value
        if normalizer is not None:
            value.copy_(normalizer.normalize(value))
            returns = normalizer.normalize(returns)
        batch["ret"].copy_(returns)
        if self.settings.normalize_advantage:
            count, mean, squares = merge_moments(moments[:, :SCALAR_MOMENTS]).unbind()
            advantage = (advantage - mean) / ((squares / count).sqrt() + 1e-8)
        # Nothing is learned from the rows of absent agents.
        if (present := batch.columns.get("present")) is not None:
            advantage = advantage.masked_fill(~present, 0.0)
        batch["advantage"].copy_(advantage)

    def changed(self, batch: Batch) -> list[Tensor]:
        """Returns the values and the value normaliser's tensors, which change in place."""
        normalizer = self.normalizers.values
        return [batch["value"], *([] if normalizer is None else normalizer.tensors)]

    def losses(self, batch: Batch) -> Losses:
        network, log_std = self.policy.network_for(batch), batch.row_constants["log_std"]
        return self.loss_function(network, batch.rows, batch.row_layout, log_std, self.settings)
