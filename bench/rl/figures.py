#!/usr/bin/env python3
"""Makes figures of RLlib's paper (Liang et al., 2018) again on one host, by `gmi_drl.rl`.

    figure7/<n>           steps of policy evaluation a second of n evaluators (Pendulum-v1, 64 x 64
                          units, 64 environments a call), beside the paper's on one core
    figure7/projection    the same for up to 128, by what a step costs an evaluator and the driver
    table3/<observation>  training steps a second of `Local` over `AllReduce` with PPO, for a small
                          observation and for images, with the memory of all processes
    figure5a/<k>          gradients a second of a parameter server with k pieces, over one of one

Evaluators are actors of the runtime, of one thread each. Ways of a figure take turns, round after
round. The paper's machines are others (EC2, up to 128 cores): what is compared is the shape.

    bench/rl/figures.py --rounds 5
    bench/rl/figures.py --figures figure5a --seconds 1 --rounds 1     # a smoke test
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from modes import Rates, column, in_turn
from report import emit, emit_median, emit_pairs, parser

from gmi_drl import rl, runtime
from gmi_drl.roles.evaluators.fleet import Fleet

PAPER_STEPS_PER_S: Final = 15_000  # of one core, by the text on figure 7
CORES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
PIECES: Final = (1, 2, 4)
_SMALL: Final[Mapping[str, Any]] = {"network": [64, 64], "activation": "tanh"}
# The arguments of evaluators, by observation.
OBSERVATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "small": {
        "env": "HalfCheetah-v5", "num_env": 16,
        "settings": {"horizon": 64, "minibatches": 4, "epochs": 4, "network": [256, 128, 64]},
    },
    "images": {
        "env": "ALE/Pong-v5", "num_env": 4, "options": {"frameskip": 1},
        "wrappers": [
            {"gymnasium.wrappers:AtariPreprocessing": {"frame_skip": 4}},
            {"frame_stack": {"count": 4}},
        ],
        "settings": {
            "horizon": 16, "minibatches": 2, "epochs": 1, "network": "nature",
            "normalize_observation": False,
        },
    },
}  # fmt: skip


def sampling(count: int, seconds: float) -> Rates:
    """Measures steps a second of `count` evaluators, and the driver's CPU seconds of a step."""
    horizon, num_env = 64, 64
    settings = {**_SMALL, "horizon": horizon, "normalize_observation": False}
    evaluators = [
        rl.Evaluator.remote(env="Pendulum-v1", algorithm=rl.PG, num_env=num_env, settings=settings)
        for _ in range(count)
    ]
    optimizer = rl.Local(rl.PG, evaluators)
    fleet, weights = optimizer.fleet, optimizer.fleet.put(optimizer.graph.weights())
    steps, begun, cpu_s = 0, 0.0, 0.0
    try:
        for number in range(count):
            fleet.ask(number, "sample", weights, 0)
        _drain(fleet, weights, count)  # everybody is warm
        begun, cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() < begun + seconds:
            _drain(fleet, weights, 1)
            steps += horizon * num_env
        elapsed_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
    finally:
        optimizer.close()
    return {"steps_per_s": steps / elapsed_s, "driver_s_per_step": cpu_s / steps}


def _drain(fleet: Fleet, weights: Any, answers: int) -> None:
    """Takes `answers` samples, and asks each evaluator that answered for the next one."""
    for _ in range(answers):
        number, _ = fleet.first()
        fleet.ask(number, "sample", weights, 0)


def training(kind: Callable[..., Any], algorithm: Any, seconds: float, **arguments: Any) -> Rates:
    """Measures steps and updates a second of an optimizer over two evaluators, and the memory."""
    options = arguments.pop("options_of_optimizer", {})
    evaluators = [rl.Evaluator.remote(algorithm=algorithm, **arguments) for _ in range(2)]
    optimizer = kind(algorithm, evaluators, **options)
    try:
        for _ in range(4):
            optimizer.step()
        steps, updates, begun = optimizer.steps, optimizer.updates, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            optimizer.step()
        elapsed_s = time.perf_counter() - begun
        process = psutil.Process()  # shared memory counts once
        family = [process, *process.children(recursive=True)]
        mib = sum(each.memory_full_info().pss for each in family) / 2**20
    finally:
        optimizer.close()
    return {
        "steps_per_s": (optimizer.steps - steps) / elapsed_s,
        "updates_per_s": (optimizer.updates - updates) / elapsed_s,
        "memory_mib": mib,
        "parameters": optimizer.graph.parameters.numel,
    }


def figure7(options: argparse.Namespace) -> None:
    counts = [n for n in CORES if n <= len(os.sched_getaffinity(0))]
    ways = {str(n): lambda n=n: sampling(n, options.seconds) for n in counts}
    results = in_turn(ways, options.rounds)
    rates = column(results, "steps_per_s")
    for n in ways:
        emit_median(
            "rl_figures", f"figure7/{n}", "steps/s", rates[n], peer=PAPER_STEPS_PER_S, digits=None,
            peer_is="the paper's: one core, 64 states a call",
        )  # fmt: skip
    driver_s = statistics.median(column(results, "driver_s_per_step")[str(counts[-1])])
    steps_per_s = statistics.median(rates["1"])
    limit = 1.0 / driver_s
    points = {n: round(min(n * steps_per_s, limit)) for n in CORES}
    emit(
        "rl_figures", "figure7/projection", value=points[CORES[-1]], unit="steps/s",
        repeats=options.rounds, points=points,
        driver_ns_per_step=round(1e9 * driver_s, 1), one_driver_takes=round(limit),
    )  # fmt: skip


def table3(options: argparse.Namespace) -> None:
    for name, arguments in OBSERVATIONS.items():
        ways = {
            kind.__name__: lambda kind=kind, arguments=arguments: training(
                kind, rl.PPO, options.seconds, **arguments
            )
            for kind in (rl.Local, rl.AllReduce)
        }
        results = in_turn(ways, options.rounds)
        mib, peer_mib = map(statistics.median, column(results, "memory_mib").values())
        emit_pairs(
            "rl_figures", f"table3/{name}", "steps/s", *column(results, "steps_per_s").values(),
            memory_mib=round(mib), peer_memory_mib=round(peer_mib),
            peer_is="AllReduce over the same two evaluators",
        )  # fmt: skip


def figure5a(options: argparse.Namespace) -> None:
    settings = {
        "network": [1024, 1024], "horizon": 8, "normalize_value": False, "reward_scale": 0.1,
    }  # fmt: skip
    ways = {
        str(k): lambda k=k: training(
            rl.ParameterServer, rl.A2C, options.seconds, env="CartPole-v1", settings=settings,
            options_of_optimizer={"shards": k},
        )
        for k in PIECES
    }  # fmt: skip
    results = in_turn(ways, options.rounds)
    rates = column(results, "updates_per_s")
    for k in PIECES[1:]:
        emit_pairs(
            "rl_figures", f"figure5a/{k}", "gradients/s", rates[str(k)], rates["1"],
            peer_is="one piece", parameters=results["1"][0]["parameters"],
        )  # fmt: skip


FIGURES: Final = {"figure7": figure7, "table3": table3, "figure5a": figure5a}


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    options_of.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    options_of.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    options = options_of.parse_args()
    runtime.init(["gmi_drl.rl"])
    for name in options.figures:
        FIGURES[name](options)
    runtime.shutdown()


if __name__ == "__main__":
    main()
