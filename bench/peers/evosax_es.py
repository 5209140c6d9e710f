#!/usr/bin/env python3
"""Measures evaluations a second of evosax's ARS, and prints them as one JSON line.

evosax asks and tells in JAX, and what it asks is played by a multiprocessing.Pool: an episode of
Gymnasium's by each member, policies in NumPy. `bench/evolution.py` starts it under an interpreter
that has evosax.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from importlib import metadata

from _job import asked
from pool_worker import Seen, begin, numel_of, play, sizes_of


def main() -> None:
    """Measures for some seconds from the end of the first round on."""
    options = asked()
    sizes = sizes_of(options.environment, options.hidden)
    seen, context = Seen(sizes[0]), multiprocessing.get_context("spawn")
    with context.Pool(options.workers, begin, (options.environment, sizes)) as pool:
        print(json.dumps(measured(pool, numel_of(sizes), seen, options)), flush=True)


def measured(pool, numel, seen, options):
    """Returns evaluations a second."""
    import jax
    import numpy as np
    import optax
    from evosax.algorithms import ARS

    strategy = ARS(
        population_size=options.population, solution=jax.numpy.zeros(numel),
        optimizer=optax.sgd(options.learning_rate),
        std_schedule=optax.constant_schedule(options.noise),
    )  # fmt: skip
    strategy.elite_ratio = 1.0  # all directions, as ours
    params, key = strategy.default_params, jax.random.key(0)
    state = strategy.init(key, jax.numpy.zeros(numel), params)
    number, evaluated, began = 0, 0, 0.0
    while not began or time.perf_counter() - began < options.seconds:
        key, ask, tell = jax.random.split(key, 3)
        population, state = strategy.ask(ask, state, params)
        members, (mean, deviation) = np.asarray(population, np.float64), seen.moments()
        half = len(members) // 2  # both signs of a direction have the same seed
        seeds = [number * half + index % half for index in range(len(members))]
        arguments = [(theta, mean, deviation, s) for theta, s in zip(members, seeds, strict=True)]
        answers = pool.starmap(play, arguments, chunksize=1)
        seen.add(answers, options.length)
        costs = jax.numpy.asarray([-answer[0] for answer in answers])  # it minimises
        state, _ = strategy.tell(tell, population, costs, state, params)
        jax.block_until_ready(state)
        number += 1
        if began:
            evaluated += len(answers)
        else:  # the first round is warm-up, as ours is
            began = time.perf_counter()
    elapsed = time.perf_counter() - began
    return {"evaluations_per_s": evaluated / elapsed, "version": metadata.version("evosax")}


if __name__ == "__main__":
    main()
