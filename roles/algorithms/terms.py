"""Has what algorithms share: sums and means of losses, and values kept through normalisation."""

from __future__ import annotations

from typing import Any

from gymnasium import Space
from torch import Tensor

from gmi_drl.placement import ActorCriticConfig
from gmi_drl.roles.policies.distributions import Joint, beyond_bounds
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.samples.batch import Batch


def unfit_actions(space: Space[Any], name: str, taken: str, instead: str = "ppo") -> str:
    """Returns the fault of an action space of which an algorithm `name` takes none but `taken`."""
    return (
        f"env.id: action space {space}; {name} takes {taken}. Use algorithm.name: {instead}, or "
        "wrap it in TransformAction."
    )


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
    total, distribution = policy_loss + settings.value_coef * value_loss, network.distribution
    entropy = distribution.entropy(params, network.log_std)
    if settings.entropy_coef:
        total = total - settings.entropy_coef * entropy
    bounds_loss = value_loss.new_zeros(())
    # A distribution of the user's own need not say whether its means have bounds.
    if settings.bounds_coef and getattr(distribution, "bounded", network.log_std.numel() > 0):
        is_joint = isinstance(distribution, Joint)
        bounds_loss = beyond_bounds(distribution.means(params) if is_joint else params)
        total = total + settings.bounds_coef * bounds_loss
    return total, {
        "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
        "bounds_loss": bounds_loss,
    }  # fmt: skip


def weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """Returns the mean of rows' losses [B], each times its `weight` if the batch has that column.

    These are importance sampling weights [B] of a replay that does not draw all rows equally often.
    """
    weight = batch.columns.get("weight")
    return losses.mean() if weight is None else (losses * weight).mean()


def learn_values(network: Any, values: RunningNormalizer, moments: Tensor) -> None:
    """Merges `moments` [3] of value targets into `values`, and changes the network's head with it.

    Values stay what they were (van Hasselt et al., 2016, "PopArt"). Otherwise targets that are made
    of values grow with their own deviation, and a network that takes few steps does not keep up.
    """
    mean, inv_std = values.mean.clone(), values.inv_std.clone()
    values.update(moments)
    network.map_value(values.inv_std / inv_std, (mean - values.mean) * values.inv_std)
