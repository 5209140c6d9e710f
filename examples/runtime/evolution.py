"""Evolution strategies (Salimans et al., 2017) with a tree of tasks that add up results.

    python examples/runtime/evolution.py

Tasks are sent seeds, and every process makes the same noise from the same seed. Tasks that add up
call others that add up, and the last ones call those that evaluate, so no process handles all
evaluations. The result is the same on any number of cores, and in whatever order tasks end.
"""

from typing import Any

import numpy as np

from gmi_drl import runtime

NUM_PARAMETERS, POPULATION, FAN_OUT, NOISE = 50, 64, 4, 0.05
TARGET = np.linspace(-1, 1, NUM_PARAMETERS)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(NUM_PARAMETERS)


def fitness(parameters: np.ndarray) -> float:
    """What an episode would return; here it is known where the best is."""
    return -float(np.square(parameters - TARGET).sum())


@runtime.remote
def evaluate(parameters: np.ndarray, seed: int) -> np.ndarray:
    """What one pair of mirrored samples says about the way up."""
    step = NOISE * noise(seed)
    return (fitness(parameters + step) - fitness(parameters - step)) * noise(seed)


@runtime.remote
def add_up(parameters: np.ndarray, seeds: range) -> np.ndarray:
    """The sum over many samples: a node of the tree."""
    if len(seeds) <= FAN_OUT:
        parts = [evaluate.remote(parameters, seed) for seed in seeds]
    else:
        share = -(-len(seeds) // FAN_OUT)
        parts = [
            add_up.remote(parameters, seeds[begin : begin + share])
            for begin in range(0, len(seeds), share)
        ]
    return sum(runtime.get(parts))


def main(**engine: Any) -> None:
    runtime.init(**{"num_cpus": 2} | engine)
    parameters = np.zeros(NUM_PARAMETERS)
    print(f"fitness at first: {fitness(parameters):.3f}")
    for generation in range(15):
        seeds = range(generation * POPULATION, (generation + 1) * POPULATION)
        total = runtime.get(add_up.remote(parameters, seeds))
        parameters = parameters + 0.1 * total / (2 * NOISE * POPULATION)
    print(f"fitness at last: {fitness(parameters):.3f}")
    runtime.shutdown()


if __name__ == "__main__":
    main()
