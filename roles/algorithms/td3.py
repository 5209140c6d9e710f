"""Twin delayed DDPG (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from gmi_drl.placement import AlgorithmConfig, DDPGConfig, TD3Config
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.networks import trunk_of
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.off_policy import (
    ActorNetwork,
    ActorWithCritics,
    Critic,
    DeterministicPolicy,
    bounded_width,
)
from gmi_drl.roles.samples.batch import Batch

from .algorithm import Losses
from .off_policy import OffPolicy, critic_loss, towards
from .terms import unfit_actions


class TD3(OffPolicy):
    """A deterministic actor, whose target is smoothed, and which follows its critics later."""

    Settings: ClassVar[type[AlgorithmConfig]] = TD3Config
    stats = ("critic_loss", "actor_loss", "q_mean")
    followed = ("actor", "critics")
    settings: TD3Config

    def __init__(
        self, settings: Any, policy: Any, normalizers: Normalizers, loss: Any = None
    ) -> None:
        super().__init__(settings, policy, normalizers, loss)
        self.loss_noise_columns = policy.action_columns if settings.target_noise else 0
        self._updates = 0
        # The loss of the actor's last update, which every update reports.
        self._actor_loss = torch.zeros((), device=policy.at_random.device)

    @classmethod
    def make_network(
        cls, settings: Any, env: VecEnv, generator: torch.Generator | None
    ) -> ActorWithCritics:
        width = bounded_width(env.action_space)
        if width is None:
            raise EnvSpecError(unfit_actions(env.action_space, settings.name, "a Box with bounds"))
        actor = ActorNetwork(trunk_of(settings, env, generator), width, generator)
        critics = [Critic(env, settings, generator, width) for _ in range(settings.critics)]
        return ActorWithCritics(actor, critics, settings)

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> DeterministicPolicy:
        width = network.actor.head.out_features
        return DeterministicPolicy(network, width, settings.action_noise)

    @property
    def _is_due(self) -> bool:
        """Tells whether the next update is one of the actor too."""
        due: bool = (self._updates + 1) % self.settings.policy_delay == 0
        return due

    @property
    def loss_kind(self) -> bool:
        return self._is_due

    def losses(self, batch: Batch) -> Losses:
        network, settings = self.policy.network, self.settings
        observation, next_observation = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            action = self.target.acts(next_observation).tanh()
            if settings.target_noise:
                noise = (settings.target_noise * batch["noise"]).clamp_(
                    -settings.target_noise_clip, settings.target_noise_clip
                )
                action = (action + noise).clamp_(-1.0, 1.0)
            target = towards(batch, self.target.values(next_observation, action).amin(0))
        values = network.values(observation, batch["action"])
        total, priorities = critic_loss(values, target, batch)
        stats = {"critic_loss": total.detach(), "q_mean": values.detach().mean()}
        groups: tuple[str, ...] = ("critics",)
        if self._is_due:
            actor_loss = -network.first_value(observation, network.acts(observation).tanh()).mean()
            total, groups = total + actor_loss, self.parts
            self._actor_loss.copy_(actor_loss.detach())
        stats["actor_loss"] = self._actor_loss
        return Losses(total, stats, extras={"priorities": priorities}, groups=groups)

    def after_step(self, updates: int) -> None:
        if self._is_due:
            self.follow()
        self._updates = updates

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"updates": self._updates, "actor_loss": self._actor_loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._updates = state["updates"]
        self._actor_loss.copy_(state["actor_loss"])


class DDPG(TD3):
    """TD3 with one critic, no smoothing and no delay: its settings' defaults say so."""

    Settings: ClassVar[type[AlgorithmConfig]] = DDPGConfig
