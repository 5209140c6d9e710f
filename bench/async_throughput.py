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
import statistics
from functools import partial
from typing import Any

from modes import ask_peer, column, in_turn, launched
from report import emit_pairs, parser

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
    configs = {
        "decoupled": config_of(task, options), "co_located": co_located(task, options),
        "ucc": config_of(task, options, "ucc"), "joined": config_of(task, options, "joined"),
    }  # fmt: skip
    entries = {name: partial(launched, config, warmup) for name, config in configs.items()}
    asked = {"config": configs["decoupled"], "iterations": count, "warmup": warmup}
    for name, processes in (("two_process", 2), ("one_process", 1)):
        entries[name] = partial(ask_peer, "two_process.py", processes=processes, **asked)
    results = in_turn(entries, options.rounds)
    lag = statistics.fmean(rates["policy_lag"] for rates in results["decoupled"])
    for quantity, key in KEYS.items():
        rates = column(results, key)
        ours = rates.pop("decoupled")
        for peer_name, peer_rates in rates.items():
            emit_pairs(
                "async_throughput", f"{task}/{quantity}/{peer_name}", "1/s", ours, peer_rates,
                num_env=options.num_env, horizon=options.horizon, policy_lag=round(lag, 3),
            )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, rounds=5, num_env=16, horizon=32)
    options_of.add_argument("--tasks", nargs="+", choices=TASKS, default=["ant", "cartpole"])
    options_of.add_argument("--iterations", type=int, default=300, help="segments of a run")
    options_of.add_argument("--warmup", type=int, default=50, help="of these")
    options = options_of.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two cores are needed: one to simulate and infer, one to train.")
    for task in options.tasks:
        measure(task, options)


if __name__ == "__main__":
    main()
