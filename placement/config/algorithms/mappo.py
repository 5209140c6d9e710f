"""Defines the settings of MAPPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from gmi_drl.placement.config.section import CONVOLUTIONAL, is_own_network
from gmi_drl.placement.faults import Fault

from .ppo import PPOConfig

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


class MAPPOConfig(PPOConfig):
    """Multi-agent PPO: a policy that agents share, and a value of what all of them see."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.mappo:MAPPO"
    optimizers: ClassVar[tuple[str, ...]] = ("all_reduce",)

    name: Literal["mappo"] = "mappo"  # type: ignore[assignment]

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault without several agents, or without layers for what all of them see."""
        yield from super().faults(config, agents, trainers)
        if config.env.adapter != "pettingzoo":
            yield Fault(
                "algorithm.name", self.name,
                f"it trains several agents, and adapter {config.env.adapter} has one",
                "Use ppo, or env.adapter: pettingzoo.",
            )  # fmt: skip
        if self.network in CONVOLUTIONAL or is_own_network(self.network):
            yield Fault(
                "algorithm.network", str(self.network),
                "what all agents see is a vector, which dense layers take",
                "Use a list of sizes such as [128, 128], or ppo.",
            )  # fmt: skip
