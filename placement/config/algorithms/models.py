"""Defines the settings of algorithms that learn a model of the environment: MBPO, and CEM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from gmi_drl.placement.config.section import Int, Network
from gmi_drl.placement.faults import Fault

from .common import Horizon
from .off_policy import SACConfig
from .replay import ReplayConfig

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config


class MBPOConfig(SACConfig):
    """Model-based policy optimization (Janner et al., 2019): SAC on short roll-outs of a model.

    See [models](models.md).
    """

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.mbpo:MBPO"
    optimizers: ClassVar[tuple[str, ...]] = ("replay",)

    name: Literal["mbpo"] = "mbpo"  # type: ignore[assignment]
    ensemble: Int = Field(default=7, ge=1, le=100)
    """Networks of the model, each of which learns by rows that it draws for itself."""
    elites: Int = Field(default=5, ge=1)
    """Those of them with the least error on held out steps, which roll-outs are made by."""
    model_network: list[Int] = Field(default=[200, 200, 200, 200])
    """Hidden layers of each; none: a linear model."""
    model_learning_rate: float = Field(default=1e-3, gt=0, le=1)
    model_beta: float = Field(default=0.5, ge=0, le=1)
    """The power of the predicted variance that the model's loss is weighted by (Seitzer et al.,
    2022); 0: the plain likelihood, with which what is predicted badly is learned slowly."""
    model_weight_decay: float = Field(default=1e-5, ge=0)
    model_batch_size: Int = Field(default=256, ge=1)
    model_every: Int = Field(default=250, ge=1)
    """Steps in each GMI between two times that the model is trained, and roll-outs are made."""
    model_epochs: Int = Field(default=100, ge=1)
    """The most passes over the kept steps, each time that the model is trained."""
    model_patience: Int = Field(default=5, ge=1)
    """Passes without a network that has become 1 % better on held out steps, which end it."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """The share of the kept steps that the model is not trained on, but tried on."""
    rollouts: Int = Field(default=10_000, ge=1)
    """Roll-outs that are made each time, from steps of the replay."""
    rollout_length: Int = Field(default=1, ge=1, le=1_000)
    """Steps of a roll-out, by the policy of that time; fewer where the model's episode ends."""
    rollouts_kept: Int = Field(default=4, ge=1)
    """The newest roll-outs that are trained on, of so many times that they were made."""
    real_share: float = Field(default=0.05, ge=0, le=1)
    """The share of each minibatch that is of real steps; 1: the model is not used."""
    termination: str = "never"
    """When the model's episodes are over: `never`, `hopper`, `walker2d`, `inverted_pendulum`, or
    module:function of yours. See [terminations](models.md#terminations)."""

    def own_faults(self) -> Iterator[Fault]:
        """Yields faults unless roll-outs can be made of what the replay keeps."""
        yield from super().own_faults()
        if self.elites > self.ensemble:
            yield Fault(
                "algorithm.elites", self.elites,
                f"must be at most ensemble={self.ensemble}, as they are some of it",
                "Lower it, or raise ensemble.",
            )  # fmt: skip
        rule = "the model is of single steps that are drawn alike"
        keys = {"n_step": 1, "sampler": "uniform", "hindsight": 0.0}
        yield from self.fixed_faults(keys, rule, ", or name: sac")
        if self.replay_start < 2:
            yield Fault(
                "algorithm.replay_start", self.replay_start,
                "the model needs a step to learn from and one that is held out",
                "Use 2 or more; some hundreds are usual.",
            )  # fmt: skip
        if any(size < 1 for size in self.model_network):
            yield Fault(
                "algorithm.model_network", self.model_network, "sizes must be 1 or more",
                "Correct it, or use [] for a linear model.",
            )  # fmt: skip


class CEMConfig(ReplayConfig):
    """Planning by the cross-entropy method or MPPI, on a learned model (PETS, Chua et al., 2018).

    On a known model there is nothing to learn: `mode: serving` acts by it. See [models](models.md).
    """

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.cem:CEM"
    optimizers: ClassVar[tuple[str, ...]] = ("replay",)
    adam_eps: ClassVar[float] = 1e-8

    name: Literal["cem"] = "cem"
    model: str = "learned"
    """The model that plans are tried in: `learned`, an ensemble that is trained; `pendulum`, or
    module:function of yours: equations that are [known](models.md#known-models)."""
    ensemble: Int = Field(default=5, ge=1, le=100)
    """Networks of a learned model, all of which try each plan."""
    network: Network = Field(
        default=(200, 200),
        description="Hidden layers of each network of the ensemble: a list of sizes.",
    )
    model_beta: float = Field(default=0.5, ge=0, le=1)
    """The power of the predicted variance that the model's loss is weighted by (Seitzer et al.,
    2022); 0: the plain likelihood, with which what is predicted badly is learned slowly."""
    horizon: Horizon = 8
    normalize_observation: bool = True
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    max_grad_norm: float | None = Field(default=None, ge=0)
    batch_size: Int = Field(default=256, ge=1)
    updates_per_row: float = Field(default=1.0, gt=0)
    random_steps: Int = Field(default=1_000, ge=0)
    """Steps of all environments that are taken at random at first."""
    action_noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise that actions are explored by, of actions in [-1, 1]."""
    planner: Literal["cem", "mppi"] = "cem"
    """`cem`: the mean and deviation of the best plans; `mppi`: the mean of all, weighted by the
    exponential of their returns."""
    plan_length: Int = Field(default=20, ge=1, le=10_000)
    """Steps of a plan, of which the first is taken."""
    candidates: Int = Field(default=200, ge=2)
    """Plans that are tried at once."""
    plan_iterations: Int = Field(default=4, ge=1)
    """Times that they are, each around the best of before."""
    plan_elites: Int = Field(default=20, ge=1)
    """Planner `cem`: the best plans, which the next ones are drawn around."""
    plan_temperature: float = Field(default=1.0, gt=0)
    """Planner `mppi`: the difference of returns at which a plan weighs e times as much."""

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault unless there is a model to learn."""
        yield from super().faults(config, agents, trainers)
        if self.model != "learned" and config.mode != "serving":
            yield Fault(
                "algorithm.model", self.model, "a known model has nothing that could be trained",
                "Set mode: serving, which acts by it, or model: learned.",
            )  # fmt: skip

    def own_faults(self) -> Iterator[Fault]:
        """Yields faults unless the model can be learned, and there are plans to choose from."""
        yield from super().own_faults()
        if self.model != "learned" and self.normalize_observation:
            yield Fault(
                "algorithm.normalize_observation", True,
                f"equations ({self.model}) take observations as they are", "Set it to false.",
            )  # fmt: skip
        if self.plan_elites > self.candidates:
            yield Fault(
                "algorithm.plan_elites", self.plan_elites,
                f"must be at most candidates={self.candidates}, as they are some of them",
                "Lower it, or raise candidates.",
            )  # fmt: skip
        if not isinstance(self.network, (list, tuple)):
            yield Fault(
                "algorithm.network", self.network, "a model of vectors has a list of sizes",
                "Use [200, 200].",
            )  # fmt: skip
        rule = "the model is of single steps of vectors, in fp32"
        keys = {"n_step": 1, "hindsight": 0.0, "layer_norm": False, "precision": "fp32"}
        yield from self.fixed_faults({**keys, "sampler": "uniform"}, rule)
