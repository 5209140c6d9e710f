"""Gives one environment of a batch as a `gymnasium.Env`, for evaluation scripts and wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from .protocol import VecEnv


class SingleEnv(gymnasium.Env[Any, Any]):
    """Makes a VecEnv of one a plain Gymnasium environment: no auto-reset, NumPy in and out."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(self, env: VecEnv) -> None:
        if env.num_env != 1:
            raise ValueError(f"num_env={env.num_env}; must be 1 here. Make the batch with one.")
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._start: NDArray[Any] | None = None  # of an episode begun by an auto-reset, unused yet

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._start is None:
            self._start = self._numpy(self._env.reset(seed))
        observation, self._start = self._start, None
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self._env.step(torch.as_tensor(np.asarray(action)[None]))
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        if terminated or truncated:
            self._start = self._numpy(step.observation)
        observation = self._numpy(step.final_observation)
        return observation, float(step.reward[0]), terminated, truncated, {}

    def close(self) -> None:
        self._env.close()

    @staticmethod
    def _numpy(observation: torch.Tensor) -> NDArray[Any]:
        array: NDArray[Any] = observation[0].cpu().numpy().copy()
        return array


def as_gymnasium(id: str, **arguments: Any) -> SingleEnv:
    """Returns `make_env(id, 1, ...)` as a Gymnasium environment."""
    from . import make_env

    return SingleEnv(make_env(id, 1, **arguments))
