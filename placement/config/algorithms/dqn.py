"""Defines the settings of DQN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from gmi_drl.placement.faults import Fault

from .common import ReplayConfig

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


class DQNConfig(ReplayConfig):
    """Deep Q-learning with double Q-learning and a target network, for Discrete actions."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.dqn:DQN"
    target_networks: ClassVar[int] = 1

    name: Literal["dqn"] = "dqn"
    target_every: int = Field(default=128, ge=1)
    """Updates between two copies into the target network."""
    n_step: int = Field(default=1, ge=1)
    """Rewards that are summed before the value of what follows; at the end of a horizon fewer. They
    are summed with the `gamma` of when they are put into the replay."""
    double: bool = True
    """Choose the next action by the network, and value it by the target network."""
    epsilon: float = Field(default=0.04, ge=0, le=1)
    """The share of random actions in the end."""
    epsilon_steps: int = Field(default=16_000, ge=1)
    """Steps of all environments over which the share of random actions falls, linearly from 1."""

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault where no row has as many steps as it should."""
        yield from super().faults(config, agents, trainers)
        if self.n_step > self.horizon:
            yield Fault(
                "algorithm.n_step", self.n_step, f"must be at most horizon={self.horizon}",
                "Lower it, or raise horizon.",
            )  # fmt: skip
