#!/usr/bin/env python3
"""Measures what each rule of `tune.keep` learns in the same steps with four times the environments.

A GMI with 64 environments replaces one with 16, and is trained for as many steps: with the update
of a rule, and with the clip range halved and doubled where updates grow. Everything runs on one
core, and nothing is timed.

Rows: `<task>/<rule>`: value the return of the last 100 episodes in the mean over a run's steps, as
the median of seeds; `end` and `end_spread` the same at a run's end; peer that of the config as
given; ratio is None, as returns may be negative.

    bench/selector/keep_rules.py --tasks CartPole-v1 Pendulum-v1
    bench/selector/keep_rules.py --tasks Walker2d-v5 --rules "update, grown"
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: it has a learning.py, too

from learning import TASKS, changed, given_of, resized, shape_of
from modes import lines_of
from report import emit_median, parser, say, spread_of

from gmi_drl.placement import load_config

GIVEN: Final = "given"
TIMES: Final = 4
RULES: Final = {  # tune.keep, and whether updates grow
    "update": ("update", False),
    "update, grown": ("update", True),
    "gradient_steps": ("gradient_steps", False),
    "none": ("none", False),
}
CLIPS: Final = {"update, grown, half the clip": 0.5, "update, grown, twice the clip": 2.0}


def configs_of(given: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the config as given, and that of each rule with more environments."""
    configs = {GIVEN: given}
    for name, (keep, grown) in RULES.items():
        num_env = TIMES * given["env"]["num_env"]
        configs[name] = resized(changed(given, tune={"keep": keep}), 1, num_env, grown)
    grown_config = configs["update, grown"]
    clip = load_config(grown_config).algorithm.clip
    for name, times in CLIPS.items():
        configs[name] = changed(grown_config, algorithm={"clip": clip * times})
    return configs


def returns_of(config: Mapping[str, Any], seed: int) -> tuple[float, float]:
    """Trains a seed; returns the mean over steps of the return, and the return at the end.

    The return is that of the last 100 episodes; before an episode has ended it is the first one.
    """
    lines = lines_of(changed(config, run={"seed": seed, "log_every": 1}))
    returns = [
        (line["steps"], line["return_mean"]) for line in lines if line["return_mean"] is not None
    ]
    area, previous_steps = 0.0, 0
    for steps, value in returns:
        area += (steps - previous_steps) * value
        previous_steps = steps
    return area / previous_steps, returns[-1][1]


def main() -> int:
    """Trains every rule and seed in turn, and emits the rows."""
    options_of = parser(__doc__)
    add = options_of.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=["CartPole-v1", "Hopper-v5"])
    add("--rules", nargs="+", choices=[*RULES, *CLIPS], default=[*RULES, *CLIPS])
    add("--seeds", type=int, default=5, help="how many: 0, 1, 2 ...")
    add("--steps", type=int, help="instead of the task's own")
    add("--core", type=int, help="that it runs on; the first")
    options = options_of.parse_args()
    for task in options.tasks:
        given = given_of(task, options.steps)
        core = given["hardware"]["cores"][0] if options.core is None else options.core
        configs = configs_of(changed(given, hardware={"cores": [core]}))
        rules = (GIVEN, *options.rules)
        means: dict[str, list[float]] = {name: [] for name in rules}
        ends: dict[str, list[float]] = {name: [] for name in rules}
        for seed in range(options.seeds):
            for name in rules:
                mean, end = returns_of(configs[name], seed)
                means[name].append(mean)
                ends[name].append(end)
                say(f"{task} {name}, seed {seed}: {mean:,.1f}, at the end {end:,.1f}")
        for name, values in means.items():
            algorithm = load_config(configs[name]).algorithm
            emit_median(
                "keep_rules", f"{task}/{name}", "return", values,
                peer=None if name == GIVEN else round(statistics.median(means[GIVEN]), 1),
                ratio=None, end=round(statistics.median(ends[name]), 1),
                end_spread=spread_of(ends[name]), steps=load_config(given).run.total_steps,
                learning_rate=round(algorithm.learning_rate, 7), clip=algorithm.clip,
                shape=shape_of(configs[name]),
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
