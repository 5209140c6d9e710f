"""Q-learning for a team, whose value is composed of its agents' values: VDN and QMIX.

VDN (Sunehag et al., 2018) adds the agents' values up; QMIX (Rashid et al., 2018) mixes them by the
state, so that the team's value rises with each. In both, agents that are greedy in their own values
are greedy in the team's value. The agents are columns of a row: a step of the team.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gmi_drl.placement import AlgorithmConfig, QMIXConfig, VDNConfig
from gmi_drl.roles.envs.agents import Team
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import PolicyError
from gmi_drl.roles.policies.team import TeamPolicy, TeamValues
from gmi_drl.roles.policies.trunk import dense_trunk
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Losses
from .dqn import DQN
from .terms import weighted_mean


def team_loss(network: Any, target_network: Any, batch: Batch, settings: Any) -> Losses:
    """Returns the squared temporal-difference error of the team's value over rows [B].

    It is the papers' loss. Its minimum determines VDN's values, and that of Huber's loss does not.
    """
    with torch.no_grad():
        discount, next_rows = batch["discount"], batch["next_observation"]
        target_values = target_network(next_rows)
        chooser = network(next_rows) if settings.double else target_values
        best = _taken_values(target_values, chooser.argmax(-1))
        # The last observation of an episode that is over has no value, even if it is NaN.
        next_value = target_network.total(best, next_rows).masked_fill_(discount == 0.0, 0.0)
        target = batch["reward"] + discount * next_value
    observation = batch["observation"]
    value = network.total(_taken_values(network(observation), batch["action"].long()), observation)
    loss = weighted_mean((value - target).square(), batch)
    error = (value.detach() - target).abs()
    stats = {"q_loss": loss.detach(), "q_mean": value.detach().mean(), "td_error": error.mean()}
    return Losses(loss, stats, extras={"priorities": error})


def _taken_values(values: Tensor, action: Tensor) -> Tensor:
    """Returns the values [B, A] of the actions [B, A] that agents take, from all [B, A, n]."""
    return values.gather(-1, action[..., None])[..., 0]


class VDN(DQN):
    """Q-learning of the sum of the agents' values."""

    Settings: ClassVar[type[AlgorithmConfig]] = VDNConfig
    loss = staticmethod(team_loss)

    @classmethod
    def make_network(cls, settings: Any, env: VecEnv, generator: torch.Generator | None) -> Any:
        team: Team | None = getattr(env, "team", None)
        if team is None:
            raise EnvSpecError(
                f"env.id: it has no team of agents; {settings.name} needs one. Use a role "
                "whose make_env is ours, or algorithm.name: dqn."
            )
        trunk = dense_trunk(settings, team.width + team.agents)
        mixing = getattr(settings, "mixing", None)
        return TeamValues(team.agents, team.width, team.choices, trunk, mixing, generator)

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> Any:
        return TeamPolicy(network)

    @classmethod
    def check_network(
        cls, network: Any, maker: str, width: int, env: VecEnv, settings: Any
    ) -> None:
        if faults := list(_faults(network)):
            base = "gmi_drl.roles.policies.team.TeamValues"
            raise PolicyError(maker, type(network).__name__, faults, base)


class QMIX(VDN):
    """Q-learning of agents' values that are mixed by the state."""

    Settings: ClassVar[type[AlgorithmConfig]] = QMIXConfig


def _faults(network: Any) -> Iterator[str]:
    if not isinstance(network, nn.Module):
        yield "it is no torch.nn.Module"
    elif not callable(getattr(network, "total", None)) or not hasattr(network, "agents"):
        yield "it has no `agents` and no `total(values, observation)`"
