"""Asynchronous PPO: the clipped surrogate on segments that agents send (Luo et al., 2020, IMPACT).

Experience is some updates old, and used for several epochs. Values and advantages are V-trace's of
the present policy (Espeholt et al., 2018), and the surrogate is clipped against the policy that
sampled: neither the age of a segment nor a later epoch takes the policy further than `clip`.
"""

from __future__ import annotations

from typing import Any

import torch

from gmi_drl.placement import APPOConfig
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.returns import vtrace
from gmi_drl.roles.samples.batch import Batch

from .actor_critic import SegmentActorCritic, evaluate, segment_losses
from .algorithm import Losses


def appo_loss(
    network: Any, batch: Batch, values: RunningNormalizer | None, settings: APPOConfig
) -> Losses:
    """Clipped surrogate of whole segments, with V-trace's value targets.

    The surrogate's ratio is the importance weight. Advantages are therefore V-trace's without the
    weight in them: r_t + gamma_t v_{t+1} - V_t.
    """
    now, discounts = evaluate(network, batch, values), settings.gamma * (1.0 - batch["done"])
    targets, _ = vtrace(
        now.log_rho, discounts, batch["reward"], now.unscaled_value[:-1], now.unscaled_value[-1],
        rho_clip=settings.rho_clip, c_clip=settings.c_clip, lam=settings.lam,
    )  # fmt: skip
    next_values = torch.cat([targets[1:], now.unscaled_value[-1:]])
    next_values = settings.lam * next_values + (1.0 - settings.lam) * now.unscaled_value[1:]
    advantage = batch["reward"] + discounts * next_values - now.unscaled_value[:-1]
    if values is not None:
        advantage = advantage * values.inv_std
    ratio = (now.log_prob - batch["log_prob"]).exp()
    clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
    policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    return segment_losses(network, now, policy_loss, targets, values, settings)


class APPO(SegmentActorCritic):
    """Several epochs of PPO's surrogate on old experience, corrected by V-trace."""

    Settings = APPOConfig
    loss = staticmethod(appo_loss)
