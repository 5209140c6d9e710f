#!/usr/bin/env python3
"""Measures evaluations a second of ARS: ours, a multiprocessing.Pool, and bare environments.

Claim to be tried: a run of `algorithm.name: ars` evaluates perturbed policies at nine tenths or
more of what its environments do alone on the same cores, and faster than the program that everyone
writes: a `multiprocessing.Pool` of workers, each with an environment of Gymnasium's, which is
given parameters' seeds and answers with returns.

    <environment>        a linear policy of normalised observations, episodes of 1,000 steps
    <environment>/64x64  two hidden layers of 64 tanh units

An evaluation is an episode of one perturbed policy. Ours is a whole job, from the end of its first
round on: perturbing, evaluating, exchanging, stepping and writing metrics; GMIs are as many as
cores. The pool does the same in NumPy, normalisation and update included, by as many workers. Bare
are the environments of ours, in as many processes, stepped with random actions of deviation 0.2 and
nothing else. The sides take turns, round after round.

    bench/evolution.py --rounds 3
    bench/evolution.py --rows Swimmer-v5 --rounds 1 --seconds 2     # a smoke test

Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import time
from typing import Any, Final

import gymnasium
import numpy as np
from modes import Rates, in_turn, lines_of
from report import emit

ROWS: Final = ("Swimmer-v5", "HalfCheetah-v5", "HalfCheetah-v5/64x64")
LENGTH: Final = 1_000  # steps of an episode; none of these environments ends one before
PER_CORE: Final = 16  # directions, one environment each
NOISE: Final = 0.05
STEP: Final = 0.02
Vector = np.ndarray[Any, Any]

_worker: dict[str, Any] = {}  # what a process of the pool has


def ours(environment: str, hidden: list[int], cores: int, seconds: float) -> Rates:
    """Evaluations a second of a run."""
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
    """The same of the environments alone, in as many processes."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(cores)
    with context.Pool(cores, _begin_bare, (ready,)) as pool:
        rates = pool.starmap(_step_alone, [(environment, seconds)] * cores, chunksize=1)
    return {"evaluations_per_s": sum(rates) / LENGTH}


def _begin_bare(ready: Any) -> None:
    _worker["ready"] = ready


def _step_alone(environment: str, seconds: float) -> float:
    import torch

    from gmi_drl.roles.envs import make_env

    torch.set_num_threads(1)
    env = make_env(environment, PER_CORE, seed=os.getpid())
    generator = torch.Generator().manual_seed(0)
    size = env.action_space.shape[0]  # type: ignore[index]
    actions = (0.2 * torch.randn(64, PER_CORE, size, generator=generator)).unbind()
    env.reset()
    for action in actions:
        env.step(action)
    _worker["ready"].wait(120)
    began, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        for action in actions:
            env.step(action)
        steps += len(actions) * PER_CORE
    env.close()
    return steps / elapsed


def pooled(environment: str, hidden: list[int], cores: int, seconds: float) -> Rates:
    """The same of ARS in NumPy, with a pool of workers."""
    space = gymnasium.make(environment)
    sizes = [space.observation_space.shape[0], *hidden, space.action_space.shape[0]]  # type: ignore[index]
    space.close()
    theta = np.zeros(sum(a * b + b for a, b in itertools.pairwise(sizes)))
    width, count = sizes[0], 0.0
    total, squares = np.zeros(width), np.zeros(width)
    directions, number, evaluated, began = PER_CORE * cores, 0, 0, 0.0
    with multiprocessing.get_context("spawn").Pool(cores, _begin, (environment, sizes)) as pool:
        while not began or time.perf_counter() - began < seconds:
            mean = total / max(count, 1)
            deviation = np.sqrt(np.maximum(squares / max(count, 1) - mean * mean, 0)) + 1e-8
            deviation = deviation if count else np.ones(width)
            seeds = range(number * directions, (number + 1) * directions)
            asked = [(theta, mean, deviation, seed, sign) for seed in seeds for sign in (1, -1)]
            answers = pool.starmap(_evaluate, asked, chunksize=1)
            returns = np.array([answer[0] for answer in answers]).reshape(-1, 2)
            differences = (returns[:, 0] - returns[:, 1]) / (returns.std() + 1e-8)
            for seed, difference in zip(seeds, differences, strict=True):
                theta = theta + STEP / directions * difference * _direction(seed, len(theta))
            total += sum(answer[1] for answer in answers)
            squares += sum(answer[2] for answer in answers)
            count += LENGTH * len(answers)
            number += 1
            if began:
                evaluated += len(answers)
            else:  # the first round is warm-up, as ours is
                began = time.perf_counter()
        elapsed = time.perf_counter() - began
    return {"evaluations_per_s": evaluated / elapsed}


def _begin(environment: str, sizes: list[int]) -> None:
    _worker["env"], _worker["sizes"] = gymnasium.make(environment), sizes


def _direction(seed: int, size: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(size)


def _evaluate(
    theta: Vector, mean: Vector, deviation: Vector, seed: int, sign: int
) -> tuple[float, Vector, Vector]:
    env, sizes = _worker["env"], _worker["sizes"]
    theta = theta + sign * NOISE * _direction(seed, len(theta))
    layers, at = [], 0
    for a, b in itertools.pairwise(sizes):
        weight = theta[at : at + a * b].reshape(b, a)
        layers.append((weight, theta[at + a * b : at + a * b + b]))
        at += a * b + b
    observation, _ = env.reset(seed=seed)
    paid, total, squares = 0.0, np.zeros(sizes[0]), np.zeros(sizes[0])
    ended = False
    while not ended:
        total += observation
        squares += observation * observation
        out = (observation - mean) / deviation
        for place, (weight, bias) in enumerate(layers):
            out = weight @ out + bias
            if place < len(layers) - 1:
                out = np.tanh(out)
        observation, reward, terminated, truncated, _ = env.step(np.clip(out, -1.0, 1.0))
        paid += float(reward)
        ended = terminated or truncated
    return paid, total, squares


def main() -> None:
    """Measures the rows that are asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each side in each round")
    options = parser.parse_args()
    cores, seconds = len(os.sched_getaffinity(0)), options.seconds
    for row in options.rows:
        environment, _, shape = row.partition("/")
        hidden = [int(size) for size in shape.split("x")] if shape else []
        rates = in_turn(
            {
                "ours": lambda e=environment, h=hidden: ours(e, h, cores, seconds),  # type: ignore[misc]
                "bare": lambda e=environment: bare(e, cores, seconds),  # type: ignore[misc]
                "pool": lambda e=environment, h=hidden: pooled(e, h, cores, seconds),  # type: ignore[misc]
            },
            options.rounds,
        )
        each = {side: [its["evaluations_per_s"] for its in all_] for side, all_ in rates.items()}
        shares = [mine / alone for mine, alone in zip(each["ours"], each["bare"], strict=True)]
        ratios = [mine / peer for mine, peer in zip(each["ours"], each["pool"], strict=True)]
        emit(
            "evolution", row, value=round(statistics.median(each["ours"]), 2),
            unit="evaluations/s", peer=round(statistics.median(each["pool"]), 2),
            ratio=statistics.median(ratios), repeats=options.rounds,
            spread=[round(min(each["ours"]), 2), round(max(each["ours"]), 2)],
            peer_name="multiprocessing.Pool", gmis=cores,
            bare=round(statistics.median(each["bare"]), 2),
            share_of_bare=round(statistics.median(shares), 3),
        )  # fmt: skip


if __name__ == "__main__":
    main()
