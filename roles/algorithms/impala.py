"""IMPALA: actor-critic with V-trace, which corrects for old experience (Espeholt et al., 2018)."""

from __future__ import annotations

from typing import Any

from gmi_drl.placement import IMPALAConfig
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.returns import vtrace
from gmi_drl.roles.samples.batch import Batch

from .actor_critic import SegmentActorCritic, actor_critic_loss, evaluate
from .algorithm import Losses


def impala_loss(
    network: Any, batch: Batch, values: RunningNormalizer | None, settings: IMPALAConfig
) -> Losses:
    """V-trace actor-critic (Espeholt et al., 2018, section 4.2); means instead of their sums."""
    now, discounts = evaluate(network, batch, values), settings.gamma * (1.0 - batch["done"])
    targets, advantage = vtrace(
        now.log_rho, discounts, batch["reward"], now.unscaled_value[:-1], now.unscaled_value[-1],
        rho_clip=settings.rho_clip, c_clip=settings.c_clip, lam=settings.lam,
    )  # fmt: skip
    return actor_critic_loss(network, now, advantage, targets, values, settings=settings)


class IMPALA(SegmentActorCritic):
    """V-trace actor-critic."""

    Settings = IMPALAConfig
    loss = staticmethod(impala_loss)
