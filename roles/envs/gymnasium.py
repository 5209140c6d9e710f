"""Steps any registered environment, through Gymnasium's own vectors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from .adapters import time_limit
from .buffers import HostBuffers, checked_action
from .errors import EnvActionError, EnvError, EnvRaised, EnvSpecError, EnvStateError
from .protocol import Step, VecEnvSpec
from .spaces import can_be_batched, space_faults


class GymnasiumVecEnv:
    """Steps N environments in this process (`vectorization: sync`) or in one each (`async`).

    Observations and actions: Box or Discrete. Integer observations keep their type (images stay
    uint8), the others are handed over in `dtype`. Environments hold their state where nobody can
    save it: `state_dict` is None.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        arguments = dict(spec.options)
        asynchronous = arguments.pop("vectorization", "sync") == "async"
        env_id, num_env = spec.env_id, spec.num_env
        self.env_id, self.num_env, self.device = env_id, num_env, spec.device
        self.max_episode_steps = time_limit(env_id, spec.max_episode_steps)

        def one() -> gymnasium.Env[Any, Any]:
            return gymnasium.make(env_id, max_episode_steps=self.max_episode_steps, **arguments)

        copies, mode = [one] * num_env, AutoresetMode.SAME_STEP
        self._env: SyncVectorEnv | AsyncVectorEnv
        try:
            # Workers are spawned afresh: a fork would copy this process's threads' locks.
            self._env = (
                AsyncVectorEnv(copies, context="spawn", autoreset_mode=mode)
                if asynchronous
                else SyncVectorEnv(copies, autoreset_mode=mode)
            )
        except Exception as error:
            raise self._error("constructor", error) from error
        self._closed = False
        self.observation_space: gymnasium.Space[Any] = self._env.single_observation_space
        self.action_space: gymnasium.Space[Any] = self._env.single_action_space
        if not (can_be_batched(self.observation_space) and can_be_batched(self.action_space)):
            self.close()
            raise EnvSpecError(space_faults(env_id, self.observation_space, self.action_space))
        shape = self.observation_space.shape or ()
        dtype = _torch_dtype(self.observation_space, spec.dtype)
        self._buffers = HostBuffers(num_env, shape, dtype, spec.dtype, spec.device)
        self._seed: int | None = spec.seed

    def reset(self, seed: int | None = None) -> Tensor:
        seed, self._seed = self._seed if seed is None else seed, None  # the first is the given one
        try:
            observation = self._env.reset(seed=seed)[0]
        except Exception as error:
            raise self._error("reset", error) from error
        self._buffers.observation[...] = observation
        return self._buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        b = self._buffers
        actions = self._actions(action)
        try:
            observation, reward, terminated, truncated, info = self._env.step(actions)
        except Exception as error:
            raise self._error("step", error) from error
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
        array = checked_action(self.env_id, action, (self.num_env, *shape))
        if isinstance(self.action_space, Discrete):  # policies count from 0
            indices: NDArray[Any] = array.astype(np.int64) + self.action_space.start
            return indices
        if not np.isfinite(array).all():
            raise EnvActionError.not_finite(self.env_id, array)
        cast: NDArray[Any] = array.astype(self.action_space.dtype, copy=False)
        return cast

    def _error(self, what: str, error: Exception) -> Exception:
        """Returns what to raise for an error of the environment's own code."""
        if isinstance(error, MemoryError):
            return error
        if what != "constructor":
            wanted = self.observation_space.shape
            for seen in getattr(self._env, "_env_obs", None) or ():  # what each has given, if sync
                if seen is not None and np.shape(seen) != wanted:
                    return EnvError(
                        f"env {self.env_id}: {what} gave an observation of shape "
                        f"{list(np.shape(seen))}, and the observation space has "
                        f"{list(wanted or ())}. Make the two agree."
                    )
        return EnvRaised.of(self.env_id, what, error)

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
            try:
                self._env.close()
            except Exception as error:
                raise EnvRaised.of(self.env_id, "close", error) from error


def _torch_dtype(space: gymnasium.Space[Any], floating: torch.dtype) -> torch.dtype:
    assert space.dtype is not None
    if np.issubdtype(space.dtype, np.floating):
        return floating
    return torch.from_numpy(np.empty(0, dtype=space.dtype)).dtype
