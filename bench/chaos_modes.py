"""Lists the modes of the runs that chaos.py strikes, and the config of each."""

from __future__ import annotations

import os
from typing import Any, Final

HANG_S: Final = 6.0  # run.hang_timeout_s
_PPO: Final = {"network": [16], "horizon": 16, "minibatches": 2, "epochs": 1}
_DQN: Final = {
    "name": "dqn", "network": [16], "horizon": 8, "batch_size": 16, "replay_capacity": 2000,
    "replay_start": 100, "updates_per_row": 0.1,
}  # fmt: skip
_GAMES: Final = {
    "name": "alphazero", "network": [8], "blocks": 0, "games": 6, "simulations": 6,
    "play_simulations": 6, "batch_size": 8, "updates_per_row": 0.1, "gate_every": 2,
    "gate_games": 4, "gate_share": 0.3, "replay_capacity": 100,
}  # fmt: skip
_MBPO: Final = {
    "name": "mbpo", "network": [8], "horizon": 8, "batch_size": 16, "replay_capacity": 2000,
    "replay_start": 64, "updates_per_row": 0.1, "ensemble": 2, "elites": 1, "model_network": [8],
    "model_epochs": 2, "rollouts": 64,
}  # fmt: skip
_SPREAD: Final = {"id": "mpe2.simple_spread_v3", "adapter": "pettingzoo", "num_env": 4}
_TWO_DEVICES: Final = {"hardware": {"num_gpus": 2}, "layout": {"gmi_per_gpu": 1}}
_A3C: Final = {"name": "a3c", "network": [16], "horizon": 8}
_A2C: Final = {
    "name": "a2c", "network": [16], "horizon": 8, "optimizer": "parameter_server",
    "normalize_value": False, "reward_scale": 0.1,
}  # fmt: skip
_SEARCH: Final = {
    "algorithm": "pbt", "population": 4, "interval_steps": 2048,
    "ranges": {"algorithm.learning_rate": {"log_uniform": [1e-4, 1e-2]}},
}  # fmt: skip
_TWO_HOSTS: Final = {  # both on one core
    "cluster": {
        "address": "127.0.0.1:9", "hosts": 2, "trusted": True, "on_loss": "wait", "wait_s": 60,
    },
    "hardware": {"backend": "cpu", "cores": [min(os.sched_getaffinity(0))]},
    "layout": {"gmi_per_gpu": 1},
}  # fmt: skip
# The sections in which a mode differs from the config below.
MODES: Final[dict[str, dict[str, Any]]] = {
    "tcg_ex": {},
    "one GMI": {"layout": {"gmi_per_gpu": 1}},
    "tdg_ex": {"layout": {"template": "tdg_ex"}},
    "async": {"mode": "async", "algorithm": _PPO | {"name": "impala"}, **_TWO_DEVICES},
    "appo": {"mode": "async", "algorithm": _PPO | {"name": "appo"}, **_TWO_DEVICES},
    "drop_slowest": {"algorithm": _PPO | {"drop_slowest": 1}},
    "a3c": {"algorithm": _A3C, "layout": {"template": "tdg_ex"}},
    "parameter_server": {"algorithm": _A2C, "layout": {"template": "parameter_server"}},
    "replay": {"algorithm": _DQN},
    "apex": {"mode": "async", "algorithm": _DQN, **_TWO_DEVICES},
    "es": {"algorithm": {"name": "es", "network": [8], "population": 32}},
    "alphazero": {"algorithm": _GAMES, "env": {"id": "TicTacToe-v0", "num_env": 2}},
    "ars": {"algorithm": {"name": "ars", "network": [], "population": 32}},
    "mbpo": {"env": {"id": "Pendulum-v1", "num_env": 2}, "algorithm": _MBPO},
    "several agents": {
        "env": {"id": "mpe2.simple_adversary_v3", "adapter": "pettingzoo", "num_env": 4},
        "multi_agent": {
            "policies": ["adversary", "good"],
            "mapping": {"adversary_*": "adversary", "agent_*": "good"},
        },
    },
    "mappo": {"env": _SPREAD, "algorithm": _PPO | {"name": "mappo"}},
    "qmix": {"env": _SPREAD, "algorithm": _DQN | {"name": "qmix"}},
    "self-play": {
        "env": {"id": "pettingzoo.classic.tictactoe_v3", "adapter": "pettingzoo"},
        "multi_agent": {"self_play": {"snapshots": 2, "every": 2}},
    },
    "serving": {"mode": "serving", "algorithm": {"network": [16]}, "layout": {"template": "tdg"}},
    "tune": {
        "env": {"id": "CartPole-v1", "num_env": "auto"}, "layout": {"gmi_per_gpu": "auto"},
        "tune": {"objective": "steps", "keep": "none", "max_num_env": 8, "budget_s": 60},
    },
    "search": {"layout": {"gmi_per_gpu": 1}, "search": _SEARCH},
    "two devices": _TWO_DEVICES,
    "resize": {},  # each strike comes while the layout changes
    "hosts": _TWO_HOSTS,
    "hosts that sample": _TWO_HOSTS
    | {
        "mode": "async", "algorithm": _PPO | {"name": "impala"},
        "cluster": _TWO_HOSTS["cluster"] | {"trainer_hosts": 1},
    },
}  # fmt: skip
ON_HOSTS: Final = ("hosts", "hosts that sample")


def config_of(mode: str, seed: int) -> dict[str, Any]:
    """Returns the config of a run of this mode."""
    sections: dict[str, Any] = {
        "version": 1,
        "run": {
            "name": "t", "folder": "runs", "seed": seed % 2**31, "total_steps": 8192,
            "checkpoint_every": 5, "eval_episodes": 2, "max_restarts": 1000,
            "hang_timeout_s": HANG_S,
        },
        "env": {"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 50},
        "algorithm": _PPO,
        "layout": {"gmi_per_gpu": 2},
        "comm": {"timeout_s": 60},
    }  # fmt: skip
    for section, settings in MODES[mode].items():
        merge = section in ("env", "layout")
        sections[section] = sections[section] | settings if merge else settings
    return sections
