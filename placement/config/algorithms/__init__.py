"""Defines the settings of each algorithm, and tables them by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from gmi_drl.placement.config.section import broken
from gmi_drl.placement.faults import Fault, closest

from .common import (
    MODE_OF_OPTIMIZER,
    ActorCriticConfig,
    AlgorithmConfig,
    ReplayConfig,
    SegmentsConfig,
)
from .custom import CustomAlgorithmConfig, settings_of

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config
    from gmi_drl.placement.faults import Fault


class PPOConfig(ActorCriticConfig):
    """Proximal policy optimisation. The defaults are the paper's settings for Ant."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.ppo:PPO"

    name: Literal["ppo"] = "ppo"
    kl_target: float = Field(default=0.008, gt=0)
    """KL divergence that the adaptive schedule aims at."""
    clip: float = Field(default=0.2, gt=0)
    """Clip range of PPO's probability ratio."""
    clip_value_loss: bool = True
    """Clip the change of value predictions by `clip` too."""
    normalize_advantage: bool = True
    """Normalise advantages over the samples of an update, of all GMIs."""

    @property
    def followed_kl(self) -> float | None:
        return self.kl_target if self.schedule == "adaptive" else None

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault unless the samples of an update divide by the minibatches."""
        num_env, each = config.env.num_env, max(1, agents // trainers) if trainers else 1
        product = f"num_env={num_env} x horizon={self.horizon}"
        if each > 1:
            product += f" x {each} agents"
        yield from self.minibatch_faults(
            num_env * self.horizon * each, "samples of an update of one GMI", product, "horizon"
        )


class IMPALAConfig(SegmentsConfig):
    """Actor-critic with V-trace, which corrects for old experience."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.impala:IMPALA"

    name: Literal["impala"] = "impala"
    rho_clip: float = Field(default=1.0, gt=0)
    """V-trace: truncation of the importance weights; what it learns the value of is nearer to the
    present policy the larger it is."""
    c_clip: float = Field(default=1.0, gt=0, validate_default=True)
    """V-trace: truncation of the weights that pass errors back along a segment; at most `rho_clip`.
    Less is less variance."""

    @field_validator("c_clip")
    @classmethod
    def _at_most_rho_clip(cls, value: float, info: ValidationInfo) -> float:
        rho_clip = info.data.get("rho_clip")
        if rho_clip is not None and value > rho_clip:
            raise broken(f"must be at most rho_clip, {rho_clip:g}", "Lower it, or raise rho_clip.")
        return value


class A3CConfig(SegmentsConfig):
    """Actor-critic without correction for old experience."""

    implementation: ClassVar[str] = "gmi_drl.roles.algorithms.a3c:A3C"

    name: Literal["a3c"] = "a3c"


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


__all__ = [
    "ALGORITHMS", "LACKING", "MODE_OF_OPTIMIZER", "A3CConfig", "ActorCriticConfig",
    "AlgorithmConfig", "CustomAlgorithmConfig", "IMPALAConfig", "PPOConfig", "algorithm_config",
    "algorithms_of", "mode_faults", "section_class", "settings_of",
]  # fmt: skip

# Of those that train in a mode the first one is its default.
ALGORITHMS: Final[dict[str, type[AlgorithmConfig]]] = {
    "ppo": PPOConfig,
    "impala": IMPALAConfig,
    "a3c": A3CConfig,
    "dqn": DQNConfig,
}

# What people ask for by name, and is not here.
LACKING: Final = frozenset(
    {
        "a2c", "acer", "acktr", "apex", "appo", "ars", "c51", "cql", "ddpg", "dreamer",
        "dreamerv3", "es", "iql", "maddpg", "mappo", "mpo", "muzero", "pg", "qr-dqn", "qrdqn",
        "r2d2", "rainbow", "recurrentppo", "redq", "reinforce", "sac", "td3", "tqc", "trpo", "vpg",
    }
)  # fmt: skip


def algorithms_of(mode: str) -> list[str]:
    """Returns the names of the algorithms that train in a mode, the default first."""
    return [
        name
        for name, settings in ALGORITHMS.items()
        if any(MODE_OF_OPTIMIZER[optimizer] == mode for optimizer in settings.optimizers)
    ]


def section_class(section: Any) -> type[AlgorithmConfig]:
    """Returns the class of the settings that a section `algorithm` is read by."""
    keys = section if isinstance(section, dict) else {}
    if "class" in keys:
        return CustomAlgorithmConfig
    name = str(keys.get("name", "ppo"))
    return ALGORITHMS.get(name) or ALGORITHMS[closest(name, ALGORITHMS) or "ppo"]


def algorithm_config(section: dict[str, Any]) -> AlgorithmConfig:
    """Returns the settings in a section `algorithm`."""
    return section_class(section).model_validate(section)


def mode_faults(settings: AlgorithmConfig, mode: str) -> Iterator[Fault]:
    """Yields a fault where an algorithm's optimizer runs in another mode than the config's."""
    if mode == "serving" or (settings.optimizer == "auto" and not settings.optimizers):
        return  # it trains nothing; the class is not loaded
    optimizer = settings.resolved_optimizer
    home = MODE_OF_OPTIMIZER[optimizer]
    rule = f"in mode {home}, and the mode is {mode}"
    fitting = [name for name in settings.optimizers if MODE_OF_OPTIMIZER[name] == mode]
    if home != mode and not fitting and settings.name in ALGORITHMS:
        yield Fault(
            "algorithm.name", settings.name, f"it trains {rule}",
            f"Use {' or '.join(algorithms_of(mode))}, or set mode: {home}.",
        )  # fmt: skip
    elif home != mode:
        other = f"Use {' or '.join(fitting)}, or set" if fitting else "Set"
        yield Fault(
            "algorithm.optimizer", settings.optimizer, f"{optimizer} runs {rule}",
            f"{other} mode: {home}.",
        )  # fmt: skip
