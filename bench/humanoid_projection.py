#!/usr/bin/env python3
"""Projects the time of ES of Humanoid on 8,192 cores, from costs that are measured here.

It is a projection and no measurement: this was not run. Ray's paper and RLlib's have a median of
3.7 minutes to a return of 6,000 on 8,192 cores. They do not say how many episodes that took, so the
projection is of at most as many as 8,192 cores simulate in 3.7 minutes if they do nothing else.

Measured here, seconds of CPU on one core:

    step      of a step of Humanoid-v5 with a policy of two layers of 256, two environments
              in a core, whole episodes of 1,000 steps (of bodies that may lie down)
    update    of a direction, in the step that is taken along all of them
    answer    of each answer that a driver hears, and
    round     by the clock: a round of two evaluators that have nothing to do, with the driver

The last two are from rows of bench/results/aggregators.json, which bench/aggregators.py writes.
What is assumed is in each row, under `assumed`. A second row has steps of bench/results/envs.json
in their place, of bodies that act at random and begin anew when they fall, without any policy.

    bench/humanoid_projection.py --rounds 3
    bench/humanoid_projection.py --rounds 1 --directions 2     # a smoke test

Run it on one core of a machine that does nothing else, by `taskset -c 0`.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, Final

import torch
from modes import Rates, column, in_turn
from report import RESULTS, emit, parser, rows_of

from gmi_drl import rl
from gmi_drl.comm import solo_group
from gmi_drl.roles.evaluators.aggregator import Tried
from gmi_drl.roles.optimizers.evolution_step import EvolutionStep
from gmi_drl.roles.optimizers.learner import Learner

CORES: Final = 8192
PUBLISHED_S: Final = 3.7 * 60
DIRECTIONS: Final = 5_000  # 10,000 episodes: the settings of OpenAI's and of RLlib's for Humanoid
LENGTH: Final = 1_000
SETTINGS: Final[dict[str, Any]] = {
    "network": [256, 256], "activation": "tanh", "population": 2 * DIRECTIONS, "noise": 0.02,
    "learning_rate": 0.01, "weight_decay": 0.005,
}  # fmt: skip
ASSUMED: Final = (
    "8,192 cores like the one that was measured",
    "a core has one of 5,000 directions and plays its two episodes side by side; others idle",
    "every episode has 1,000 steps from the first round on, and takes as long as any other",
    "no more episodes are needed than the cores simulate in 3.7 minutes at the measured speed",
    "parameters are in every core before a round begins, and an answer between machines takes what "
    "it takes on one",
    "one driver hears of all directions, one after another: a tree of aggregators has taken longer "
    "with up to 64 evaluators, of the driver's CPU too",
    "an update takes as much for each direction whatever their number",
    "Humanoid-v5 for Humanoid-v1",
)


def evaluator() -> rl.Evaluator:
    """Returns an evaluator as a core would have it."""
    instance = rl.Evaluator(
        "Humanoid-v5", rl.ES, num_env=2, settings=SETTINGS,
        options={"terminate_when_unhealthy": False},
    )  # fmt: skip
    instance.begin(0, 1)
    return instance


def measured_step(es_evaluator: rl.Evaluator, weights: Any, directions: int) -> Rates:
    """Plays directions; returns the seconds of CPU of a step."""
    began = time.process_time()
    tried = es_evaluator.score(weights, 0, 0, directions)
    cpu_s = time.process_time() - began
    steps = sum(float(pair[:, 1].sum()) for pair in tried.pairs.values())
    return {"us": 1e6 * cpu_s / steps}


def measured_update(step: EvolutionStep, directions: int, width: int) -> Rates:
    """Takes a step along directions; returns the seconds of CPU for each of them."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(directions, 2, width, generator=generator, dtype=torch.float64)
    rows[..., 1] = LENGTH
    tried = Tried.of(rows, 0)
    began = time.process_time()
    step.take(tried, step.parameters(), 0)
    return {"us": 1e6 * (time.process_time() - began) / directions}


def main() -> None:
    """Measures, and emits the projection."""
    options = parser(__doc__, rounds=3, directions=8).parse_args()
    torch.set_num_threads(1)
    es_evaluator = evaluator()
    graph = rl.Population(rl.ES, [es_evaluator]).graph
    learner = Learner(graph.algorithm, torch.Generator())
    learner.connect(solo_group())
    step = EvolutionStep(graph.algorithm, learner, 0)
    width = 2 + 2 * graph.algorithm.normalizers.observations.width
    weights, directions = graph.acting(), 40 * options.directions
    results = in_turn(
        {
            "step": lambda: measured_step(es_evaluator, weights, options.directions),
            "update": lambda: measured_update(step, directions, width),
        },
        options.rounds,
    )
    es_evaluator.close()
    step_s, direction_s = (
        statistics.median(column({name: runs}, "us")[name]) / 1e6 for name, runs in results.items()
    )
    bare_s = rows_of(RESULTS / "envs.json")["humanoid/physics"]["cpu_s_per_1000_steps"] / 1e3
    parameters = int(graph.parameters.data.numel())
    project("Humanoid on 8,192 cores", step_s, direction_s, parameters, options.rounds)
    project("the same, steps of bare environments", bare_s, direction_s, parameters, options.rounds)


def project(name: str, step_s: float, direction_s: float, parameters: int, repeats: int) -> None:
    """Emits the projection from the seconds of a step and of a direction."""
    rows = rows_of(RESULTS / "aggregators.json")
    two_s, flat = rows["gather/2"]["peer"] / 1e3, rows["gather/64"]
    answer_s = flat["peer_driver_cpu_ms"] / 1e3 / flat["evaluators"]
    simulate_s = 2 * LENGTH * step_s
    gather_s = two_s + DIRECTIONS * answer_s
    update_s = DIRECTIONS * direction_s
    updates = math.floor(PUBLISHED_S / simulate_s)
    total_s = updates * (simulate_s + gather_s + update_s)
    emit(
        "humanoid_projection", name, value=round(total_s / 60, 1),
        unit="minutes, projected", peer=3.7, peer_name="Ray's and RLlib's papers",
        ratio=PUBLISHED_S / total_s, repeats=repeats, projection=True,
        cores=CORES, updates=updates, episodes=2 * DIRECTIONS * updates, parameters=parameters,
        round_s={
            "simulate": round(simulate_s, 3), "gather": round(gather_s, 3),
            "update": round(update_s, 3),
        },
        measured={
            "step_us": round(1e6 * step_s, 1), "update_direction_us": round(1e6 * direction_s, 1),
            "answer_us": round(1e6 * answer_s, 1), "round_of_two_ms": round(1e3 * two_s, 3),
        },
        assumed=list(ASSUMED),
    )  # fmt: skip


if __name__ == "__main__":
    main()
