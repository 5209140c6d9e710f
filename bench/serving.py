#!/usr/bin/env python3
"""Measures served steps/s of TCG against TDG and one process (GMI-DRL, figure 7a).

Claim: simulator and agent together in each GMI (TCG) serve more steps a second than in GMIs of
their own (TDG; the paper's model: 2.5 times), and several GMIs more than one process with all
cores. The simulated work, the policy and the cores are the same.

Rows: `<task>/tdg` and `<task>/one_process`: TCG over the other.

    bench/serving.py --rounds 5 --steps 400000
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from modes import column, in_turn, launched
from report import emit_pairs, parser

TASKS = {"ant": "Ant-v5", "halfcheetah": "HalfCheetah-v5", "cartpole": "CartPole-v1"}


def config_of(task: str, options: argparse.Namespace, template: str, gmis: int) -> dict[str, Any]:
    """Returns the config of a serving run; all layouts have the same environments in total."""
    simulators = gmis // 2 if template == "tdg" else gmis
    return {
        "version": 1,
        "mode": "serving",
        "run": {"total_steps": options.steps},
        "env": {"id": TASKS[task], "num_env": options.num_env // simulators},
        "algorithm": {"network": "ant"},
        "hardware": {"backend": "cpu", "num_gpus": 1},
        "layout": {"template": template, "gmi_per_gpu": gmis},
    }


def measure(task: str, options: argparse.Namespace, gmis: int) -> None:
    """Measures TCG, TDG and one process in turn, and emits their rows."""
    ways = {"tcg": ("tcg", gmis), "tdg": ("tdg", gmis), "one_process": ("tcg", 1)}
    entries = {
        name: lambda way=way: launched(config_of(task, options, *way)) for name, way in ways.items()
    }
    rates = column(in_turn(entries, options.rounds), "predictions_per_s")
    ours, fields = rates.pop("tcg"), {"num_env": options.num_env, "gmis": gmis}
    for peer, peer_rates in rates.items():
        emit_pairs("serving", f"{task}/{peer}", "steps/s", ours, peer_rates, **fields)


def main() -> None:
    options_of = parser(__doc__, rounds=5, steps=400_000)
    options_of.add_argument("--tasks", nargs="+", choices=TASKS, default=["ant", "cartpole"])
    options_of.add_argument("--num-env", type=int, default=32, help="over all simulators")
    options = options_of.parse_args()
    gmis = len(os.sched_getaffinity(0)) // 2 * 2
    if not gmis:
        raise SystemExit("two cores are needed: TDG has a simulator and an agent.")
    for task in options.tasks:
        measure(task, options, gmis)


if __name__ == "__main__":
    main()
