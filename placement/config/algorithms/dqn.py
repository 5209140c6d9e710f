"""Defines the settings of DQN."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .common import ReplayConfig


class DQNConfig(ReplayConfig):
    """Deep Q-learning with double Q-learning and a target network, for Discrete actions."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.dqn:DQN"
    target_networks: ClassVar[int] = 1

    name: Literal["dqn"] = "dqn"
    target_every: int = Field(default=128, ge=1)
    """Updates between two copies into the target network."""
    double: bool = True
    """Choose the next action by the network, and value it by the target network."""
    epsilon: float = Field(default=0.04, ge=0, le=1)
    """The share of random actions in the end."""
    epsilon_steps: int = Field(default=16_000, ge=1)
    """Steps of all environments over which the share of random actions falls, linearly from 1."""
