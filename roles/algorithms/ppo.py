"""Proximal policy optimisation (Schulman et al., 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig, PPOConfig
from gmi_drl.roles.samples.batch import RowLayout

from .advantages import AdvantageActorCritic
from .algorithm import Losses
from .terms import weighted_sum


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
        clipped_value = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped_value - ret).square())
    total, terms = weighted_sum(network, params, policy_loss, 0.5 * error.mean(), settings)
    with torch.no_grad():
        kl = dist.kl(rows[:, row_layout.parameters], old_log_std, params, network.log_std)
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
    return Losses(total, {"kl": kl, **terms, "clip_fraction": clip_fraction})


class PPO(AdvantageActorCritic):
    """Several epochs of minibatches on each batch, by the clipped surrogate."""

    Settings: ClassVar[type[AlgorithmConfig]] = PPOConfig
    stats = ("kl", "policy_loss", "value_loss", "entropy", "bounds_loss", "clip_fraction")
    loss = staticmethod(ppo_loss)
