#!/usr/bin/env python3
"""Measures evaluations a second of ARS: ours, a multiprocessing.Pool, evosax, bare environments.

Claim to be tried: a run of `algorithm.name: ars` evaluates perturbed policies at nine tenths or
more of what its environments do alone on the same cores, and faster than the program that everyone
writes: a `multiprocessing.Pool` of workers, each with an environment of Gymnasium's, which is
given parameters' seeds and answers with returns; and than evosax, whose ARS asks and tells in JAX,
and has the same pool play what it asks.

    <environment>        a linear policy of normalised observations, episodes of 1,000 steps
    <environment>/64x64  two hidden layers of 64 tanh units

An evaluation is an episode of one perturbed policy. Ours is a whole job, from the end of its first
round on: perturbing, evaluating, exchanging, stepping and writing metrics; GMIs are as many as
cores. The pool does the same in NumPy, normalisation and update included, by as many workers. Bare
are the environments of ours, in as many processes, stepped with random actions of deviation 0.2 and
nothing else. The sides take turns, round after round. evosax runs under an interpreter that has it:

    pip install evosax gymnasium mujoco     # into an environment of its own
    bench/evolution.py --rounds 3 --python .venv-peers/bin/python
    bench/evolution.py --rows Swimmer-v5 --rounds 1 --seconds 2     # a smoke test

Run it on a machine that does nothing else.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from modes import Rates, ask_peer, at_once, column, in_turn, lines_of, meet_others
from peers.pool_worker import Seen, Vector, begin, numel_of, play, sizes_of
from report import emit_pairs, parser, ratios_of

ROWS: Final = ("Swimmer-v5", "HalfCheetah-v5", "HalfCheetah-v5/64x64")
LENGTH: Final = 1_000  # steps of an episode; none of these environments ends one before
PER_CORE: Final = 16  # directions, one environment each
NOISE: Final = 0.05
STEP: Final = 0.02


def ours(environment: str, hidden: list[int], cores: int, seconds: float) -> Rates:
    """Measures the evaluations a second of a run."""
    population = 2 * PER_CORE * cores
    rounds = max(3, round(seconds * 25 / (2 * PER_CORE)) + 1)
    lines = lines_of(
        {
            "version": 1,
            "run": {
                "total_steps": rounds * population * LENGTH, "eval_episodes": 0,
                "checkpoint_every": 0,
            },
            "env": {"id": environment, "num_env": PER_CORE},
            "algorithm": {
                "name": "ars", "network": hidden, "population": population, "noise": NOISE,
                "learning_rate": STEP,
            },
            "layout": {"gmi_per_gpu": cores},
        }
    )  # fmt: skip
    first, last = lines[0], lines[-1]
    episodes = sum(line["episodes"] for line in lines[1:])
    return {"evaluations_per_s": episodes / (last["time_s"] - first["time_s"])}


def bare(environment: str, cores: int, seconds: float) -> Rates:
    """Measures the same of the environments alone, in as many processes."""
    return {"evaluations_per_s": at_once(_step_alone, cores, environment, seconds) / LENGTH}


def _step_alone(environment: str, seconds: float) -> float:
    import torch

    from gmi_drl.roles.envs import make_env

    torch.set_num_threads(1)
    env = make_env(environment, PER_CORE, seed=os.getpid())
    generator = torch.Generator().manual_seed(0)
    size = env.action_space.shape[0]
    actions = (0.2 * torch.randn(64, PER_CORE, size, generator=generator)).unbind()
    env.reset()
    for action in actions:
        env.step(action)
    meet_others()
    began, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        for action in actions:
            env.step(action)
        steps += len(actions) * PER_CORE
    env.close()
    return steps / elapsed


def pooled(environment: str, hidden: list[int], cores: int, seconds: float) -> Rates:
    """Measures the same of ARS in NumPy, with a pool of workers."""
    sizes = sizes_of(environment, hidden)
    theta, seen = np.zeros(numel_of(sizes)), Seen(sizes[0])
    directions, number, evaluated, began = PER_CORE * cores, 0, 0, 0.0
    with multiprocessing.get_context("spawn").Pool(cores, begin, (environment, sizes)) as pool:
        while not began or time.perf_counter() - began < seconds:
            mean, deviation = seen.moments()
            seeds = range(number * directions, (number + 1) * directions)
            arguments = [(theta, mean, deviation, seed, sign) for seed in seeds for sign in (1, -1)]
            answers = pool.starmap(_evaluate, arguments, chunksize=1)
            returns = np.array([answer[0] for answer in answers]).reshape(-1, 2)
            differences = (returns[:, 0] - returns[:, 1]) / (returns.std() + 1e-8)
            for seed, difference in zip(seeds, differences, strict=True):
                theta = theta + STEP / directions * difference * _direction(seed, len(theta))
            seen.add(answers, LENGTH)
            number += 1
            if began:
                evaluated += len(answers)
            else:  # the first round is warm-up, as ours is
                began = time.perf_counter()
        elapsed = time.perf_counter() - began
    return {"evaluations_per_s": evaluated / elapsed}


def _direction(seed: int, size: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(size)


def _evaluate(
    theta: Vector, mean: Vector, deviation: Vector, seed: int, sign: int
) -> tuple[float, Vector, Vector]:
    return play(theta + sign * NOISE * _direction(seed, len(theta)), mean, deviation, seed)


def by_evosax(
    python: str, environment: str, hidden: list[int], cores: int, seconds: float
) -> Rates:
    """Measures the evaluations a second of evosax's ARS, by bench/peers/evosax_es.py."""
    return ask_peer(
        "evosax_es.py", python=python, environment=environment, hidden=hidden, workers=cores,
        population=2 * PER_CORE * cores, length=LENGTH, noise=NOISE, learning_rate=STEP,
        seconds=seconds,
    )  # fmt: skip


def main() -> None:
    """Measures the rows that are asked for."""
    options_of = parser(__doc__, rounds=3)
    options_of.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options_of.add_argument("--seconds", type=float, default=8.0, help="of each side in each round")
    options_of.add_argument("--python", help="an interpreter that has evosax, to measure it too")
    options = options_of.parse_args()
    cores = len(os.sched_getaffinity(0))
    for row in options.rows:
        environment, _, shape = row.partition("/")
        job = environment, [int(size) for size in shape.split("x") if size], cores, options.seconds
        sides: dict[str, Callable[[], Rates]] = {
            "ours": functools.partial(ours, *job),
            "bare": functools.partial(bare, environment, cores, options.seconds),
            "pool": functools.partial(pooled, *job),
        }
        if options.python:
            sides["evosax"] = functools.partial(by_evosax, options.python, *job)
        speeds = column(in_turn(sides, options.rounds), "evaluations_per_s")
        fields = {}
        for side, ratio in (("bare", "share_of_bare"), ("evosax", "ratio_to_evosax")):
            if side in speeds:
                ratios = ratios_of(speeds["ours"], speeds[side])
                fields[side] = round(statistics.median(speeds[side]), 2)
                fields[ratio] = round(statistics.median(ratios), 3)
        emit_pairs(
            "evolution", row, "evaluations/s", speeds["ours"], speeds["pool"], digits=2,
            peer_name="multiprocessing.Pool", gmis=cores, **fields,
        )  # fmt: skip


if __name__ == "__main__":
    main()
