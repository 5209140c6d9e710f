"""A linear-quadratic task and GMIs that evolve policies, for processes that import it by name."""

import contextlib
import os
import signal
from pathlib import Path

import gymnasium
import numpy as np
import torch

from bodies_roles import optimizer_of

# x' = A x + B u pays -(x Q x + u R u); unstable where nothing is done.
A = np.array([[1.05, 0.2], [0.0, 0.95]])
B = np.array([[0.0], [0.5]])
Q, R = np.eye(2), 0.5 * np.eye(1)
STEPS = 30


class LQR(gymnasium.Env):
    """Begins at a normal state; `broken` environments of odd seeds pay NaN."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, broken=False):
        self._broken = broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._pays_nan = self._broken and seed % 2
        self._x = self.np_random.standard_normal(2)
        return self._x, {}

    def step(self, action):
        u = np.asarray(action, np.float64)
        cost = float(self._x @ Q @ self._x + u @ R @ u)
        self._x = A @ self._x + B @ u
        return self._x, np.nan if self._pays_nan else -cost, False, False, {}


gymnasium.register("GmiLQR-v0", entry_point=LQR, max_episode_steps=STEPS, disable_env_checker=True)


class Blind(gymnasium.Env):
    """Pays 1 a step, and shows NaN in its third step where its seed is odd."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._blinds = seed % 2
        self._steps = 0
        return np.ones(2), {}

    def step(self, action):
        self._steps += 1
        seen = np.nan if self._blinds and self._steps == 2 else float(action)
        return np.full(2, seen), 1.0, False, False, {}


gymnasium.register("Blind-v0", entry_point=Blind, max_episode_steps=STEPS, disable_env_checker=True)


class KillingLQR(LQR):
    """Kills, in its fifth step, the process whose number is in a file, which it takes away."""

    def __init__(self, folder):
        super().__init__()
        self._file, self._steps = Path(folder) / "kill", 0

    def step(self, action):
        self._steps += 1
        if self._steps % 5 == 0:
            mine = self._file.with_name(f"kill-{os.getpid()}")
            with contextlib.suppress(FileNotFoundError):  # one of all that play
                self._file.rename(mine)
                os.kill(int(mine.read_text()), signal.SIGKILL)
        return super().step(action)


gymnasium.register(
    "KillingLQR-v0", entry_point=KillingLQR, max_episode_steps=STEPS, disable_env_checker=True
)


def expected_cost(gain):
    """What u = gain x costs on average over STEPS steps, from a normal state on."""
    cost, covariance = 0.0, np.eye(2)
    for _ in range(STEPS):
        cost += np.trace((Q + gain.T @ R @ gain) @ covariance)
        closed = A + B @ gain
        covariance = closed @ covariance @ closed.T
    return cost


def riccati_gain():
    """The best gain where there is no last step, by iterating Riccati's equation."""
    p = Q
    for _ in range(1000):
        gain = -np.linalg.solve(R + B.T @ p @ B, B.T @ p @ A)
        p = Q + A.T @ p @ A + A.T @ p @ B @ gain
    return gain


def rounds(group, section, count):
    """Returns what `count` rounds of a group's GMIs come to: parameters, moments and metrics."""
    optimizer = optimizer_of(group, section)
    steps, told = 0, []
    for iteration in range(count):
        done = optimizer.step(iteration, steps)
        steps += done.steps
        told.append({key: done.metrics[key] for key in ("return_mean", "episodes", "nan_returns")})
    state = optimizer.state_dict()
    statistics = state["observation_normalizer"] or {"moments": torch.zeros(0)}
    learned = (state["parameters"].numpy().copy(), statistics["moments"].numpy().copy())
    return *learned, steps, told
