"""Deep Q-learning (Mnih et al., 2015), with the parts of Rainbow (Hessel et al., 2018)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any, ClassVar, Final

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from gmi_drl.placement import AlgorithmConfig, DQNConfig
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import PolicyError
from gmi_drl.roles.policies.actor_critic import observation_width
from gmi_drl.roles.policies.check_policy import forward_faults
from gmi_drl.roles.policies.networks import trunk_of
from gmi_drl.roles.policies.q_network import QNetwork, QPolicy, factorised_
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Algorithm, Losses
from .distributional import (
    action_values,
    categorical_loss,
    project,
    quantile_huber_loss,
    support,
)
from .terms import unfit_actions, weighted_mean


def dqn_loss(network: Any, target_network: Any, batch: Batch, settings: Any) -> Losses:
    """Returns the loss of the network's outputs for rows [B], towards targets of what follows.

    For values it is the Huber loss of the temporal-difference error, for distributions the
    cross-entropy (C51) or the quantile Huber loss. The priority of a row is that error, the
    cross-entropy, or the mean loss of its quantiles. Where the network remembers, it is the mean
    over all rows of sequences [T, B], and each sequence has a priority: mostly the greatest of its
    rows'.
    """
    # Noise of a noisy network: for the observation, for the next action, and for its value.
    noise = batch.columns.get("noise", _NO_NOISE)
    sequences = len(batch["reward"]) if settings.recurrent is not None else 0
    outputs_of = _outputs_of_sequences if sequences else _outputs_of_rows
    outputs, chooser, target_outputs = outputs_of(network, target_network, batch, settings, noise)
    if sequences:
        batch = _flat_rows(batch)
    with torch.no_grad():
        discount = batch["discount"]
        choice = action_values(chooser, settings).argmax(-1)
        # The last observation of an episode that is over has no value, even if it is NaN.
        is_over = (discount == 0.0)[:, None]
        next_outputs = _action_outputs(target_outputs, choice, settings).masked_fill_(is_over, 0.0)
    chosen = _action_outputs(outputs, batch["action"][:, 0].long(), settings)
    reward, discount = batch["reward"][:, None], discount[:, None]
    if settings.distributional == "c51":
        returns = support(settings, chosen.device)
        with torch.no_grad():
            target = project(
                next_outputs.softmax(-1), reward + discount * returns, settings.value_range
            )
            value = chosen.softmax(-1) @ returns
            error = (value - target @ returns).abs()
        losses = categorical_loss(chosen, target)
        priorities = losses.detach()
    else:
        target = reward + discount * next_outputs
        value, target_value = chosen.detach(), target
        if settings.outputs_per_action > 1:
            value, target_value = value.mean(-1, keepdim=True), target_value.mean(-1, keepdim=True)
        value = value.squeeze(-1)
        error = (value - target_value.squeeze(-1)).abs()
        if settings.distributional == "qr":
            losses = quantile_huber_loss(chosen, target)
            priorities = losses.detach() / settings.quantiles
        else:
            losses, priorities = huber_loss(chosen, target, reduction="none").squeeze(-1), error
    if sequences:
        by_step = priorities.view(sequences, -1)
        priorities = _ETA * by_step.amax(0) + (1.0 - _ETA) * by_step.mean(0)
    loss = weighted_mean(losses, batch)
    stats = {"q_loss": loss.detach(), "q_mean": value.mean(), "td_error": error.mean()}
    return Losses(loss, stats, extras={"priorities": priorities})


_NO_NOISE: Final = (None, None, None)
_ETA: Final = 0.9  # of a sequence's priority; the rest is of the mean (R2D2's eta)


def _outputs_of_rows(
    network: Any, target_network: Any, batch: Batch, settings: Any, noise: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns outputs for rows, and two for what follows them: to choose an action, to value it."""

    def outputs_of(network: Any, observation: Tensor, noise: Tensor | None) -> Tensor:
        outputs: Tensor = network(observation) if noise is None else network(observation, noise)
        return outputs

    rows, next_rows = batch["observation"], batch["next_observation"]
    if type(network) is QNetwork and network.dense is not None:
        target_outputs = target_network.dense(next_rows, 0).squeeze(0)
        if not settings.double:
            return network.dense(rows, len(rows)).squeeze(0), target_outputs, target_outputs
        # Both at once; the next rows train nothing.
        outputs = network.dense(torch.cat([rows, next_rows]), len(rows)).squeeze(0)
        return *outputs.chunk(2), target_outputs
    with torch.no_grad():
        target_outputs = outputs_of(target_network, next_rows, noise[2])
        chooser = target_outputs
        if settings.double:
            chooser = outputs_of(network, next_rows, noise[1])
    return outputs_of(network, rows, noise[0]), chooser, target_outputs


def _outputs_of_sequences(
    network: Any, target_network: Any, batch: Batch, settings: Any, noise: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what `_outputs_of_rows` does for all rows of sequences, [T B, ...]."""
    next_rows, ahead = batch["next_observation"].flatten(0, 1), batch["ahead"]
    index = (torch.arange(len(ahead), device=ahead.device)[:, None] + ahead)[..., None]

    def outputs_after(network: Any, states: Tensor, noise: Tensor | None) -> Tensor:
        last_states = states.gather(0, index.expand(*ahead.shape, states.shape[-1])).flatten(0, 1)
        outputs: Tensor = network.step(next_rows, last_states, noise)[0]
        return outputs

    features, states = _unrolled(network, batch, settings)
    with torch.no_grad():
        _, target_states = _unrolled(target_network, batch, settings)
        target_outputs = outputs_after(target_network, target_states, noise[2])
        chooser = target_outputs
        if settings.double:
            chooser = outputs_after(network, states, noise[1])
    rows = features[: len(ahead)].flatten(0, 1)
    return network.outputs(rows, noise[0]), chooser, target_outputs


def _unrolled(network: Any, batch: Batch, settings: Any) -> tuple[Tensor, Tensor]:
    """Returns features and states of a minibatch's rows and of those after them (see `unroll`)."""
    observations, ended, state = batch["observation"], batch["ended"], batch["state"]
    burn_in = len(observations) - len(batch["reward"]) - settings.n_step + 1
    if burn_in:
        with torch.no_grad():
            inputs = (observations[:burn_in], batch["burn_in_state"], ended[:burn_in])
            warm_state = network.unroll(*inputs)[1][-1]
        state = torch.where(batch["burns_in"][:, None], warm_state, state)
    unrolled: tuple[Tensor, Tensor] = network.unroll(observations[burn_in:], state, ended[burn_in:])
    return unrolled


def _flat_rows(batch: Batch) -> Batch:
    """Returns the rows [T B] of sequences for the loss; each has its sequence's weight."""
    shape = batch["reward"].shape
    columns = {name: batch[name].flatten(0, 1) for name in ("action", "reward", "discount")}
    if (weight := batch.columns.get("weight")) is not None:
        columns["weight"] = weight.expand(shape).flatten()
    return Batch(columns)


def _action_outputs(outputs: Tensor, action: Tensor, settings: Any) -> Tensor:
    """Returns the outputs [B, n] for one action of each row, of those for all [B, actions * n]."""
    numbers = settings.outputs_per_action
    index = action[:, None, None].expand(-1, 1, numbers)
    return outputs.view(len(outputs), -1, numbers).gather(1, index).squeeze(1)


class DQN(Algorithm):
    """Q-learning on kept transitions, towards a target network."""

    Settings: ClassVar[type[AlgorithmConfig]] = DQNConfig
    stats = ("q_loss", "q_mean", "td_error")
    bootstrap = ()
    recorded = ("next_observation", "terminated")
    segment_fields = ("action", "reward", "done", "terminated", "next_observation")
    replayed = ("raw_observation", "action", "reward", "discount", "next_observation")
    loss = staticmethod(dqn_loss)

    @cached_property
    def target(self) -> nn.Module:
        """The network of some updates ago; copied at the first loss, so that agents have none."""
        network: nn.Module = copy.deepcopy(self.policy.network)
        return network.requires_grad_(False)

    @cached_property
    def _last_epsilon(self) -> Tensor:
        """The final share of random actions: a scalar for all environments, or [N] for each."""
        return torch.tensor(self.settings.epsilon, device=self.policy.epsilon.device)

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> nn.Module:
        width = observation_width(env.observation_space)
        return QNetwork(
            width, _num_actions(env), settings, generator, trunk_of(settings, env, generator)
        )

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> QPolicy:
        noise_columns = network.noise_columns if settings.noisy else 0
        return QPolicy(network, partial(action_values, settings=settings), noise_columns)

    @classmethod
    def check_network(
        cls, network: Any, maker: str, width: int, env: VecEnv, settings: Any
    ) -> None:
        if faults := list(_faults(network, width, _num_actions(env), settings)):
            base = "gmi_drl.roles.policies.q_network.QNetwork"
            raise PolicyError(maker, type(network).__name__, faults, base)

    def losses(self, batch: Batch) -> Losses:
        return self.loss_function(self.policy.network, self.target, batch, self.settings)

    def draw_noise(self, batch: Batch, generator: torch.Generator) -> None:
        if self.settings.noisy:
            noise = batch["reward"].new_empty(3, self.policy.noise_columns)
            batch.columns["noise"] = factorised_(noise.normal_(generator=generator))

    def first_priorities(self, batch: Batch) -> Tensor | None:
        network = self.policy.network
        losses = self.loss_function(network, network, batch, self.settings)
        return losses.extras.get("priorities")

    def explore_as(self, numbers: range, total: int) -> None:
        if self.settings.epsilon_alpha:
            # Horgan et al. (2018), section 4.1: epsilon ** (1 + alpha i / (N - 1)).
            position = torch.tensor(numbers, dtype=torch.float32) / max(total - 1, 1)
            epsilon = self.settings.epsilon ** (1.0 + self.settings.epsilon_alpha * position)
            self._last_epsilon = epsilon.to(self.policy.epsilon.device)
            self.policy.epsilon = torch.ones_like(self._last_epsilon)

    def before_sampling(self, steps: int) -> None:
        remaining = max(1.0 - steps / self.settings.epsilon_steps, 0.0)
        final = self._last_epsilon
        self.policy.epsilon.copy_(final + (1.0 - final) * remaining)

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


def _num_actions(env: VecEnv) -> int:
    """Returns the number of actions; EnvSpecError unless they are Discrete."""
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        raise EnvSpecError(unfit_actions(space, "dqn", "Discrete"))
    return int(space.n)


def _faults(network: Any, width: int, actions: int, settings: Any) -> Iterator[str]:
    if not isinstance(network, nn.Module):
        yield "it is no torch.nn.Module"
        return
    if any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        yield "its parameters must be torch.float32"
        return
    if settings.noisy and not getattr(network, "noise_columns", 0):
        yield (
            "it has no noise_columns, the width of the noise that its forward takes behind the "
            "observation, and algorithm.noisy is on"
        )
    numbers, means = settings.outputs_per_action, "the value of each action"
    if settings.distributional != "none":
        key = "atoms" if settings.distributional == "c51" else "quantiles"
        means = f"algorithm.{key}={numbers} numbers of {means}"
    yield from forward_faults(network, width, actions * numbers, means)
