"""Any registered environment, through Gymnasium's own vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from .buffers import HostBuffers, checked_action, not_finite_action
from .errors import EnvSpecError, EnvStateError
from .protocol import Step


class GymnasiumVecEnv:
    """N environments in this process (`vectorization: sync`) or in a process each (`async`).

    Observations and actions: Box or Discrete. Integer observations keep their type (images stay
    uint8), the others are handed over in `dtype`. Environments hold their state where nobody can
    save it: `state_dict` is None.
    """

    def __init__(
        self,
        env_id: str,
        num_env: int,
        *,
        options: Mapping[str, Any],
        max_episode_steps: int | None,
        device: torch.device,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        arguments = dict(options)
        asynchronous = arguments.pop("vectorization", "sync") == "async"
        self.env_id, self.num_env, self.device = env_id, num_env, device
        self.max_episode_steps = max_episode_steps

        def one() -> gymnasium.Env[Any, Any]:
            return gymnasium.make(env_id, max_episode_steps=max_episode_steps, **arguments)

        # Workers are spawned afresh: a fork would copy this process's threads' locks.
        self._env: SyncVectorEnv | AsyncVectorEnv = (
            AsyncVectorEnv([one] * num_env, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
            if asynchronous
            else SyncVectorEnv([one] * num_env, autoreset_mode=AutoresetMode.SAME_STEP)
        )
        self._closed = False
        self.observation_space: gymnasium.Space[Any] = self._env.single_observation_space
        self.action_space: gymnasium.Space[Any] = self._env.single_action_space
        if faults := space_faults(env_id, self.observation_space, self.action_space):
            self.close()
            raise EnvSpecError(faults)
        shape = self.observation_space.shape or ()
        self._buffers = HostBuffers(
            num_env, shape, _torch_dtype(self.observation_space, dtype), dtype, device
        )
        self._seed: int | None = seed

    def reset(self, seed: int | None = None) -> Tensor:
        seed, self._seed = self._seed if seed is None else seed, None  # the first is the given one
        self._buffers.observation[...] = self._env.reset(seed=seed)[0]
        return self._buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        b = self._buffers
        observation, reward, terminated, truncated, info = self._env.step(self._actions(action))
        b.observation[...] = observation
        b.reward[...] = reward
        b.terminated[...] = terminated
        b.truncated[...] = truncated
        ended = info.get("_final_obs")
        if ended is None:
            return b.publish(any_done=False)
        b.final_observation[...] = b.observation
        for i in np.flatnonzero(ended):
            b.final_observation[i] = info["final_obs"][i]
        return b.publish(any_done=True)

    def _actions(self, action: Tensor) -> NDArray[Any]:
        shape = self.action_space.shape or ()
        array = checked_action(action, (self.num_env, *shape))
        if isinstance(self.action_space, Discrete):  # policies count from 0
            indices: NDArray[Any] = array.astype(np.int64) + self.action_space.start
            return indices
        if not np.isfinite(array).all():
            raise not_finite_action(f"env {self.env_id}", array)
        cast: NDArray[Any] = array.astype(self.action_space.dtype, copy=False)
        return cast

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise EnvStateError(
            f"env {self.env_id}: Gymnasium's environments do not give their state away, so there "
            "is none to load. Resume with new episodes (reset), or use a mujoco or torch adapter."
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()


def space_faults(env_id: str, observation: object, action: object) -> list[str]:
    """Why these spaces cannot be batched as one tensor each."""
    faults = []
    if not isinstance(observation, Box | Discrete):
        faults.append(
            f"env {env_id}: observation space {observation}; must be Box or Discrete. Register "
            "the environment wrapped in gymnasium.wrappers.FlattenObservation."
        )
    if not isinstance(action, Box | Discrete):
        faults.append(
            f"env {env_id}: action space {action}; must be Box or Discrete. Register the "
            "environment wrapped in a gymnasium.ActionWrapper that offers one of these."
        )
    return faults


def _torch_dtype(space: gymnasium.Space[Any], floating: torch.dtype) -> torch.dtype:
    assert space.dtype is not None
    if np.issubdtype(space.dtype, np.floating):
        return floating
    return torch.from_numpy(np.empty(0, dtype=space.dtype)).dtype
