"""Defines the settings of VDN and QMIX, which learn values of a team's joint actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from gmi_drl.placement.config.section import CONVOLUTIONAL, Int, is_own_network
from gmi_drl.placement.faults import Fault

from .replay import ReplayConfig

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


class TeamConfig(ReplayConfig):
    """The keys of algorithms that learn what the actions of a team are worth together."""

    optimizers: ClassVar[tuple[str, ...]] = ("replay",)
    target_networks: ClassVar[int] = 1
    of_team: ClassVar[bool] = True
    epsilon_alpha: ClassVar[float] = 0.0
    noisy: ClassVar[bool] = False

    target_every: Int = Field(default=128, ge=1)
    """Updates between two copies into the target network."""
    double: bool = True
    """Choose the next actions by the network, and value them by the target network."""
    epsilon: float = Field(default=0.05, ge=0, le=1)
    """The share of random actions of each agent in the end."""
    epsilon_steps: Int = Field(default=50_000, ge=1)
    """Steps of all environments over which the share of random actions falls, linearly from 1."""

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault without a team, or without layers for what its agents see."""
        yield from super().faults(config, agents, trainers)
        if config.env.adapter != "pettingzoo":
            yield Fault(
                "algorithm.name", self.name,
                f"it trains a team of agents, and adapter {config.env.adapter} has one agent",
                "Use dqn, or env.adapter: pettingzoo.",
            )  # fmt: skip
        if self.network in CONVOLUTIONAL or is_own_network(self.network):
            yield Fault(
                "algorithm.network", str(self.network),
                "what an agent sees is a vector, which dense layers take",
                "Use a list of sizes such as [64, 64].",
            )  # fmt: skip


class VDNConfig(TeamConfig):
    """Value decomposition: what a team's actions are worth is the sum of each agent's value."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.team:VDN"

    name: Literal["vdn"] = "vdn"


class QMIXConfig(TeamConfig):
    """QMIX: what a team's actions are worth rises with each agent's value, mixed by the state."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.team:QMIX"

    name: Literal["qmix"] = "qmix"
    mixing: Int = Field(default=32, ge=1, le=100_000)
    """Numbers in the hidden layer of the network that mixes the agents' values."""
