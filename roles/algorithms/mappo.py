"""Multi-agent PPO: agents act by what each sees, and are valued by what all see (Yu et al., 2022).

Centralised training, decentralised execution: the value is learned, and not needed to act.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from gmi_drl.placement import AlgorithmConfig, MAPPOConfig
from gmi_drl.roles.envs.agents import AgentGroup
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.actor_critic import distribution_for, observation_width
from gmi_drl.roles.policies.central import CentralActorCritic, CentralPolicy
from gmi_drl.roles.policies.networks import trunk_of
from gmi_drl.roles.policies.trunk import dense_trunk

from .ppo import PPO


class MAPPO(PPO):
    """PPO of agents who share a policy, with a value of what all of them see."""

    Settings: ClassVar[type[AlgorithmConfig]] = MAPPOConfig
    network_class = CentralActorCritic
    network_fault = "it has no value of what all agents see"

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> CentralActorCritic:
        groups = getattr(env, "groups", None)
        if groups is None or len(groups) > 1:
            rule, remedy = "it has one agent", "Use algorithm.name: ppo."
            if groups or isinstance(env, AgentGroup):
                rule = "its agents have several policies"
                remedy = "Give them one by multi_agent, or use algorithm.name: ppo."
            raise EnvSpecError(
                f"env.id: {rule}; mappo trains several agents who share one. {remedy}"
            )
        agents, width = len(groups[0].agents), observation_width(env.observation_space)
        trunks = trunk_of(settings, env, generator), dense_trunk(settings, agents * width)
        distribution = distribution_for(env.action_space)
        return CentralActorCritic(
            width, agents, distribution, trunks, settings.init_log_std, generator
        )

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> CentralPolicy:
        return CentralPolicy(network)
