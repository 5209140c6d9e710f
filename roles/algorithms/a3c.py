"""A3C's loss: advantage actor-critic without correction for old experience (Mnih et al., 2016)."""

from __future__ import annotations

from typing import Any

import torch

from gmi_drl.placement import A3CConfig
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.returns import gae
from gmi_drl.roles.samples.batch import Batch

from .actor_critic import SegmentActorCritic, actor_critic_loss, evaluate
from .algorithm import Losses


def a3c_loss(
    network: Any, batch: Batch, values: RunningNormalizer | None, settings: A3CConfig
) -> Losses:
    """Advantage actor-critic: experience is taken as the policy's own.

    With lam = 1 the targets are the n-step returns of the segment, as in the paper; below, GAE's.
    """
    now, gamma, lam = evaluate(network, batch, values), settings.gamma, settings.lam
    reward, done, out = batch["reward"], batch["done"], torch.empty_like(batch["reward"])
    advantage = gae(reward, now.worth[:-1], done, now.worth[-1], gamma, lam=lam, out=out)
    targets = advantage + now.worth[:-1]
    return actor_critic_loss(network, now, advantage, targets, values, settings=settings)


class A3C(SegmentActorCritic):
    """Advantage actor-critic."""

    Settings = A3CConfig
    loss = staticmethod(a3c_loss)
