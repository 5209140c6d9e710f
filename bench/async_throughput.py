#!/usr/bin/env python3
"""Measures predictions/s and training samples/s of asynchronous training (figure 11, Table 8).

Claim: agents and trainers on devices of their own, joined by shared-memory channels, predict and
train faster than the plain two-process design with a multiprocessing queue (the paper: 1.88 and
1.65 times), which has the same environments, policy, segments and loss on the same cores. Beside
it stand GMIs with all roles together (mode sync, template tcg_ex, PPO with one epoch and one
minibatch), one process that does both in turn, and the decoupled run with a single channel (UCC)
instead of one for each kind of data (MCC).

Rows: `<task>/predictions/<peer>` and `<task>/training/<peer>`, with the peers `two_process`,
`co_located`, `one_process`, `ucc` and `joined`. Larger ratios are better for us.

    bench/async_throughput.py --rounds 5 --iterations 300
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from modes import Rates, in_turn, launched, peer
from report import emit_pairs

TASKS = {"ant": ("Ant-v5", "ant"), "halfcheetah": ("HalfCheetah-v5", "ant"),
         "cartpole": ("CartPole-v1", [64, 64])}  # fmt: skip
KEYS = {"predictions": "predictions_per_s", "training": "training_samples_per_s"}


def config_of(task: str, options: argparse.Namespace, channels: str = "mcc") -> dict[str, Any]:
    """Returns the config of the decoupled run of a task."""
    env, network = TASKS[task]
    samples = options.num_env * options.horizon
    return {
        "version": 1,
        "mode": "async",
        "run": {
            "total_steps": options.iterations * samples, "checkpoint_every": 0, "eval_episodes": 0
        },
        "env": {"id": env, "num_env": options.num_env},
        "algorithm": {"name": "impala", "network": network, "horizon": options.horizon},
        "hardware": {"backend": "cpu", "num_gpus": 2},
        "layout": {"template": "decoupled"},
        "experience": {"channels": channels, "capacity": 2},
    }  # fmt: skip


def co_located(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the config with all roles in each GMI, which has half of the environments."""
    config = config_of(task, options)
    del config["experience"]
    network = config["algorithm"]["network"]
    algorithm = {"network": network, "horizon": options.horizon, "minibatches": 1, "epochs": 1}
    env = {**config["env"], "num_env": options.num_env // 2}
    return config | {
        "mode": "sync", "algorithm": algorithm, "env": env, "layout": {"template": "tcg_ex"},
        "comm": {"reduction": "mpr"},
    }  # fmt: skip


def measure(task: str, options: argparse.Namespace) -> None:
    """Measures all contestants of one task in turn, and emits their rows."""
    warmup, count = options.warmup, options.iterations
    config = config_of(task, options)

    def by_peer(processes: int) -> Rates:
        return peer(config, count, warmup, processes)

    results = in_turn(
        {
            "decoupled": lambda: launched(config, warmup),
            "two_process": lambda: by_peer(2),
            "co_located": lambda: launched(co_located(task, options), warmup),
            "one_process": lambda: by_peer(1),
            "ucc": lambda: launched(config_of(task, options, "ucc"), warmup),
            "joined": lambda: launched(config_of(task, options, "joined"), warmup),
        },
        options.rounds,
    )
    ours = results.pop("decoupled")
    lag = sum(rates["policy_lag"] for rates in ours) / len(ours)
    for peer_name, peer_rates in results.items():
        for quantity, key in KEYS.items():
            emit_pairs(
                "async_throughput", f"{task}/{quantity}/{peer_name}", "1/s",
                [rates[key] for rates in ours], [rates[key] for rates in peer_rates],
                num_env=options.num_env, horizon=options.horizon, policy_lag=round(lag, 3),
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["ant", "cartpole"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=300, help="segments trained on in a run")
    parser.add_argument("--warmup", type=int, default=50, help="of these")
    parser.add_argument("--num-env", type=int, default=16)
    parser.add_argument("--horizon", type=int, default=32)
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two cores are needed: one to simulate and infer, one to train.")
    for task in options.tasks:
        measure(task, options)


if __name__ == "__main__":
    main()
