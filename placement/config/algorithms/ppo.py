"""Defines the settings of PPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .common import ActorCriticConfig

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config
    from gmi_drl.placement.faults import Fault


class PPOConfig(ActorCriticConfig):
    """Proximal policy optimisation. The defaults are the paper's settings for Ant."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.ppo:PPO"

    name: Literal["ppo"] = "ppo"
    kl_target: float = Field(default=0.008, gt=0)
    """KL divergence that the adaptive schedule aims at."""
    clip: float = Field(default=0.2, gt=0)
    """Clip range of PPO's probability ratio."""
    clip_value_loss: bool = True
    """Clip the change of value predictions by `clip` too."""
    normalize_advantage: bool = True
    """Normalise advantages over the samples of an update, of all GMIs."""

    @property
    def followed_kl(self) -> float | None:
        return self.kl_target if self.schedule == "adaptive" else None

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault unless the samples of an update divide by the minibatches."""
        num_env, each = config.env.num_env, max(1, agents // trainers) if trainers else 1
        product = f"num_env={num_env} x horizon={self.horizon}"
        if each > 1:
            product += f" x {each} agents"
        yield from self.minibatch_faults(
            num_env * self.horizon * each, "samples of an update of one GMI", product, "horizon"
        )
