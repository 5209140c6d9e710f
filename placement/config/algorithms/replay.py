"""Defines the settings of algorithms that train on kept experience."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from gmi_drl.placement.config.section import Int
from gmi_drl.placement.faults import Fault

from .common import AlgorithmConfig

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


class ReplayConfig(AlgorithmConfig):
    """The keys of algorithms that train on kept experience."""

    optimizers: ClassVar[tuple[str, ...]] = ("replay", "apex")

    normalize_observation: bool = False
    schedule: Literal["constant", "linear"] = "constant"
    """The learning rate; `linear`: down to 0 at `total_steps`; `constant`."""
    batch_size: Int = Field(default=64, ge=1)
    """Rows of a minibatch in each GMI; of a network that remembers, sequences of `horizon` rows."""
    replay_capacity: Int = Field(default=100_000, ge=1)
    """The newest steps that each GMI keeps, in whole steps of all its environments."""
    replay_start: Int = Field(default=1_000, ge=0)
    """Steps in each GMI before the first update."""
    updates_per_row: float = Field(default=0.5, gt=0)
    """Updates for each further step in each GMI."""
    hindsight: float = Field(default=0.0, ge=0, le=1)
    """The share of steps whose goal is replaced by one that was reached later in the episode, 0.8
    is usual; for goal environments. See [hindsight](writing-a-role.md#hindsight)."""
    n_step: Int = Field(default=1, ge=1)
    """Rewards that are summed before the value of what follows; fewer where an episode ends, and
    where nothing newer is there yet."""
    sampler: Literal["uniform", "prioritized"] = "uniform"
    """How rows are drawn: all alike, or in proportion to their [priorities](replay.md#samplers)."""
    priority_alpha: float = Field(default=0.6, ge=0, le=1)
    """Sampler `prioritized`: the power of priorities that rows are drawn by; 0: all alike."""
    priority_beta: float = Field(default=0.4, ge=0, le=1)
    """The power of the weights that make up for it, in the beginning; it rises linearly to 1 at
    `total_steps`."""
    priority_eps: float = Field(default=1e-6, gt=0)
    """Added to each priority, so that every row may be drawn."""
    priority_weights: Literal["minibatch", "buffer"] = "minibatch"
    """The greatest weight, by which all are divided, is that of the minibatch or of all rows."""
    replay_device: Literal["policy", "cpu"] = "policy"
    """Where rows are kept: beside the policy, or in the host's memory."""
    replay_save: bool = True
    """Keep the replay in checkpoints. `false`: it begins anew on resuming, and no update is
    taken before there are `replay_start` steps again."""

    @property
    def anneals(self) -> bool:
        return self.schedule == "linear"

    @property
    def kept_steps(self) -> int:
        return self.replay_capacity

    @property
    def drawn_steps(self) -> int:
        """The steps of each sample: 1, or those of a sequence."""
        return 1

    def minibatch_size(self, samples: int) -> int:
        return self.batch_size * self.drawn_steps

    def gradient_steps(self, samples: int) -> int:
        return int(self.updates_per_row * samples)

    @property
    def effort(self) -> str:
        return f", {self.updates_per_row:g} updates a step of {self.batch_size:,} kept samples"

    def update_text(self, samples: int, trainers: int, where: str) -> str:
        steps = trainers / self.updates_per_row  # in all GMIs, for each update
        rate = f"1 for {steps:g} steps" if steps > 1 else f"{1 / steps:g} for each step"
        return f"{rate} in all GMIs, of {self.batch_size:,} kept samples in each {where}"

    def own_faults(self) -> Iterator[Fault]:
        """Yields faults unless a first update is possible, and each row has one goal."""
        yield from super().own_faults()
        if self.replay_start >= self.replay_capacity:
            yield Fault(
                "algorithm.replay_start", self.replay_start,
                f"must be below replay_capacity={self.replay_capacity}",
                "Lower it, or raise replay_capacity.",
            )  # fmt: skip
        if self.hindsight and self.n_step > 1:
            yield Fault(
                "algorithm.hindsight", self.hindsight,
                "rewards of n_step steps would be of several goals, as each step has its own",
                "Leave n_step out, or hindsight.",
            )  # fmt: skip

    def fixed_faults(
        self, keys: Mapping[str, Any], rule: str, alternative: str = ""
    ) -> Iterator[Fault]:
        """Yields a fault for each of these keys that has another value than the one given."""
        for name, required in keys.items():
            if (value := getattr(self, name)) != required:
                remedy = f"Use {str(required).lower()}{alternative}."
                yield Fault(f"algorithm.{name}", value, rule, remedy)

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields faults unless there are enough rows for a batch at the first update."""
        yield from super().faults(config, agents, trainers)
        num_env = config.env.num_env * max(agents // max(trainers, 1), 1)
        if config.mode == "async":
            num_env = config.env.num_env * config.experience.batch_segments
        if self.replay_start >= self.replay_capacity:
            return
        steps, setting = max((self.n_step, "n_step"), (self.drawn_steps, "horizon"))
        if self.replay_capacity < num_env * steps:
            yield Fault(
                "algorithm.replay_capacity", self.replay_capacity,
                f"must hold {setting}={steps} steps of {num_env} environments",
                f"Raise it, or lower env.num_env or {setting}.",
            )  # fmt: skip
            return
        round_rows = num_env * self.horizon
        first_update = (self.replay_start // round_rows + 1) * round_rows
        stored = min(first_update, self.replay_capacity // num_env * num_env) // self.drawn_steps
        if self.batch_size > stored:
            noun = "rows" if self.drawn_steps == 1 else "sequences"
            yield Fault(
                "algorithm.batch_size", self.batch_size,
                f"must be at most {stored}, the {noun} that are there at the first update",
                "Lower it, or raise replay_start.",
            )  # fmt: skip
