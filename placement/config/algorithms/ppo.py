"""Defines the settings of PPO."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .actor_critic import RowsConfig


class PPOConfig(RowsConfig):
    """Proximal policy optimisation. The defaults are the paper's settings for Ant."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.ppo:PPO"

    name: Literal["ppo"] = "ppo"
    kl_target: float = Field(default=0.008, gt=0)
    """KL divergence that the adaptive schedule aims at."""
    clip: float = Field(default=0.2, gt=0)
    """Clip range of PPO's probability ratio."""
    clip_value_loss: bool = True
    """Clip the change of value predictions by `clip` too."""

    @property
    def followed_kl(self) -> float | None:
        return self.kl_target if self.schedule == "adaptive" else None
