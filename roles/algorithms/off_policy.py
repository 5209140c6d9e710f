"""Learning from kept transitions by an actor and critics: what SAC, TD3 and DDPG share.

All losses of an update are computed with the parameters before it, and all parts take their step
together, so that GMIs meet once for each update (as in Acme's learners, Hoffman et al., 2020).
Elsewhere the actor's loss is computed with the critics that have just taken their step.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from gmi_drl.placement import OffPolicyConfig
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.off_policy import ActorWithCritics, ExploringPolicy
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm
from .terms import weighted_mean


class OffPolicy(Algorithm):
    """An actor trained by critics, towards target networks that follow slowly."""

    bootstrap = ()
    recorded = ("next_observation", "terminated")
    segment_fields = ("action", "reward", "done", "terminated", "next_observation")
    replayed = ("raw_observation", "action", "reward", "discount", "next_observation")
    network_class = ActorWithCritics
    network_fault = "it has no actor and no critics"
    parts: tuple[str, ...] = ("actor", "critics")  # of the network, each a parameter group
    followed: ClassVar[tuple[str, ...]] = ("critics",)  # the parts that have a target network
    loss_noise_columns: int = 0  # standard normal numbers that a loss takes for each row
    settings: OffPolicyConfig
    policy: ExploringPolicy

    @property
    def learning_rates(self) -> Mapping[str, float]:
        rates = dict.fromkeys(self.parts, self.settings.learning_rate)
        return rates | {"critics": self.settings.critic_learning_rate or rates["critics"]}

    @cached_property
    def target(self) -> ActorWithCritics:
        """The network that computes targets; copied at the first loss."""
        network: ActorWithCritics = copy.deepcopy(self.policy.network)
        return network.requires_grad_(False)

    @cached_property
    def _followers(self) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the target's parameters and the trained parameters that they follow."""
        networks = (self.target, self.policy.network)
        target, trained = (
            [p.detach() for name in self.followed for p in getattr(network, name).parameters()]
            for network in networks
        )
        return target, trained

    @classmethod
    @abstractmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> ActorWithCritics:
        """Returns the network for the spaces of `env`; EnvSpecError for actions it cannot take."""

    def draw_noise(self, batch: Batch, generator: torch.Generator) -> None:
        if self.loss_noise_columns:
            noise = batch["reward"].new_empty(len(batch["reward"]), self.loss_noise_columns)
            batch.columns["noise"] = noise.normal_(generator=generator)

    def first_priorities(self, batch: Batch) -> Tensor | None:
        torch._foreach_copy_(*self._followers)  # the target of an agent is its network
        return self.losses(batch).extras.get("priorities")

    def before_sampling(self, steps: int) -> None:
        self.policy.at_random.fill_(float(steps < self.settings.random_steps))

    @torch.no_grad()
    def follow(self) -> None:
        """Moves the target networks towards the trained ones by the share `tau`."""
        torch._foreach_lerp_(*self._followers, self.settings.tau)

    def after_step(self, updates: int) -> None:
        self.follow()

    def state_dict(self) -> dict[str, Any]:
        return {"target": dict(self.target.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.target.load_state_dict(state["target"])


def towards(batch: Batch, next_value: Tensor) -> Tensor:
    """Returns the value targets of rows [B], by the values [B] of what followed them."""
    discount = batch["discount"]
    # The last observation of an episode that is over has no value, even if it is NaN.
    next_value = next_value.masked_fill(discount == 0.0, 0.0)
    return torch.addcmul(batch["reward"], discount, next_value)


def critic_loss(values: Tensor, target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns half the mean squared error of the values [critics, B], summed over critics.

    The second is the mean error of each row [B], which is its priority.
    """
    priorities = (values.detach() - target).abs().mean(0)
    if "weight" in batch.columns:
        return weighted_mean(0.5 * (values - target).square().sum(0), batch), priorities
    # The same in half as many operations.
    squared = mse_loss(values, target.expand_as(values), reduction="sum")
    return squared * (0.5 / len(target)), priorities
