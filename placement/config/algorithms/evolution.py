"""Defines the settings of ES and ARS, which try perturbed policies and compare their returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from gmi_drl.placement.config.section import Int, as_network, as_tuple, broken
from gmi_drl.placement.faults import Fault, counted

from .common import AlgorithmConfig, Horizon

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


def _as_network_or_linear(value: Any) -> Any:
    return () if as_tuple(value) == () else as_network(value)


class EvolutionConfig(AlgorithmConfig):
    """The keys of algorithms that learn from whole episodes of perturbed policies."""

    optimizers: ClassVar[tuple[str, ...]] = ("population",)
    adam_eps: ClassVar[float] = 1e-8

    network: Annotated[str | tuple[int, ...], BeforeValidator(_as_network_or_linear)] = Field(
        default=(64, 64), description="Hidden layers: see `network` above; `[]`: a linear policy."
    )
    activation: Literal["elu", "tanh", "relu"] = "tanh"
    horizon: Horizon = 1_000
    """Steps after which an episode is cut, if the environment's own limit is not before."""
    gamma: float = Field(default=1.0, ge=1, le=1)
    """1: episodes count by their undiscounted returns."""
    max_grad_norm: float | None = Field(default=None, ge=0)
    reward_scale: float = Field(default=1.0, ge=1, le=1)
    """1: it is only compared which return is the higher one, and by how much of their deviation."""
    bootstrap_time_limit: Literal[False] = False
    """`false`: nothing is valued, and an episode that is cut counts by what it was paid."""
    precision: Literal["fp32", "tf32"] = "fp32"
    schedule: Literal["constant", "linear"] = "constant"
    """The learning rate; `linear`: down to 0 at `total_steps`; `constant`."""
    population: Int = Field(default=128, ge=2, le=1_000_000)
    """Policies that are tried between two updates, by all GMIs together: each direction both ways,
    in episodes that begin alike."""
    noise: float = Field(default=0.05, gt=0)
    """Standard deviation of the perturbation of each parameter."""

    @field_validator("population")
    @classmethod
    def _check_population(cls, value: int) -> int:
        if value % 2:
            raise broken(
                "must be even: each direction is tried both ways",
                f"Use {value - 1 or 2} or {value + 1}.",
            )
        return value

    @property
    def directions(self) -> int:
        """The directions that are tried between two updates."""
        return self.population // 2

    @property
    def anneals(self) -> bool:
        return self.schedule == "linear"

    def head_layers(self, features: int, parameters: int) -> list[tuple[int, int]]:
        return [(features, parameters)]

    def update_text(self, samples: int, trainers: int, where: str) -> str:
        return f"the episodes of {self.population:,} policies, by all GMIs"

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault unless each GMI has directions to try, and each environment an episode."""
        yield from super().faults(config, agents, trainers)
        if not trainers:
            return
        if self.directions < trainers:
            yield Fault(
                "algorithm.population", self.population,
                f"must be at least {2 * trainers}, so that each of {counted(trainers, 'GMI')} has "
                "a direction to try both ways",
                "Raise it, or use fewer GMIs.",
            )  # fmt: skip
            return
        per_gmi, num_env = -(-self.directions // trainers), config.env.num_env
        if num_env > per_gmi:
            yield Fault(
                "env.num_env", num_env,
                f"population={self.population} gives each of {counted(trainers, 'GMI')} "
                f"{counted(per_gmi, 'direction')} to try, each in an environment, one way and then "
                "the other",
                f"Use {per_gmi} or fewer, or a population of {2 * num_env * trainers}.",
            )  # fmt: skip


class ESConfig(EvolutionConfig):
    """Evolution strategies as OpenAI's: centred ranks, Adam, weight decay (Salimans et al., 2017).

    Returns count by their ranks alone.
    """

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.es:ES"

    name: Literal["es"] = "es"
    learning_rate: float = Field(default=1e-2, gt=0, le=1)
    weight_decay: float = Field(default=0.005, ge=0)
    """This times the parameters is added to the gradient."""


class ARSConfig(EvolutionConfig):
    """Augmented random search (Mania et al., 2018), V2: a linear policy of normalised states."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.ars:ARS"
    descends_by: ClassVar[Literal["adam", "sgd"]] = "sgd"

    name: Literal["ars"] = "ars"
    network: Annotated[str | tuple[int, ...], BeforeValidator(_as_network_or_linear)] = Field(
        default=(), description="Hidden layers: see `network` above; `[]`: a linear policy."
    )
    learning_rate: float = Field(default=0.02, gt=0, le=1)
    """The size of a step: the mean of directions, each times the difference of its two returns in
    deviations of returns, is multiplied by this."""
    top_directions: Int | None = Field(default=None, ge=1)
    """Directions that are learned from: those whose better return is highest. `null`: all."""
    survival_bonus: float = Field(default=0.0)
    """What the environment pays for each step of being alive: it is taken off in training, as else
    it is learned to stand still; returns that are reported have it."""

    @field_validator("top_directions")
    @classmethod
    def _check_top_directions(cls, value: int | None, info: ValidationInfo) -> int | None:
        population = info.data.get("population")
        if value is not None and population is not None and value > population // 2:
            raise broken(
                f"must be at most {population // 2}, the directions of population={population}",
                "Lower it, or raise population.",
            )
        return value
