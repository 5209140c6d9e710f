"""Trains whole jobs in this tree and in another commit's, in pairs that take turns.

`bench/train_throughput.py --against COMMIT` is its command.
"""

from __future__ import annotations

import argparse
import os
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from checkout import ROOT, checkout, git, launched_in
from report import emit_pairs, metrics_of, ratios_of, say, spread_of


def training(
    env: str, num_env: int, iterations: int, *, horizon: int = 128, gmis: int = 1, **more: Any
) -> dict[str, Any]:
    """Returns the config of sync PPO with `num_env` environments over all GMIs."""
    samples = num_env * horizon
    return {
        "version": 1,
        "run": {"total_steps": iterations * samples, "checkpoint_every": 0, "eval_episodes": 0},
        "env": {"id": env, "num_env": num_env // gmis},
        "algorithm": {"horizon": horizon, "minibatches": 4, "epochs": 5, **more},
        "hardware": {"backend": "cpu", "num_gpus": 1},
        "layout": {"template": "tcg_ex", "gmi_per_gpu": gmis},
    }


def cases(dry: bool) -> dict[str, dict[str, Any]]:
    """Returns the configs of all cases by name; with `dry` they are as short as possible."""
    cores = len(os.sched_getaffinity(0))

    def iterations(count: int) -> int:
        return 4 if dry else count

    return {
        "ant": training("Ant-v5", 16, iterations(30), gmis=cores, network="ant"),
        "humanoid": training("Humanoid-v5", 16, iterations(25), gmis=cores, network="ant"),
        "cartpole_64": training("CartPole-v1", 64, iterations(60), network=[64, 64]),
        "cartpole_1024": training(
            "CartPole-v1", 1024, iterations(40), horizon=32, network=[64, 64]
        ),
    }


def steps_per_s(tree: Path, config: dict[str, Any]) -> float:
    """Returns the steps a second of the fastest tenth of iterations, after the first.

    Other guests of the machine slow some iterations of a run by far more than two commits differ.
    The fastest iterations of both are alike where the code is.
    """
    with launched_in(tree, config) as run:
        lines = metrics_of(run)
    rates = [
        (line["steps"] - previous["steps"]) / (line["time_s"] - previous["time_s"])
        for previous, line in pairwise(lines)
    ]
    return statistics.quantiles(rates, n=10)[-1]


def compare(options: argparse.Namespace) -> int:
    """Measures the wanted cases in both trees, round after round, and reports their ratios."""
    commit = git("rev-parse", "--short=12", options.against)
    configs = {name: config for name, config in cases(options.dry).items() if name in options.cases}
    samples: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in configs}
    with checkout(commit) as tree:
        for number in range(options.rounds):
            for name, config in configs.items():
                turns = [(ROOT, samples[name][0]), (tree, samples[name][1])]
                for measured_tree, rates in turns if number % 2 == 0 else reversed(turns):
                    rates.append(steps_per_s(measured_tree, config))
                here, there = (rates[-1] for rates in samples[name])
                say(f"round {number + 1} of {options.rounds}  {name}: {here:,.0f}, {there:,.0f}")
    for name, pair in samples.items():
        emit_pairs(
            "train_throughput", f"against/{name}", "steps/s", *pair, against=commit,
            ratio_spread=spread_of(ratios_of(*pair), 3), dry=options.dry,
        )  # fmt: skip
    return 0
