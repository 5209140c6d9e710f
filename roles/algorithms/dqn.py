"""Deep Q-learning (Mnih et al., 2015) with double Q-learning (van Hasselt et al., 2016)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from gmi_drl.placement import AlgorithmConfig, DQNConfig, hidden_sizes
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import PolicyError
from gmi_drl.roles.policies.actor_critic import observation_width
from gmi_drl.roles.policies.check_policy import forward_faults
from gmi_drl.roles.policies.networks import trunk_of
from gmi_drl.roles.policies.trunk import HiddenLayers, Trunk
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses
from .terms import weighted_mean


class QNetwork(nn.Module):
    """The values [B, actions] of all actions for normalised observations [B, D]."""

    def __init__(
        self,
        obs_dim: int,
        actions: int,
        settings: AlgorithmConfig,
        generator: torch.Generator | None = None,
        trunk: HiddenLayers | None = None,
    ) -> None:
        """`trunk`: instead of hidden layers of the settings' sizes."""
        super().__init__()
        self._hidden, self._activation = list(hidden_sizes(settings.network)), settings.activation
        self.trunk = trunk or Trunk(obs_dim, self._hidden, settings.activation, settings.precision)
        self.head = nn.Linear(self.trunk.features, actions)
        with torch.no_grad():
            self.trunk.initialise(generator)
            nn.init.orthogonal_(self.head.weight, 1.0, generator=generator)
            self.head.bias.zero_()

    def describe(self) -> dict[str, Any]:
        """Say what its parameters do not: see ActorCritic.describe."""
        return {"network": self._hidden, "activation": self._activation}

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.trunk(observation))  # type: ignore[no-any-return]


class QPolicy:
    """Acts greedily by a Q network, or, in a share `epsilon` of all steps, at random."""

    action_columns = 1
    state_columns = 0
    noise_columns = 2  # whether to explore, and which action to take then
    columns: Mapping[str, int] = {}
    column_groups: Mapping[str, tuple[str, str]] = {}
    row_constants: Mapping[str, Tensor] = {}

    def __init__(self, network: Any) -> None:
        self.network = network
        # A tensor, as acting may be captured.
        self.epsilon = torch.ones((), device=next(network.parameters()).device)

    def noise(self, generator: torch.Generator, batch: Batch) -> None:
        batch["noise"].uniform_(generator=generator)

    def act(self, step: Mapping[str, Tensor]) -> Tensor:
        """Write and return the actions [N, 1] for `step["observation"]` [N, D]."""
        values, noise = self.network(step["observation"]), step["noise"]
        greedy = values.argmax(-1).float()
        other = (noise[:, 1] * values.shape[-1]).floor()
        action = step["action"]
        action[:, 0] = torch.where(noise[:, 0] < self.epsilon, other, greedy)
        return action

    def finish(self, batch: Batch) -> None:
        """Nothing is made for all steps at once."""

    def value(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        value: Tensor = self.network(observation).amax(-1)
        return value

    def mode(self, observation: Tensor, state: Tensor | None = None) -> Tensor:
        action: Tensor = self.network(observation).argmax(-1, keepdim=True)
        return action.float()


def dqn_loss(network: Any, target_network: Any, batch: Batch, settings: Any) -> Losses:
    """The Huber loss of the temporal-difference error, of rows [B]."""
    with torch.no_grad():
        next_observation, discount = batch["next_observation"], batch["discount"]
        values = target_network(next_observation)
        chooser = network(next_observation) if settings.double else values
        next_value = values.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)
        # Where an episode is over, what was seen last counts for nothing, were it NaN.
        target = batch["reward"] + discount * next_value.masked_fill(discount == 0.0, 0.0)
    value = network(batch["observation"]).gather(-1, batch["action"].long()).squeeze(-1)
    loss = weighted_mean(huber_loss(value, target, reduction="none"), batch)
    error = (value - target).detach().abs()
    stats = {"q_loss": loss.detach(), "q_mean": value.detach().mean(), "td_error": error.mean()}
    return Losses(loss, stats, extras={"priorities": error})


class DQN(Algorithm):
    """Q-learning on kept transitions, towards a target network."""

    Settings = DQNConfig
    stats = ("q_loss", "q_mean", "td_error")
    bootstrap = ()
    recorded = ("next_observation", "terminated")
    segment_fields = ("action", "reward", "done", "terminated", "next_observation")
    replayed = ("raw_observation", "action", "reward", "discount", "next_observation")
    loss = staticmethod(dqn_loss)

    @cached_property
    def target(self) -> nn.Module:
        """The network of some updates ago; copied where losses are asked for, and not by agents."""
        network: nn.Module = copy.deepcopy(self.policy.network)
        return network.requires_grad_(False)

    @classmethod
    def make_network(
        cls, settings: AlgorithmConfig, env: VecEnv, generator: torch.Generator | None
    ) -> QNetwork:
        width = observation_width(env.observation_space)
        return QNetwork(
            width, _choices(env), settings, generator, trunk_of(settings, env, generator)
        )

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> QPolicy:
        return QPolicy(network)

    @classmethod
    def check_network(cls, network: Any, maker: str, width: int, env: VecEnv) -> None:
        if faults := list(_faults(network, width, _choices(env))):
            base = "gmi_drl.roles.algorithms.dqn.QNetwork"
            raise PolicyError(maker, type(network).__name__, faults, base)

    def losses(self, batch: Batch) -> Losses:
        return self.loss_function(self.policy.network, self.target, batch, self.settings)

    def before_sampling(self, steps: int) -> None:
        left = max(1.0 - steps / self.settings.epsilon_steps, 0.0)
        last = self.settings.epsilon
        self.policy.epsilon.fill_(last + (1.0 - last) * left)

    @torch.no_grad()
    def after_step(self, updates: int) -> None:
        if updates % self.settings.target_every == 0:
            torch._foreach_copy_(
                list(self.target.parameters()), list(self.policy.network.parameters())
            )

    def state_dict(self) -> dict[str, Any]:
        return {"target": dict(self.target.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.target.load_state_dict(state["target"])


def _choices(env: VecEnv) -> int:
    """Return the number of actions; EnvSpecError where they are no choices."""
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        raise EnvSpecError(
            [
                f"env.id: action space {space}; dqn takes Discrete. Use algorithm.name: ppo, or "
                "wrap it in TransformAction."
            ]
        )
    return int(space.n)


def _faults(network: Any, width: int, actions: int) -> Iterator[str]:
    if not isinstance(network, nn.Module):
        yield "it is no torch.nn.Module"
        return
    if any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        yield "its parameters must be torch.float32"
        return
    yield from forward_faults(network, width, actions, "the value of each action")
