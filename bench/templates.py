#!/usr/bin/env python3
"""Measures templates with roles together against templates with roles split.

Claim: on the same two cores TCG serves more steps a second than TDG, and TCG_EX trains more than
TDG_EX, which GMI-DRL's model projects at 2.58 and 5.46 times. Environments, policy, horizon,
minibatches and epochs are the same; TCG(_EX) has half of the environments in each GMI, TDG(_EX) all
of them in one. All run in turn, round after round; the ratio is the median of those in a round.

Rows: `<task>/serving` and `<task>/training`: steps/s together, over those split. Beside it

    model_paper     the paper's model with the paper's constants
    model_measured  its model with Ts, Ta, Tt and COM / BW as the split run has them, each role on
                    one core: what a waiting role leaves free counts as used by others
    model_held      the same times, but each GMI holds its core while it waits, as here

In serving, TDG simulates one half of the environments while the other half is acted for, so that
in `model_held` the longer of both counts.

    bench/templates.py --rounds 5 --seconds 10
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import numpy as np
from modes import lines_of
from report import emit_pairs, parser, ratios_of, say, spread_of

from gmi_drl.comm.experience import measure_cost
from gmi_drl.comm.transports import create_link
from gmi_drl.placement import TEMPLATES
from gmi_drl.placement.costs import PAPER, Workload

TASKS: Final = {"ant": "Ant-v5", "halfcheetah": "HalfCheetah-v5", "cartpole": "CartPole-v1"}
PAIRS: Final = {"serving": ("tcg", "tdg"), "training": ("tcg_ex", "tdg_ex")}
_WARMUP: Final = 1  # lines of metrics that do not count: the first has the one-time work


@dataclass(frozen=True)
class Times:
    """Holds one run's steps a second, and seconds for a step of all environments at once."""

    steps_per_s: float
    ts_s: float
    ta_s: float
    tt_s: float
    com_s: float


def config_of(mode: str, task: str, template: str, steps: int, num_env: int) -> dict[str, Any]:
    """Returns the config of a run with `num_env` environments in all."""
    simulators = 1 if template.startswith("tdg") else 2
    return {
        "version": 1,
        "mode": "sync" if mode == "training" else mode,
        "run": {"total_steps": steps, "eval_episodes": 0},
        "env": {"id": TASKS[task], "num_env": num_env // simulators},
        "algorithm": {"network": "ant", "horizon": 64, "minibatches": 4},
        "hardware": {"backend": "cpu", "num_gpus": 1, "cores": two_cores()},
        "layout": {"template": template, "gmi_per_gpu": 2},
    }


def two_cores() -> list[int]:
    """Returns the two cores that everything runs on."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: each role that is apart has one.")
    return cores[:2]


def times_of(lines: Sequence[dict[str, Any]], num_env: int, packets_s: float) -> Times:
    """Returns a run's times from its metrics; `packets_s`: sending a step of all in serving."""
    first, last, counted = lines[_WARMUP - 1], lines[-1], lines[_WARMUP:]
    steps = last["steps"] - first["steps"]

    def each(phase: str) -> float:
        return sum(line.get(f"{phase}_s", 0.0) for line in counted) * num_env / steps

    com_s = packets_s
    if "send_s" in last:  # the trainer waits for nothing but its agents, which simulate and infer
        com_s = max(0.0, each("wait") - each("simulate") - each("infer"))
    return Times(
        steps / (last["time_s"] - first["time_s"]),
        each("simulate"),
        each("infer"),
        each("train") + each("reduce"),
        com_s,
    )


def packets_s(task: str, num_env: int) -> float:
    """Returns the seconds of TDG's packets for a step of all: observations, actions, by halves."""
    env = gymnasium.make(TASKS[task])
    sizes = (math.prod(env.observation_space.shape), math.prod(env.action_space.shape))
    env.close()
    cost = measure_cost(create_link("simulator", "agent"))
    return sum(2 * cost.packet_s(4 * (num_env // 2) * size) for size in sizes)


def models(mode: str, times: Times) -> dict[str, float]:
    """Predicts together over split by the three models of the page's head."""
    together, split = PAIRS[mode]
    workload = Workload(
        times.ts_s, times.ta_s, times.tt_s, 1.0, 1.0, 1.0, alpha=1.0, beta=1.0,
        tdg_com_s=times.com_s, tdg_ex_com_s=times.com_s,
    )  # fmt: skip
    cost, split_cost = TEMPLATES[together].cost, TEMPLATES[split].cost
    measured = cost.ratio(split_cost, workload)
    held = 2 * measured  # two cores, of which one works at a time
    if mode == "serving":
        longer = max(times.ts_s, times.ta_s) + times.com_s / 2
        held = 2 * longer / (times.ts_s + times.ta_s)
    return {
        "model_paper": round(cost.ratio(split_cost, PAPER), 3),
        "model_measured": round(measured, 3),
        "model_held": round(held, 3),
    }


def measure(mode: str, task: str, options: argparse.Namespace) -> None:
    """Measures both templates of a mode in turn, and emits their row."""
    num_env, packets = options.num_env, 0.0
    if mode == "serving":
        packets = packets_s(task, num_env)
    steps = dict.fromkeys(PAIRS[mode], options.first_steps)
    runs: dict[str, list[Times]] = {template: [] for template in PAIRS[mode]}
    for template in runs:  # a first run, by which the number of steps is chosen
        (*_, last) = lines_of(config_of(mode, task, template, steps[template], num_env), -1)
        target_steps = last["steps"] / last["time_s"] * options.seconds
        steps[template] = max(int(target_steps), options.first_steps)
    for number in range(options.rounds):
        for template, template_runs in runs.items():
            config = config_of(mode, task, template, steps[template], num_env)
            times = times_of(lines_of(config, _WARMUP), num_env, packets)
            template_runs.append(times)
            say(f"{task} {mode}, round {number + 1}: {template} {times.steps_per_s:,.0f} steps/s")
    ours, peer_times = runs.values()
    speeds, peers = ([run.steps_per_s for run in times] for times in (ours, peer_times))
    median = Times(*(float(np.median([getattr(t, f) for t in peer_times]))
                     for f in Times.__dataclass_fields__))  # fmt: skip
    emit_pairs(
        "templates", f"{task}/{mode}", "steps/s", speeds, peers,
        ratio_spread=spread_of(ratios_of(speeds, peers), 3), **models(mode, median),
        ts_us=round(1e6 * median.ts_s, 2), ta_us=round(1e6 * median.ta_s, 2),
        tt_us=round(1e6 * median.tt_s, 2), com_us=round(1e6 * median.com_s, 2),
        num_env=num_env, templates=list(PAIRS[mode]),
    )  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    add = options_of.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=["ant", "cartpole"])
    add("--modes", nargs="+", choices=PAIRS, default=list(PAIRS))
    add("--seconds", type=float, default=10.0, help="of a run, about; 5 or more in serving")
    add("--first-steps", type=int, default=16_384, help="of the first runs")
    add("--num-env", type=int, default=32, help="over all simulators")
    options = options_of.parse_args()
    for task in options.tasks:
        for mode in options.modes:
            measure(mode, task, options)


if __name__ == "__main__":
    main()
