"""Advantage actor-critic: one step down the policy gradient a batch (Mnih et al., 2016).

The synchronous form of A3C. It is PPO with one epoch of one minibatch and no clipping, as the
ratio's gradient there is that of the log-probability (Huang et al., 2022, "A2C is a special case of
PPO").
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from gmi_drl.placement import A2CConfig, AlgorithmConfig
from gmi_drl.roles.policies.normalize import SCALAR_MOMENTS, merge_moments
from gmi_drl.roles.samples.batch import Batch, RowLayout

from .advantages import AdvantageActorCritic
from .algorithm import Losses
from .terms import learn_values, weighted_sum


def a2c_loss(
    network: Any, rows: Tensor, row_layout: RowLayout, old_log_std: Tensor, settings: A2CConfig
) -> Losses:
    """Policy gradient, squared error of the value, entropy and bounds loss of rows [B, width].

    Values and returns in the rows are in the value normaliser's units. `old_log_std` is not used:
    the rows are of the policy as it is.
    """
    head = network(rows[:, row_layout.observation])
    params, value = head[:, :-1], head[:, -1]
    log_prob = network.distribution.log_prob(params, network.log_std, rows[:, row_layout.action])
    policy_loss = -(rows[:, row_layout.advantage] * log_prob).mean()
    value_loss = 0.5 * (value - rows[:, row_layout.ret]).square().mean()
    return Losses(*weighted_sum(network, params, policy_loss, value_loss, settings))


class A2C(AdvantageActorCritic):
    """One step down the policy gradient for each batch."""

    Settings: ClassVar[type[AlgorithmConfig]] = A2CConfig
    stats = ("policy_loss", "value_loss", "entropy", "bounds_loss")
    changes_parameters = True
    loss = staticmethod(a2c_loss)

    def learn_batch_moments(self, moments: Tensor) -> None:
        values = self.normalizers.values
        if values is not None:
            returns = merge_moments(moments[:, SCALAR_MOMENTS:])
            learn_values(self.policy.network, values, returns)

    def changed(self, batch: Batch) -> list[Tensor]:
        """Returns the parameters too: the head follows the value normaliser."""
        parameters = [parameter.detach() for parameter in self.policy.network.parameters()]
        return [*super().changed(batch), *parameters]
