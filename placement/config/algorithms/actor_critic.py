"""Defines the settings of algorithms that train a policy and its value on fresh experience."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from gmi_drl.placement.config.section import Int
from gmi_drl.placement.faults import Fault, counted

from .common import AlgorithmConfig, Horizon, RecurrentConfig, short_horizon

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


class ActorCriticConfig(AlgorithmConfig):
    """The keys of algorithms that train a policy and its value on fresh experience.

    The defaults are the paper's settings for Ant.
    """

    one_step: ClassVar[bool] = False  # whether a batch is used once, as one minibatch

    minibatches: Int = Field(default=2, ge=1)
    """Minibatches in an epoch; must divide `num_env` x `horizon`, with template tdg_ex that x the
    agents of a trainer."""
    epochs: Int = Field(default=4, ge=1)
    """Passes over the experience in one update."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Lambda of GAE and V-trace; 1 is the n-step return."""
    schedule: Literal["adaptive", "constant", "linear"] = "adaptive"
    """`adaptive`: after each minibatch, lower or raise the learning rate to keep the KL divergence
    near `kl_target`; `linear`: down to 0 at `total_steps`; `constant`."""
    value_coef: float = Field(default=2.0, ge=0)
    """Weight of the value loss."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    bounds_coef: float = Field(default=1e-4, ge=0)
    """Weight of the loss on action means outside the action bounds, where these are finite."""
    normalize_value: bool = True
    """Normalise value targets by their running mean and deviation."""
    init_log_std: float = Field(default=0.0, ge=-20, le=2)
    """Initial logarithm of the action's standard deviation (continuous actions)."""
    share_layers: bool = True
    """The hidden layers serve policy and value; `false`: each has its own, alike."""
    recurrent: RecurrentConfig | None = None
    """A policy that remembers what it saw in an episode: the `cell`, `lstm` (default) or `gru`, and
    its `size` (128); `{}` is the defaults, and `gru` short for `{cell: gru}`. Minibatches are whole
    environments with all their steps then. `null`: it acts by what it sees. See [policies that
    remember](writing-a-role.md#policies-that-remember)."""

    @property
    def anneals(self) -> bool:
        return self.schedule == "linear"

    @property
    def learns_value_scale(self) -> bool:
        return self.normalize_value

    def minibatch_size(self, samples: int) -> int:
        return samples // self.minibatches

    @property
    def effort(self) -> str:
        return f", {self.minibatches} minibatches, {self.epochs} epochs"

    def update_text(self, samples: int, trainers: int, where: str) -> str:
        size = f"{self.minibatch_size(samples):,} samples in each {where}"
        return f"{self.minibatches} of {size}, {counted(self.epochs, 'epoch')}"

    def own_faults(self) -> Iterator[Fault]:
        """Yields faults of a recurrent policy with separate layers, or a horizon of one step."""
        yield from super().own_faults()
        if self.recurrent is not None and not self.share_layers:
            yield Fault(
                "algorithm.share_layers", False,
                "policy and value of a recurrent policy have one cell, and the layers before it",
                "Leave it out, or recurrent.",
            )  # fmt: skip
        if self.recurrent is not None and self.horizon < 2:
            yield short_horizon(self.horizon)

    def minibatch_faults(self, rows: int, what: str, product: str, factor: str) -> Iterator[Fault]:
        """Yields a fault unless the minibatches divide the `rows` of an update.

        `what` they are, the `product` they come from, and the key in it that may be changed.
        """
        if rows % self.minibatches:
            small_divisors = [n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0]
            divisors = [*small_divisors, *(rows // n for n in reversed(small_divisors))]
            below = max(n for n in divisors if n <= self.minibatches)
            above = next((n for n in divisors if n > self.minibatches), None)
            suggestion = str(below) if above is None else f"{below} or {above}"
            yield Fault(
                "algorithm.minibatches", self.minibatches,
                f"must divide the {rows} {what} ({product})",
                f"Use {suggestion}, or change num_env or {factor}.",
            )  # fmt: skip


class RowsConfig(ActorCriticConfig):
    """The keys of algorithms that train on the rows of fresh experience, whichever they are."""

    optimizers: ClassVar[tuple[str, ...]] = ("all_reduce", "local")

    normalize_advantage: bool = True
    """Normalise advantages over the samples of an update, of all GMIs."""
    drop_slowest: Int = Field(default=0, ge=0)
    """Template tdg_ex: each trainer goes on with all but so many of its agents, those that have
    sampled first. What the others bring later is left out, and told as `dropped_steps`. Template
    tcg_ex: the same of all GMIs, and those that are late stop sampling; see
    [stragglers](templates.md#stragglers). Also `optimizer: {name: local, drop_slowest: 1}`."""

    @classmethod
    def why_not(cls, optimizer: str) -> tuple[str, str]:
        """Says why such an algorithm cannot use older experience, or gradients that agents send."""
        if optimizer == "async_samples":
            why = "what agents send meanwhile is of an older policy, which it does not correct for"
            return why, "algorithm.name: appo or impala, which do"
        if optimizer in ("async_gradients", "parameter_server"):
            why = "agents send one gradient for each batch, and it takes several steps"
            return why, "algorithm.name: a3c or pg"
        return "", ""

    @property
    def dropped_agents(self) -> int:
        return self.drop_slowest

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields faults unless the samples of an update are enough, and minibatches divide them."""
        yield from super().faults(config, agents, trainers)
        num_env, count = config.env.num_env, max(1, agents // trainers) if trainers else 1
        if self.drop_slowest and self.sends_gradients:
            yield Fault(
                "algorithm.drop_slowest", self.drop_slowest,
                "each agent's gradient is applied as it comes, and nobody waits for another",
                "Leave it out.",
            )  # fmt: skip
        elif self.drop_slowest and trainers:
            has_agents = count > 1 or config.template.name == "tdg_ex"
            total, noun = (count, "agents of a trainer") if has_agents else (trainers, "GMIs")
            if self.drop_slowest >= total:
                yield Fault(
                    "algorithm.drop_slowest", self.drop_slowest,
                    f"must be less than the {noun}: {total} in this layout",
                    "Lower it, or use more GMIs.",
                )  # fmt: skip
                return
            if has_agents:
                count -= self.drop_slowest
            else:
                trainers -= self.drop_slowest
        if self.recurrent is not None:
            product = f"num_env={num_env}" + (f" x {count} agents" if count > 1 else "")
            noun = "environments of an update of one GMI, whose steps stay together"
            yield from self.minibatch_faults(num_env * count, noun, product, "recurrent")
            return
        product = f"num_env={num_env} x horizon={self.horizon}"
        if count > 1:
            product += f" x {count} agents"
        yield from self.minibatch_faults(
            num_env * self.horizon * count, "samples of an update of one GMI", product, "horizon"
        )
        normalized_rows = num_env * self.horizon  # of one agent, or of all GMIs
        if not self.sends_gradients:
            normalized_rows *= count * trainers
        if self.normalize_advantage and normalized_rows == 1 and config.multi_agent is None:
            yield Fault(
                "algorithm.normalize_advantage", True,
                "an update has one sample, whose normalised advantage is always 0",
                "Set it to false, or raise horizon.",
            )  # fmt: skip


class SegmentsConfig(ActorCriticConfig):
    """The keys of algorithms that train on whole segments that agents send."""

    optimizers: ClassVar[tuple[str, ...]] = ("async_samples",)

    horizon: Horizon = 20
    minibatches: Int = Field(default=1, ge=1)
    """Minibatches in an epoch; must divide the environments of a batch, as segments are not cut."""
    epochs: Int = Field(default=1, ge=1)
    schedule: Literal["constant", "linear"] = "linear"
    """The learning rate; `linear`: down to 0 at `total_steps`; `constant`."""
    value_coef: float = Field(default=0.5, ge=0)
    bounds_coef: float = Field(default=0.1, ge=0)

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault unless the environments of a batch divide by the minibatches.

        V-trace needs segments whole, so that only environments can be shared out.
        """
        yield from super().faults(config, agents, trainers)
        num_env, segments = config.env.num_env, config.experience.batch_segments
        yield from self.minibatch_faults(
            num_env * segments, "environments in a trainer's batch",
            f"num_env={num_env} x batch_segments={segments}", "batch_segments",
        )  # fmt: skip
