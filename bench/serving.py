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

from modes import in_turn, launched
from report import emit_pairs

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
    results = in_turn(
        {
            "tcg": lambda: launched(config_of(task, options, "tcg", gmis)),
            "tdg": lambda: launched(config_of(task, options, "tdg", gmis)),
            "one_process": lambda: launched(config_of(task, options, "tcg", 1)),
        },
        options.rounds,
    )
    ours = results.pop("tcg")
    for peer_name, peer_runs in results.items():
        rates = [[run["predictions_per_s"] for run in runs] for runs in (ours, peer_runs)]
        name = f"{task}/{peer_name}"
        emit_pairs("serving", name, "steps/s", *rates, num_env=options.num_env, gmis=gmis)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["ant", "cartpole"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--num-env", type=int, default=32, help="over all simulators")
    options = parser.parse_args()
    gmis = len(os.sched_getaffinity(0)) // 2 * 2
    if not gmis:
        raise SystemExit("two cores are needed: TDG has a simulator and an agent.")
    for task in options.tasks:
        measure(task, options, gmis)


if __name__ == "__main__":
    main()
