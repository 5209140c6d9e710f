"""Sums up what every actor-critic loss is made of: policy, value, entropy, and means in bounds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gmi_drl.placement import ActorCriticConfig
from gmi_drl.roles.policies.distributions import beyond_bounds


def weighted_sum(
    network: Any,
    params: Tensor,
    policy_loss: Tensor,
    value_loss: Tensor,
    settings: ActorCriticConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss to descend, by the weights of `settings`, and its parts by name.

    `params`: the distribution parameters [..., P] that the network gives for the minibatch.
    """
    total = policy_loss + settings.value_coef * value_loss
    entropy = network.distribution.entropy(params, network.log_std)
    if settings.entropy_coef:
        total = total - settings.entropy_coef * entropy
    bounds_loss = value_loss.new_zeros(())
    if settings.bounds_coef and network.log_std.numel():
        bounds_loss = beyond_bounds(params)
        total = total + settings.bounds_coef * bounds_loss
    return total, {
        "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
        "bounds_loss": bounds_loss,
    }  # fmt: skip
