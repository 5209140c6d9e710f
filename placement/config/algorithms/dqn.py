"""Defines the settings of DQN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from gmi_drl.placement.config.section import Bounds, Int, broken
from gmi_drl.placement.faults import Fault

from .common import RecurrentConfig, short_horizon
from .replay import ReplayConfig


class DQNConfig(ReplayConfig):
    """Deep Q-learning with a target network, for Discrete actions.

    `double`, `n_step`, `sampler: prioritized`, `dueling`, `noisy` and `distributional: c51` are the
    parts of Rainbow (Hessel et al., 2018).
    """

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.dqn:DQN"
    target_networks: ClassVar[int] = 1

    name: Literal["dqn"] = "dqn"
    target_every: Int = Field(default=128, ge=1)
    """Updates between two copies into the target network."""
    double: bool = True
    """Choose the next action by the network, and value it by the target network."""
    dueling: bool = False
    """Streams of their own for the value of the state and for the advantages of actions (Wang et
    al., 2016), each with a hidden layer as wide as the last of `network`."""
    noisy: bool = False
    """Explore by noise on the weights behind `network`, whose size is learned (Fortunato et al.,
    2018), and not by `epsilon`. It is drawn for each step and each update; evaluation has none."""
    distributional: Literal["none", "c51", "qr"] = "none"
    """Learn how the return of an action is distributed, and not its mean alone: `c51` (Bellemare et
    al., 2017), the probabilities of `atoms` returns in `value_range`; `qr` (QR-DQN, Dabney et al.,
    2018), its `quantiles`."""
    atoms: Int = Field(default=51, ge=2, le=10_000)
    """`c51`: the returns that have probabilities, evenly from end to end of `value_range`."""
    value_range: Bounds | None = Field(default=None, validate_default=True)
    """`c51`, which needs it: the least and the largest discounted return, of scaled rewards."""
    quantiles: Int = Field(default=200, ge=1, le=10_000)
    """`qr`: the quantiles of each action's return."""
    epsilon: float = Field(default=0.04, ge=0, le=1)
    """The share of random actions in the end."""
    epsilon_steps: Int = Field(default=16_000, ge=1)
    """Steps of all environments over which the share of random actions falls, linearly from 1."""

    epsilon_alpha: float = Field(default=0.0, ge=0)
    """How unlike environments explore (Ape-X): number i of the N of all GMIs has `epsilon` ** (1 +
    `epsilon_alpha` i / (N - 1)) in the end. The paper has 7, with `epsilon: 0.4`; 0: all alike."""
    recurrent: RecurrentConfig | None = None
    """A network that remembers what it saw in an episode (R2D2, Kapturowski et al., 2019): the
    `cell`, `lstm` (default) or `gru`, and its `size` (128); `{}` is the defaults. What is drawn are
    sequences of `horizon` steps then. See [sequences](replay.md#sequences)."""
    burn_in: bool = True
    """With `recurrent`: the horizon before a sequence is put through the network first, so that the
    state that the sequence begins with is of the network as it is by now."""

    @field_validator("value_range")
    @classmethod
    def _check_value_range(
        cls, value: tuple[float, float] | None, info: ValidationInfo
    ) -> tuple[float, float] | None:
        remedy = "Give the least and the largest discounted sum of scaled rewards"
        if value is None and info.data.get("distributional") == "c51":
            hint = "or use distributional: qr, which needs none"
            raise broken("distributional: c51 needs it", f"{remedy}, such as [-10, 10], {hint}.")
        if value is not None and value[0] >= value[1]:
            raise broken("must be two numbers, the smaller one first", f"{remedy}.")
        return value

    @property
    def outputs_per_action(self) -> int:
        """The numbers that the network gives for each action."""
        return {"none": 1, "c51": self.atoms, "qr": self.quantiles}[self.distributional]

    def head_layers(self, features: int, parameters: int) -> list[tuple[int, int]]:
        outputs = parameters * self.outputs_per_action
        if not self.dueling:
            return [(features, outputs)]
        hidden = (features, features)
        return [hidden, (features, self.outputs_per_action), hidden, (features, outputs)]

    @property
    def drawn_steps(self) -> int:
        return 1 if self.recurrent is None else self.horizon

    def own_faults(self) -> Iterator[Fault]:
        """Yields faults unless a recurrent network has sequences to learn from."""
        yield from super().own_faults()
        if self.recurrent is None:
            return
        if self.horizon < 2:
            yield short_horizon(self.horizon)
        if self.hindsight:
            yield Fault(
                "algorithm.hindsight", self.hindsight,
                "what a network remembers of an episode is of the goal that it had",
                "Leave it out, or recurrent.",
            )  # fmt: skip

    @property
    def noisy_layers(self) -> bool:
        return self.noisy
