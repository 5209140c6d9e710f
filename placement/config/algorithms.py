"""What the algorithms do not share: their defaults, the fields they use, the mode they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Where an algorithm's default differs from the field's own, which is PPO's.
_ASYNC: Final[Mapping[str, Any]] = {
    "horizon": 20,
    "minibatches": 1,
    "epochs": 1,
    "schedule": "linear",
    "value_coef": 0.5,
    "bounds_coef": 0.1,
}
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ppo": {},
    "impala": {**_ASYNC, "c_clip": 1.0},  # written out, so that it is held against rho_clip
    "a3c": _ASYNC,
}

# Fields that not every algorithm uses.
USED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "kl_target": ("ppo",),
    "clip": ("ppo",),
    "clip_value_loss": ("ppo",),
    "normalize_advantage": ("ppo",),
    "rho_clip": ("impala",),
    "c_clip": ("impala",),
}

# The algorithms that train in a mode, the default first.
ALGORITHMS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "sync": ("ppo",),
    "async": ("impala", "a3c"),
}

# What people ask for by name, and is not here.
LACKING: Final = frozenset(
    {
        "a2c", "acer", "acktr", "apex", "appo", "ars", "c51", "cql", "ddpg", "dqn", "dreamer",
        "dreamerv3", "es", "iql", "maddpg", "mappo", "mpo", "muzero", "pg", "qr-dqn", "qrdqn",
        "r2d2", "rainbow", "recurrentppo", "redq", "reinforce", "sac", "td3", "tqc", "trpo", "vpg",
    }
)  # fmt: skip
