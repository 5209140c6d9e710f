"""Holds the settings of each algorithm: a new one is a file here and a line in `ALGORITHMS`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gmi_drl.placement.faults import Fault, closest, listed

from .a2c import A2CConfig, A3CConfig, PGConfig
from .actor_critic import ActorCriticConfig
from .alphazero import AlphaZeroConfig
from .common import MODE_OF_OPTIMIZER, TEMPLATE_OF_OPTIMIZER, AlgorithmConfig, RecurrentConfig
from .custom import CustomAlgorithmConfig, settings_of, validated
from .dqn import DQNConfig
from .evolution import ARSConfig, ESConfig, EvolutionConfig
from .impala import APPOConfig, IMPALAConfig
from .mappo import MAPPOConfig
from .models import CEMConfig, MBPOConfig
from .off_policy import DDPGConfig, OffPolicyConfig, SACConfig, TD3Config
from .ppo import PPOConfig
from .replay import ReplayConfig
from .team import QMIXConfig, VDNConfig

__all__ = [
    "ALGORITHMS", "CALLED_HERE", "LACKING", "MODE_OF_OPTIMIZER", "TEMPLATE_OF_OPTIMIZER",
    "A2CConfig", "A3CConfig", "APPOConfig", "ARSConfig", "ActorCriticConfig", "AlgorithmConfig",
    "AlphaZeroConfig", "CEMConfig", "CustomAlgorithmConfig", "DDPGConfig", "DQNConfig", "ESConfig",
    "EvolutionConfig", "IMPALAConfig", "MAPPOConfig", "MBPOConfig", "OffPolicyConfig", "PGConfig",
    "PPOConfig", "QMIXConfig", "RecurrentConfig", "ReplayConfig", "SACConfig", "TD3Config",
    "VDNConfig", "algorithm_config", "algorithms_of", "mode_faults", "section_class", "settings_of",
    "validated",
]  # fmt: skip

# The first of those that train in a mode is the mode's default.
ALGORITHMS: Final[dict[str, type[AlgorithmConfig]]] = {
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "pg": PGConfig,
    "a3c": A3CConfig,
    "impala": IMPALAConfig,
    "appo": APPOConfig,
    "dqn": DQNConfig,
    "sac": SACConfig,
    "td3": TD3Config,
    "ddpg": DDPGConfig,
    "es": ESConfig,
    "ars": ARSConfig,
    "mappo": MAPPOConfig,
    "vdn": VDNConfig,
    "qmix": QMIXConfig,
    "alphazero": AlphaZeroConfig,
    "mbpo": MBPOConfig,
    "cem": CEMConfig,
}

# Algorithms that people ask for by name and that gmi-drl lacks.
LACKING: Final = frozenset(
    {
        "acer", "acktr", "apex", "c51", "cql", "dreamer",
        "dreamerv3", "iql", "maddpg", "mpo", "muzero", "qr-dqn", "qrdqn",
        "r2d2", "rainbow", "redq", "reinforce", "tqc", "trpo", "vpg",
    }
)  # fmt: skip

# Those of them that exist here by another name, or as settings of another algorithm.
CALLED_HERE: Final = {
    "apex": "dqn, sac, td3 or ddpg in mode: async, whose optimizer is apex",
    "c51": "dqn with distributional: c51",
    "qr-dqn": "dqn with distributional: qr",
    "qrdqn": "dqn with distributional: qr",
    "r2d2": "dqn with recurrent",
    "rainbow": "dqn with its settings of Rainbow",
    "reinforce": "pg",
    "vpg": "pg",
}


def algorithms_of(mode: str) -> list[str]:
    """Returns the names of the algorithms that train in a mode, the default first."""
    return [name for name, settings in ALGORITHMS.items() if settings.optimizers_in(mode)]


def section_class(section: Any) -> type[AlgorithmConfig]:
    """Returns the class of settings for a section `algorithm`."""
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
    optimizer = settings.resolved_optimizer
    if mode == "serving" or not optimizer:
        return  # nothing is trained, or the class is not loaded
    optimizer_mode = MODE_OF_OPTIMIZER[optimizer]
    rule = f"in mode {optimizer_mode}, and the mode is {mode}"
    optimizers = settings.optimizers_in(mode)
    if optimizers and settings.optimizer == "auto":
        return
    if optimizer_mode != mode and not optimizers and settings.name in ALGORITHMS:
        yield Fault(
            "algorithm.name", settings.name, f"it trains {rule}",
            f"Set mode: {optimizer_mode}, or use {listed(algorithms_of(mode), 'or')}.",
        )  # fmt: skip
    elif optimizer_mode != mode:
        remedy = f"Use {listed(optimizers, 'or')}, or set" if optimizers else "Set"
        yield Fault(
            "algorithm.optimizer", settings.optimizer, f"{optimizer} runs {rule}",
            f"{remedy} mode: {optimizer_mode}.",
        )  # fmt: skip
