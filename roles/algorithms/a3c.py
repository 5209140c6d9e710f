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
    now = evaluate(network, batch, values)
    advantage = gae(
        batch["reward"],
        now.worth[:-1],
        batch["done"],
        now.worth[-1],
        gamma=settings.gamma,
        lam=settings.lam,
        out=torch.empty_like(batch["reward"]),
    )
    return actor_critic_loss(
        network,
        now,
        advantage=advantage,
        targets=advantage + now.worth[:-1],
        values=values,
        settings=settings,
    )


class A3C(SegmentActorCritic):
    """Advantage actor-critic."""

    loss = staticmethod(a3c_loss)
