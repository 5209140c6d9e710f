"""Soft actor-critic (Haarnoja et al., 2018), and with Discrete actions (Christodoulou, 2019)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig, SACConfig
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.networks import trunk_of
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.off_policy import (
    ActorNetwork,
    ActorWithCritics,
    Critic,
    ExploringPolicy,
    SampledChoicePolicy,
    SquashedNormalPolicy,
    bounded_width,
)
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Losses
from .off_policy import OffPolicy, critic_loss, towards
from .terms import unfit_actions

_ENTROPY_SHARE: float = 0.98  # of the greatest entropy: what a learned temperature aims at


class SAC(OffPolicy):
    """Rewards and entropy, weighed by a temperature that keeps the entropy near its target."""

    Settings: ClassVar[type[AlgorithmConfig]] = SACConfig
    stats = ("critic_loss", "actor_loss", "q_mean", "entropy", "temperature")
    settings: SACConfig

    def __init__(
        self, settings: Any, policy: Any, normalizers: Normalizers, loss: Any = None
    ) -> None:
        super().__init__(settings, policy, normalizers, loss)
        self._is_discrete = isinstance(policy, SampledChoicePolicy)
        target = settings.target_entropy
        if target is None and self._is_discrete:
            target = _ENTROPY_SHARE * math.log(policy.noise_columns)
        self._target_entropy = -float(policy.action_columns) if target is None else target
        if policy.network.log_temperature is not None:
            self.parts = (*self.parts, "log_temperature")
        # Noise for the actions that the actor is trained by, and for those of what followed.
        self.loss_noise_columns = 0 if self._is_discrete else 2 * policy.action_columns

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> ActorWithCritics:
        width, space = bounded_width(env.action_space), env.action_space
        if isinstance(space, spaces.Discrete):
            numbers, taken, valued = int(space.n), 0, int(space.n)
        elif width is not None:
            numbers, taken, valued = 2 * width, width, 1
        else:
            raise EnvSpecError(unfit_actions(space, "sac", "Discrete, or a Box with bounds"))
        actor = ActorNetwork(trunk_of(settings, env, generator), numbers, generator)
        critics = [Critic(env, settings, generator, taken, valued) for _ in range(settings.critics)]
        return ActorWithCritics(actor, critics, settings, learns=settings.temperature is None)

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> ExploringPolicy:
        numbers = network.actor.head.out_features
        if not network.critics[0].takes_action:
            return SampledChoicePolicy(network, numbers)
        return SquashedNormalPolicy(network, numbers // 2)

    @property
    def _temperature(self) -> Tensor | float:
        """Returns the weight of the entropy, by which only its own loss is differentiated."""
        if self.settings.temperature is not None:
            return self.settings.temperature
        temperature: Tensor = self.policy.network.log_temperature.detach().exp()
        return temperature

    def losses(self, batch: Batch) -> Losses:
        losses_of = self._discrete_losses if self._is_discrete else self._box_losses
        network, temperature = self.policy.network, self._temperature
        critics, priorities, values, actor, entropy = losses_of(batch, temperature)
        total, entropy = critics + actor, entropy.detach().mean()
        if network.log_temperature is not None:
            total = total + network.log_temperature.squeeze() * (entropy - self._target_entropy)
        stats = {
            "critic_loss": critics.detach(),
            "actor_loss": actor.detach(),
            "q_mean": values.detach().mean(),
            "entropy": entropy,
            "temperature": values.new_full((), temperature)
            if isinstance(temperature, float)
            else temperature.squeeze(),
        }
        return Losses(total, stats, extras={"priorities": priorities})

    def _box_losses(
        self, batch: Batch, temperature: Tensor | float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns the critics' loss, priorities, values, and the actor's loss and entropy."""
        network = self.policy.network
        observation, next_observation = batch["observation"], batch["next_observation"]
        next_noise, noise = batch["noise"].chunk(2, -1)
        outputs = network.acts(torch.cat([observation, next_observation]), len(observation))
        action, log_prob, next_action, next_log_prob = SquashedNormalPolicy.samples(
            outputs, torch.cat([noise, next_noise]), len(observation)
        )
        with torch.no_grad():
            value = self.target.values(next_observation, next_action).amin(0)
            target = towards(batch, value - temperature * next_log_prob)
        values, action_values = network.values_of_both(observation, batch["action"], action)
        loss, priorities = critic_loss(values, target, batch)
        actor = (temperature * log_prob - action_values.min(0).values).mean()
        return loss, priorities, values, actor, -log_prob

    def _discrete_losses(
        self, batch: Batch, temperature: Tensor | float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns the same as `_box_losses`, with all actions weighed by their probabilities."""
        network = self.policy.network
        observation, next_observation = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            log_prob = network.actor(next_observation).log_softmax(-1)
            soft_values = self.target.values(next_observation).amin(0) - temperature * log_prob
            target = towards(batch, (log_prob.exp() * soft_values).sum(-1))
        all_values = network.values(observation)
        action = batch["action"].long().expand(len(all_values), -1, -1)
        values = all_values.gather(-1, action).squeeze(-1)
        loss, priorities = critic_loss(values, target, batch)
        log_prob = network.actor(observation).log_softmax(-1)
        probabilities, min_values = log_prob.exp(), all_values.detach().amin(0)
        actor = (probabilities * (temperature * log_prob - min_values)).sum(-1).mean()
        return loss, priorities, values, actor, -(probabilities * log_prob).sum(-1)
