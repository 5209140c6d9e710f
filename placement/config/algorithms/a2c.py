"""Defines the settings of A2C, A3C and PG, which take one step for each batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from gmi_drl.placement.config.section import Int
from gmi_drl.placement.faults import Fault

from .actor_critic import RowsConfig
from .common import Horizon

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


class OneStepConfig(RowsConfig):
    """The keys of algorithms that take one step down the policy gradient for each batch."""

    optimizers: ClassVar[tuple[str, ...]] = (
        "all_reduce", "local", "async_gradients", "parameter_server",
    )  # fmt: skip
    one_step: ClassVar[bool] = True

    minibatches: Int = Field(default=1, ge=1, le=1)
    """1: a second step would be down the gradient of a policy that has not sampled."""
    epochs: Int = Field(default=1, ge=1, le=1)
    """1: a second pass would be down the gradient of a policy that has not sampled."""
    schedule: Literal["constant", "linear"] = "linear"
    """The learning rate; `linear`: down to 0 at `total_steps`; `constant`."""
    learning_rate: float = Field(default=7e-4, gt=0, le=1)
    value_coef: float = Field(default=0.5, ge=0)
    max_grad_norm: float | None = Field(default=0.5, ge=0)

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault where several GMIs would have to keep the value's scale."""
        yield from super().faults(config, agents, trainers)
        if self.resolved_optimizer == "parameter_server" and self.normalize_value:
            yield Fault(
                "algorithm.normalize_value", True,
                "values are kept by changing the network's last layer, and under parameter_server "
                "that lies in pieces",
                "Set it to false, and a reward_scale that brings returns near 1.",
            )  # fmt: skip


class NStepConfig(OneStepConfig):
    """The keys of A2C, whoever computes the gradients."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.a2c:A2C"

    horizon: Horizon = 8
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda of GAE; 1 is the n-step return."""


class A2CConfig(NStepConfig):
    """Advantage actor-critic, the synchronous form of A3C."""

    name: Literal["a2c"] = "a2c"


class A3CConfig(NStepConfig):
    """A2C by gradients that agents send, each applied as it comes (Mnih et al., 2016)."""

    optimizers: ClassVar[tuple[str, ...]] = ("async_gradients", "parameter_server")

    name: Literal["a3c"] = "a3c"

    @classmethod
    def why_not(cls, optimizer: str) -> tuple[str, str]:
        """Says that without sent gradients the algorithm is A2C."""
        if optimizer in A2CConfig.optimizers:
            return "agents send gradients, and without that it is a2c", "algorithm.name: a2c"
        return super().why_not(optimizer)


class PGConfig(OneStepConfig):
    """REINFORCE with a baseline: an action is worth what followed it, less the state's value."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.pg:PG"

    name: Literal["pg"] = "pg"
    horizon: Horizon = 64
    lam: float = Field(default=1.0, ge=1, le=1)
    """1: returns as they were, to the end of an episode or of the horizon."""
