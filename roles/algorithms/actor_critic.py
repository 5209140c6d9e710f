"""The actor-critic loss on whole segments, which IMPALA, APPO and A3C share.

They differ in the targets and the weights of the policy gradient. Values are in the value
normaliser's units inside the network, and so are advantages in the loss (Hessel et al., 2019,
"PopArt" in IMPALA): the scale of the rewards does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gmi_drl.placement import ActorCriticConfig
from gmi_drl.roles.policies.normalize import (
    SCALAR_MOMENTS,
    Normalizers,
    RunningNormalizer,
    batch_moments,
    merge_moments,
)
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses
from .terms import learn_values, weighted_sum


@dataclass(frozen=True)
class SegmentEvaluation:
    """The present policy on whole segments."""

    params: Tensor  # [T, B, P]
    value: Tensor  # [T, B] as the network gives it: in the normaliser's units
    log_prob: Tensor  # [T, B] of the actions taken
    log_rho: Tensor  # [T, B] log of policy / behaviour, without a gradient
    unscaled_value: Tensor  # [T + 1, B] value in the rewards' units, without a gradient


def evaluate(network: Any, batch: Batch, values: RunningNormalizer | None) -> SegmentEvaluation:
    """Evaluate `network` on segments with the last observations in row T."""
    head = network(batch["observations"])
    params, value = head[:-1, :, :-1], head[..., -1]
    log_prob = network.distribution.log_prob(params, network.log_std, batch["action"])
    unscaled_value = value.detach()
    if values is not None:
        unscaled_value = values.denormalize(unscaled_value)
    log_rho = log_prob.detach() - batch["log_prob"]
    return SegmentEvaluation(params, value[:-1], log_prob, log_rho, unscaled_value)


def actor_critic_loss(
    network: Any,
    now: SegmentEvaluation,
    advantage: Tensor,
    targets: Tensor,
    values: RunningNormalizer | None,
    settings: ActorCriticConfig,
) -> Losses:
    """The loss for `advantage` and value `targets` [T, B], both in the rewards' units."""
    if values is not None:
        advantage = advantage * values.inv_std
    policy_loss = -(advantage * now.log_prob).mean()
    return segment_losses(network, now, policy_loss, targets, values, settings)


def segment_losses(
    network: Any,
    now: SegmentEvaluation,
    policy_loss: Tensor,
    targets: Tensor,
    values: RunningNormalizer | None,
    settings: ActorCriticConfig,
) -> Losses:
    """The loss of a policy's loss and value `targets` [T, B] in the rewards' units."""
    value_targets = targets if values is None else values.normalize(targets)
    value_loss = 0.5 * (now.value - value_targets).square().mean()
    total, terms = weighted_sum(network, now.params, policy_loss, value_loss, settings)
    stats = {
        "kl": -now.log_rho.mean(),  # estimate of KL(behaviour || policy): how old it is
        "rho": now.log_rho.clamp(max=0.0).exp().mean(),  # 1 is on-policy
        **terms,
    }
    return Losses(total, stats, extras={"targets": targets})


class SegmentActorCritic(Algorithm):
    """Actor-critic on whole segments; a subclass has the `loss`."""

    stats = ("kl", "rho", "policy_loss", "value_loss", "entropy", "bounds_loss")
    whole_segments = True
    capturable = False  # segments are prepared anew each time, in new memory

    def __init__(
        self, settings: Any, policy: Any, normalizers: Normalizers, loss: Any = None
    ) -> None:
        super().__init__(settings, policy, normalizers, loss)
        # Of the value targets.
        self.num_update_moments = 0 if normalizers.values is None else SCALAR_MOMENTS

    def losses(self, batch: Batch) -> Losses:
        values = self.normalizers.values
        return self.loss_function(self.policy.network_for(batch), batch, values, self.settings)

    def measure_update(self, first_epoch: Sequence[Losses], out: Tensor) -> None:
        targets = torch.cat([losses.extras["targets"] for losses in first_epoch], 1)
        batch_moments(targets.reshape(-1, 1), out)

    def learn_moments(self, moments: Tensor) -> None:
        assert self.normalizers.values is not None
        learn_values(self.policy.network, self.normalizers.values, merge_moments(moments))
