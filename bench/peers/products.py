"""Measures the matrix products of an on-policy iteration alone, on every core at once.

No training job can avoid these costs, beside those of physics: for every step of the roll-out the
forward products of the policy and the value, for every minibatch of every epoch those of forward
and backward. No activation, no bias, no loss, no optimizer, no copy: each product is written to
memory that is allocated before. Each core has its share of the environments and of the minibatch
and one thread. A *step* is one step of one environment, as in the jobs beside this file.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
from collections.abc import Callable

from _job import Settings, Stopwatch, limit_threads, parse

SETTINGS = parse(("forward-backward",), __doc__)
limit_threads(1)

import gymnasium  # noqa: E402
import torch  # noqa: E402


def forward(rows: int, layers: list[tuple[int, int]]) -> list[Callable[[], object]]:
    """Returns the products y = x W of a batch of `rows`."""
    return [product((rows, wide), (wide, narrow)) for wide, narrow in layers]


def backward(rows: int, layers: list[tuple[int, int]]) -> list[Callable[[], object]]:
    """Returns the products of the gradients of W, and of x where x is no observation."""
    products = [product((wide, rows), (rows, narrow)) for wide, narrow in layers]
    return products + [product((rows, narrow), (narrow, wide)) for wide, narrow in layers[1:]]


def product(one: tuple[int, int], other: tuple[int, int]) -> Callable[[], object]:
    """Returns a function that multiplies two matrices of these shapes."""
    a, b = torch.randn(one), torch.randn(other)
    return functools.partial(torch.mm, a, b, out=torch.empty(one[0], other[1]))


def compute(
    core: int, cores: int, settings: Settings, sizes: tuple[int, int], barrier: object
) -> None:
    """Does one core's share of all iterations."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    observations, actions = sizes
    # The value is one more output beside the actions.
    layers = list(itertools.pairwise([observations, *settings.hidden, actions + 1]))
    acting = forward(settings.n_envs // cores, layers)
    rows = settings.minibatch // cores
    learning = forward(rows, layers) + backward(rows, layers)
    updates = settings.epochs * (settings.batch // settings.minibatch)
    for _ in range(settings.iterations):
        barrier.wait(60)
        for multiply in acting * settings.horizon + learning * updates:
            multiply()
    barrier.wait(60)


def main(settings: Settings) -> None:
    """Times the iterations of all cores; the slowest core counts."""
    env = gymnasium.make(settings.env)
    sizes = (env.observation_space.shape[0], env.action_space.shape[0])
    cores = sorted(os.sched_getaffinity(0))
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(len(cores) + 1)
    workers = [
        fork.Process(target=compute, args=(core, len(cores), settings, sizes, barrier), daemon=True)
        for core in cores
    ]
    for worker in workers:
        worker.start()
    stopwatch = Stopwatch(settings)
    for iteration in range(settings.iterations):
        barrier.wait(60)
        stopwatch.iteration(iteration * settings.batch)
    barrier.wait(60)
    stopwatch.stop(settings.iterations * settings.batch)
    for worker in workers:
        worker.join(20)
    stopwatch.print_result("products", "torch")


if __name__ == "__main__" and not SETTINGS.check:
    main(SETTINGS)
