"""Proximal policy optimisation (Schulman et al., 2017).

Advantages are GAE's, normalised over the experience of all GMIs; values are learned in the units of
a value normaliser, which learns from the returns of all GMIs first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gmi_drl.placement import PPOConfig
from gmi_drl.roles.policies.distributions import beyond_bounds
from gmi_drl.roles.policies.normalize import (
    SCALAR_MOMENTS,
    Normalizers,
    batch_moments,
    merge_moments,
)
from gmi_drl.roles.returns import gae
from gmi_drl.roles.samples.batch import Batch, RowLayout

from .algorithm import Algorithm, Losses


def ppo_loss(
    network: Any, rows: Tensor, row_layout: RowLayout, old_log_std: Tensor, settings: PPOConfig
) -> Losses:
    """Clipped surrogate, clipped value loss, entropy and bounds loss of rows [B, width].

    Values and returns in the rows are in the value normaliser's units, advantages normalised.
    """
    dist, clip = network.distribution, settings.clip
    head = network(rows[:, row_layout.observation])
    params, value = head[:, :-1], head[:, -1]

    log_ratio = dist.log_prob(params, network.log_std, rows[:, row_layout.action])
    log_ratio = log_ratio - rows[:, row_layout.log_prob]
    ratio = log_ratio.exp()
    advantage = rows[:, row_layout.advantage]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    policy_loss = -surrogate.mean()

    ret, old_value = rows[:, row_layout.ret], rows[:, row_layout.value]
    error = (value - ret).square()
    if settings.clip_value_loss:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - ret).square())
    value_loss = 0.5 * error.mean()

    total = policy_loss + settings.value_coef * value_loss
    entropy = dist.entropy(params, network.log_std)
    if settings.entropy_coef:
        total = total - settings.entropy_coef * entropy
    bounds_loss = value_loss.new_zeros(())
    if settings.bounds_coef and network.log_std.numel():
        bounds_loss = beyond_bounds(params)
        total = total + settings.bounds_coef * bounds_loss
    with torch.no_grad():
        kl = dist.kl(rows[:, row_layout.parameters], old_log_std, params, network.log_std)
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
    stats = {
        "kl": kl, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
        "bounds_loss": bounds_loss, "clip_fraction": clip_fraction,
    }  # fmt: skip
    return Losses(total, stats)


class PPO(Algorithm):
    """Several epochs of minibatches on each batch, by the clipped surrogate."""

    Settings = PPOConfig
    stats = ("kl", "policy_loss", "value_loss", "entropy", "bounds_loss", "clip_fraction")
    filled = ("advantage", "ret")
    bootstrap = ("value",)
    num_batch_moments = 2 * SCALAR_MOMENTS  # of the advantages, then of the returns
    loss = staticmethod(ppo_loss)

    def __init__(
        self, settings: PPOConfig, policy: Any, normalizers: Normalizers, loss: Any = None
    ) -> None:
        super().__init__(settings, policy, normalizers, loss)
        self._advantage = torch.empty(0)

    def measure(self, batch: Batch, out: Tensor) -> None:
        reward, value = batch["reward"], batch["value"]
        if self._advantage.shape != reward.shape:
            self._advantage = torch.zeros_like(reward)
        gamma, lam, last = self.settings.gamma, self.settings.lam, batch.bootstrap["value"]
        advantage = gae(reward, value, batch["done"], last, gamma, lam=lam, out=self._advantage)
        batch_moments(advantage.view(-1, 1), out[:SCALAR_MOMENTS])
        batch_moments((advantage + value).view(-1, 1), out[SCALAR_MOMENTS:])

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        value, advantage, normalizer = batch["value"], self._advantage, self.normalizers.values
        returns = advantage + value
        if normalizer is not None:
            normalizer.update(merge_moments(moments[:, SCALAR_MOMENTS:]))
            value.copy_(normalizer.normalize(value))
            returns = normalizer.normalize(returns)
        batch["ret"].copy_(returns)
        if self.settings.normalize_advantage:
            count, mean, squares = merge_moments(moments[:, :SCALAR_MOMENTS]).unbind()
            advantage = (advantage - mean) / ((squares / count).sqrt() + 1e-8)
        batch["advantage"].copy_(advantage)

    def changed(self, batch: Batch) -> list[Tensor]:
        """Returns the values and the value normaliser, which `postprocess` renews in place."""
        normalizer = self.normalizers.values
        return [batch["value"], *([] if normalizer is None else normalizer.tensors)]

    def losses(self, batch: Batch) -> Losses:
        network, log_std = self.policy.network, batch.row_constants["log_std"]
        return self.loss_function(network, batch.rows, batch.row_layout, log_std, self.settings)
