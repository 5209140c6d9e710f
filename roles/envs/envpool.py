"""Steps environments of EnvPool, which has them in C++, on threads of its own."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Final

import gymnasium
import numpy as np
from torch import Tensor

from .buffers import HostBuffers, checked_action
from .errors import EnvActionError, EnvSpecError, EnvStateError, env_error
from .flatten import Flattener, unflattened_action
from .gymnasium import torch_dtype
from .protocol import Step, VecEnvSpec
from .spaces import action_shape, space_faults

_SEEDS: Final = 2**31  # EnvPool takes no larger ones


class EnvPoolVecEnv:
    """Steps N environments by one call; `threads` of the spec are EnvPool's own.

    EnvPool begins the next episode a step after one has ended. Here those that ended are reset at
    once, by a second call. Environments hold their state where nobody can save it.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        self.env_id, self.num_env, self.device = spec.env_id, spec.num_env, spec.device
        self._keys: dict[str, Any] = {
            "num_envs": spec.num_env,
            "num_threads": min(spec.threads, spec.num_env),
            **spec.options,
        }
        if spec.max_episode_steps is not None:
            self._keys["max_episode_steps"] = spec.max_episode_steps
        self._make(spec.seed)
        limit = self._pool.spec.config.max_episode_steps
        self.max_episode_steps: int | None = limit if limit < np.iinfo(np.int32).max else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its bounds are rounded
            self.structured_space: gymnasium.Space[Any] = self._pool.observation_space
            self.action_space: gymnasium.Space[Any] = self._pool.action_space
        if faults := space_faults(spec.env_id, self.structured_space, self.action_space):
            self.close()
            raise EnvSpecError(*faults)
        self._flattener = Flattener(self.structured_space, self.env_id)
        self.observation_space = flat = self._flattener.flat
        self._action_shape = action_shape(self.action_space, spec.num_env)
        dtype = torch_dtype(flat, spec.dtype)
        self._buffers = HostBuffers(spec.num_env, flat.shape, dtype, spec.dtype, spec.device)

    def _make(self, seed: int) -> None:
        try:
            self._pool: Any = import_module("envpool").make_gymnasium(
                self.env_id, seed=seed % _SEEDS, **self._keys
            )
        except Exception as error:
            raise env_error(self.env_id, "constructor", error) from error

    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None:
            self._make(seed)  # what its random numbers are is said when it is made
        self._flattener.write(self._pool.reset()[0], self._buffers.observation)
        return self._buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        b = self._buffers
        array = checked_action(self.env_id, action, self._action_shape)
        if not np.isfinite(array).all():
            raise EnvActionError.not_finite(self.env_id, array)
        rows = array.reshape(self.num_env, -1)
        try:
            observation, reward, terminated, truncated, _ = self._pool.step(
                unflattened_action(self.action_space, rows)
            )
            self._flattener.write(observation, b.observation)
            b.reward[...], b.terminated[...], b.truncated[...] = reward, terminated, truncated
            ended = np.flatnonzero(b.terminated | b.truncated)
            if not len(ended):
                return b.publish(any_done=False)
            b.final_observation[...] = b.observation
            new_observation, info = self._pool.reset(ended.astype(np.int32))
        except Exception as error:
            raise env_error(self.env_id, "step", error) from error
        new_rows = np.empty((len(ended), b.observation.shape[1]), dtype=b.observation.dtype)
        self._flattener.write(new_observation, new_rows)
        b.observation[info["env_id"]] = new_rows
        return b.publish(any_done=True)

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise EnvStateError(
            f"env {self.env_id}: EnvPool's environments do not give their state away, so there is "
            "none to load. Resume with new episodes (reset), or use a mujoco or torch adapter."
        )

    def close(self) -> None:
        self._pool.close()
