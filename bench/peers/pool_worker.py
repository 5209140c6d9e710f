"""Plays the episodes of peers of evolution: a worker of a multiprocessing.Pool, in NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np

Vector = np.ndarray[Any, Any]

_worker: dict[str, Any] = {}  # the environment and layer sizes of a pool process


def sizes_of(environment: str, hidden: list[int]) -> list[int]:
    """Returns the widths of the layers of a policy of an environment."""
    env = gymnasium.make(environment)
    sizes = [env.observation_space.shape[0], *hidden, env.action_space.shape[0]]
    env.close()
    return sizes


def numel_of(sizes: list[int]) -> int:
    """Returns how many parameters the policy has."""
    return sum(a * b + b for a, b in itertools.pairwise(sizes))


def begin(environment: str, sizes: list[int]) -> None:
    """Makes what a pool process needs, as the pool's initializer."""
    _worker["env"], _worker["sizes"] = gymnasium.make(environment), sizes


def play(theta: Vector, mean: Vector, deviation: Vector, seed: int) -> tuple[float, Vector, Vector]:
    """Plays an episode by dense tanh layers; returns its return, and sums of its observations.

    The policy sees (observation - mean) / deviation; the sums are of raw observations and squares.
    """
    env, sizes = _worker["env"], _worker["sizes"]
    layers, offset = [], 0
    for a, b in itertools.pairwise(sizes):
        weight = theta[offset : offset + a * b].reshape(b, a)
        layers.append((weight, theta[offset + a * b : offset + a * b + b]))
        offset += a * b + b
    observation, _ = env.reset(seed=seed)
    episode_return, total, squares = 0.0, np.zeros(sizes[0]), np.zeros(sizes[0])
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
        episode_return += float(reward)
        ended = terminated or truncated
    return episode_return, total, squares


class Seen:
    """Keeps the mean and the deviation of the observations of all episodes."""

    def __init__(self, width: int) -> None:
        self._count, self._sums = 0, np.zeros((2, width))

    def add(self, answers: list[tuple[float, Vector, Vector]], steps: int) -> None:
        """Adds episodes that had `steps` steps each."""
        self._count += steps * len(answers)
        self._sums[0] += sum(answer[1] for answer in answers)
        self._sums[1] += sum(answer[2] for answer in answers)

    def moments(self) -> tuple[Vector, Vector]:
        """Returns mean and deviation; 0 and 1 before any observation."""
        if not self._count:
            return np.zeros_like(self._sums[0]), np.ones_like(self._sums[0])
        mean, square = self._sums / self._count
        return mean, np.sqrt(np.maximum(square - mean * mean, 0)) + 1e-8
