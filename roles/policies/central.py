"""Values actions by the observations of all agents, and acts by each agent's own (MAPPO).

N = A E rows, of A agents in E environments, those of an agent side by side (`envs.agents`); D =
numbers that one agent sees; P = parameters of the distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .actor_critic import GAIN_OF_ACTIONS, ActorCriticPolicy, named
from .distributions import Distribution
from .trunk import HiddenLayers, orthogonal_

if TYPE_CHECKING:
    from gmi_drl.roles.samples.batch import Batch


class CentralActorCritic(nn.Module):
    """The network of agents that share a policy, with a value of the observations of all.

    `forward` takes normalised observations [N, D] of all agents and returns [N, P + 1], as an
    `ActorCritic` does. An agent's value is computed from its own observation and then those of the
    others, in their order.
    """

    def __init__(
        self,
        width: int,
        agents: int,
        distribution: Distribution,
        trunks: tuple[HiddenLayers, HiddenLayers],
        init_log_std: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """`width`: D; `trunks`: of what an agent sees [D], and of what all see [A D]."""
        super().__init__()
        self.agents, self.joint_width = agents, agents * width
        self.distribution = distribution
        self.actor, self.critic = trunks
        self.action_head = nn.Linear(self.actor.features, distribution.parameters)
        self.value_head = nn.Linear(self.critic.features, 1)
        self.log_std = nn.Parameter(torch.full((distribution.deviations,), init_log_std))
        for trunk in trunks:
            trunk.initialise(generator)
        orthogonal_(self.action_head, GAIN_OF_ACTIONS, generator)
        orthogonal_(self.value_head, 1.0, generator)

    def describe(self) -> dict[str, Any]:
        """Returns what its parameters' names and shapes do not say."""
        return {"agents": self.agents, "distribution": named(self.distribution)}

    def joint(self, observation: Tensor) -> Tensor:
        """Returns the observations of all agents for each of them [N, A D], its own first."""
        by_agent = observation.view(self.agents, -1, observation.shape[-1])
        rotated = [by_agent.roll(-number, 0) for number in range(self.agents)]
        return torch.cat(rotated, -1).view(len(observation), -1)

    def heads(self, observation: Tensor, joint: Tensor) -> Tensor:
        """Returns [B, P + 1] for rows and the observations `joint` [B, A D] of all agents."""
        return torch.cat([self.parameters_of(observation), self.value_head(self.critic(joint))], -1)

    def parameters_of(self, observation: Tensor) -> Tensor:
        """Returns the parameters [B, P] of the distribution of what agents do."""
        parameters: Tensor = self.action_head(self.actor(observation))
        return parameters

    def forward(self, observation: Tensor) -> Tensor:
        return self.heads(observation, self.joint(observation))

    @torch.no_grad()
    def map_value(self, scale: Tensor, shift: Tensor) -> None:
        """Changes the head so that each value becomes `scale` * value + `shift`."""
        self.value_head.weight.mul_(scale)
        self.value_head.bias.mul_(scale).add_(shift)


class CentralPolicy(ActorCriticPolicy):
    """Acts by a `CentralActorCritic`; the joint observation is a column, for the value's loss."""

    values_all_rows = True

    def __init__(self, network: CentralActorCritic) -> None:
        super().__init__(network)
        self.columns = {**self.columns, "joint": network.joint_width}

    def network_for(self, batch: Batch) -> _RowNetwork:
        return _RowNetwork(self.network, batch["joint"])

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        joint = self.network.joint(step["observation"])
        step["joint"].copy_(joint)
        step["head"].copy_(self.network.heads(step["observation"], joint))
        return self.distribution.sample(step["parameters"], step["noise"], step["action"])

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        return self.distribution.mode(self.network.parameters_of(observation))


class _RowNetwork:
    """The network for the rows of a minibatch, together with their joint observations."""

    def __init__(self, network: CentralActorCritic, joint: Tensor) -> None:
        self._network, self._joint = network, joint
        self.distribution, self.log_std = network.distribution, network.log_std

    def __call__(self, observation: Tensor) -> Tensor:
        return self._network.heads(observation, self._joint)
