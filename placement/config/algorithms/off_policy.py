"""Defines the settings of SAC, TD3 and DDPG, which train an actor and its critics on a replay."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gmi_drl.placement.config.section import Int, Network

from .common import Horizon
from .replay import ReplayConfig


class OffPolicyConfig(ReplayConfig):
    """The keys of algorithms that train an actor by critics of its actions."""

    target_networks: ClassVar[int] = 1
    adam_eps: ClassVar[float] = 1e-8

    network: Network = Field(
        default=(256, 256),
        description="Hidden layers of the actor, and of each critic: see `network` above.",
    )
    activation: Literal["elu", "tanh", "relu"] = "relu"
    horizon: Horizon = 8
    max_grad_norm: float | None = Field(default=None, ge=0)
    """Clip the norm of the actor's gradient, and of the critics', to this; `null` or 0: do not."""
    batch_size: Int = Field(default=256, ge=1)
    replay_capacity: Int = Field(default=1_000_000, ge=1)
    replay_start: Int = Field(default=5_000, ge=0)
    updates_per_row: float = Field(default=1.0, gt=0)
    critic_learning_rate: float | None = Field(default=None, gt=0, le=1)
    """Adam's learning rate for the critics; `null`: `learning_rate`, which is the actor's."""
    critics: Int = Field(default=2, ge=1, le=32)
    """Critics that are trained alike; the least of their values is what counts (Fujimoto et al.,
    2018)."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """The share of the way that target networks go towards the trained ones, each update."""
    random_steps: Int = Field(default=5_000, ge=0)
    """Steps of all environments that are taken at random at first."""


class SACConfig(OffPolicyConfig):
    """Soft actor-critic with a temperature that follows the entropy; Box or Discrete actions."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.sac:SAC"

    name: Literal["sac"] = "sac"
    temperature: float | None = Field(default=None, gt=0)
    """The weight of the entropy; `null`: it is learned, so that the entropy is that aimed at."""
    target_entropy: float | None = None
    """The entropy that a learned temperature aims at; `null`: minus the numbers of a Box action
    (Haarnoja et al., 2018), or 0.98 times the most of a Discrete one (Christodoulou, 2019)."""


class TD3Config(OffPolicyConfig):
    """Twin delayed deep deterministic policy gradient, for Box actions."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.td3:TD3"
    target_networks: ClassVar[int] = 2

    name: Literal["td3"] = "td3"
    action_noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise that actions are explored by, of actions in [-1, 1]."""
    target_noise: float = Field(default=0.2, ge=0)
    """The same of the noise on the target actor's actions."""
    target_noise_clip: float = Field(default=0.5, ge=0)
    """The most that this noise comes to."""
    policy_delay: Int = Field(default=2, ge=1)
    """Updates of the critics for each one of the actor and the target networks."""


class DDPGConfig(TD3Config):
    """Deep deterministic policy gradient (Lillicrap et al., 2016), for Box actions.

    TD3 with one critic, no noise on the target's actions, and the actor updated each time.
    """

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.td3:DDPG"

    name: Literal["ddpg"] = "ddpg"  # type: ignore[assignment]
    critics: Int = Field(default=1, ge=1, le=32)
    target_noise: float = Field(default=0.0, ge=0)
    policy_delay: Int = Field(default=1, ge=1)
