#!/usr/bin/env python3
"""Measures how long a round of evolution takes to be gathered: a tree of aggregators, or flat.

Claim to be tried: from some number of evaluators on, a tree of aggregators, which are actors of the
runtime like evaluators, gathers a round sooner than a driver that hears of each evaluator.

Evaluators play nothing: each answers at once with what two directions of Humanoid-v5 leave,
returns, steps and the sums of 348 observed numbers. They are given the parameters of two layers of
256, as in a round. The tree has two levels, and its fan-out is the square root of the evaluators;
with two evaluators there are no aggregators, and both sides are the same.

    gather/<evaluators>  milliseconds of a round; beside it those of the driver's CPU, which is what
                         a driver on a core of its own would be busy for

Here all of them share the cores of one machine: a tree saves work of the driver, and adds work of
aggregators. The sides take turns, round after round.

    bench/aggregators.py --rounds 5
    bench/aggregators.py --sizes 2 4 --rounds 1 --gathers 3     # a smoke test

Run it on a machine that does nothing else.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from typing import Any, Final

import torch
from modes import Rates, column, in_turn
from report import emit_pairs, parser

from gmi_drl import runtime
from gmi_drl.roles.evaluators.aggregator import Aggregator, Tried, aggregated

SIZES: Final = (2, 4, 8, 16, 32, 64)
SHARE: Final = 2  # directions that an evaluator answers for
OBSERVED: Final = 348  # numbers of an observation of Humanoid-v5
PARAMETERS: Final = (OBSERVED + 1) * 256 + 257 * 256 + 257 * 17
TIMEOUT_S: Final = 60.0


class Answering:
    """Answers like an evaluator that has played, without playing."""

    def __init__(self) -> None:
        self._rows = torch.ones(SHARE, 2, 2 + 2 * OBSERVED, dtype=torch.float64)

    def score(self, weights: Any, number: int, first: int, end: int) -> Tried:
        return Tried.of(self._rows[: end - first], first)


def gathered(root: Aggregator, weights: Any, evaluators: int, gathers: int) -> Rates:
    """Gathers rounds; returns the milliseconds of one, and those of this process's CPU."""
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(gathers):
        pairs, _ = root.score(weights, number, 0, evaluators * SHARE).whole()
        assert len(pairs) == evaluators * SHARE
    elapsed_s, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"ms": 1e3 * elapsed_s / gathers, "driver_cpu_ms": 1e3 * cpu / gathers}


def measure(size: int, rounds: int, gathers: int) -> None:
    """Measures a row."""
    make = runtime.remote(num_threads=1)(Answering)
    evaluators = [make.remote() for _ in range(size)]
    fan_out = max(2, math.ceil(math.sqrt(size)))
    tree, actors = aggregated(evaluators, SHARE, TIMEOUT_S, fan_out)
    flat, _ = aggregated(evaluators, SHARE, TIMEOUT_S, None)
    weights = runtime.put({"parameters": torch.zeros(PARAMETERS).numpy()})
    for root in (tree, flat):
        gathered(root, weights, size, 1)  # all have started
    sides = {
        "tree": functools.partial(gathered, tree, weights, size, gathers),
        "flat": functools.partial(gathered, flat, weights, size, gathers),
    }
    results = in_turn(sides, rounds)
    runtime.kill([*actors, *evaluators])
    cpu, peer_cpu = map(statistics.median, column(results, "driver_cpu_ms").values())
    emit_pairs(
        "aggregators", f"gather/{size}", "ms", *column(results, "ms").values(), digits=2,
        smaller_is_better=True, peer_name="a driver that hears of each", evaluators=size,
        fan_out=fan_out, aggregators=len(actors), cores=len(os.sched_getaffinity(0)),
        driver_cpu_ms=round(cpu, 3), peer_driver_cpu_ms=round(peer_cpu, 3),
    )  # fmt: skip


def main() -> None:
    """Measures the rows that are asked for."""
    options_of = parser(__doc__, rounds=5)
    options_of.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    options_of.add_argument("--gathers", type=int, default=30, help="of each side in each round")
    options = options_of.parse_args()
    torch.set_num_threads(1)
    runtime.init(["gmi_drl.rl"])
    try:
        for size in options.sizes:
            measure(size, options.rounds, options.gathers)
    finally:
        runtime.shutdown()


if __name__ == "__main__":
    main()
