"""Measures loops of reinforcement learning: rollouts with new weights, and uneven simulations."""

from __future__ import annotations

import functools
import random
import time
from typing import Any

import numpy as np

from .base import NUM_CPUS, Side, noop, seconds, warm_up

_ROLLOUTS = 4
_WEIGHTS = 16_384  # of float32: 64 KB


class Rollout:
    """Takes weights and gives a small result, as a simulator that costs nothing would."""

    def run(self, weights: Any) -> Any:
        return np.full(256, weights[-1], np.float32)


def rl_loop(side: Side) -> dict[str, float]:
    """Waits for one of four rollouts, stores new weights, starts that rollout again with them.

    `broadcast_ms`: one round of sending weights to all four and having their results.
    """
    actors = [side.actor(Rollout).remote() for _ in range(_ROLLOUTS)]
    weights = np.zeros(_WEIGHTS, np.float32)

    def loop(number: int) -> None:
        ref = side.api.put(weights)
        running = {actor.run.remote(ref): actor for actor in actors}
        for i in range(number):
            (done,), _ = side.api.wait(list(running), num_returns=1)
            actor = running.pop(done)
            side.get(done)
            weights[-1] = i
            running[actor.run.remote(side.api.put(weights))] = actor
        side.get(list(running))

    def broadcast() -> None:
        ref = side.api.put(weights)
        side.get([actor.run.remote(ref) for actor in actors])

    loop(200)
    number = side.count(3_000)
    per_s = number / seconds(lambda: loop(number))
    rounds = side.count(300)
    broadcast_s = seconds(broadcast, rounds) / rounds
    return {"per_s": per_s, "broadcast_ms": 1e3 * broadcast_s}


@functools.cache
def _pendulum() -> Any:
    import gymnasium

    return gymnasium.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=2_000)


def simulate(steps: int) -> int:
    """Takes steps of Gymnasium's pendulum; the environment is made once a process."""
    environment = _pendulum()
    environment.reset(seed=steps)
    action = np.zeros(1, np.float32)
    for _ in range(steps):
        environment.step(action)
    return steps


def uneven_simulations(side: Side) -> dict[str, float]:
    """Measures 3n simulations of 10 to 1,000 steps on n cores, gathered as they end.

    The same work also runs as three rounds of n with a barrier after each (table 4 of Ray's paper).
    """
    task, n = side.task(simulate), NUM_CPUS
    warm_up(side, side.task(noop))
    side.get([task.remote(500) for _ in range(4 * n)])
    lengths = random.Random(0)
    done, gathered_s, barrier_s = 0, 0.0, 0.0
    for _ in range(side.count(60)):
        work = [lengths.randint(10, 1_000) for _ in range(3 * n)]
        done += sum(work)
        begin = time.perf_counter()
        pending = [task.remote(steps) for steps in work]
        while pending:
            _, pending = side.api.wait(pending, num_returns=1)
        gathered_s += time.perf_counter() - begin
        begin = time.perf_counter()
        for first in range(0, len(work), n):
            side.get([task.remote(steps) for steps in work[first : first + n]])
        barrier_s += time.perf_counter() - begin
    return {
        "steps_per_s": done / gathered_s,
        "barrier_steps_per_s": done / barrier_s,
        "over_barrier": barrier_s / gathered_s,
    }
