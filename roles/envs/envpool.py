"""Steps environments of EnvPool, which has them in C++, on threads of its own."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Final

import numpy as np
from torch import Tensor

from .buffers import HostVecEnv
from .errors import env_error
from .protocol import Step, VecEnvSpec

_SEEDS: Final = 2**31  # EnvPool takes no larger ones


class EnvPoolVecEnv(HostVecEnv):
    """Steps N environments by one call; `threads` of the spec are EnvPool's own.

    EnvPool begins the next episode a step after one has ended. Here those that ended are reset at
    once, by a second call.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        super().__init__(spec)
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
            spaces = self._pool.observation_space, self._pool.action_space
        self.take_spaces(spec, *spaces)

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
        self.flattener.write(self._pool.reset()[0], self.buffers.observation)
        return self.buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        b, actions = self.buffers, self.actions_of(action)
        try:
            observation, reward, terminated, truncated, _ = self._pool.step(actions)
            self.flattener.write(observation, b.observation)
            b.reward[...], b.terminated[...], b.truncated[...] = reward, terminated, truncated
            ended = np.flatnonzero(b.terminated | b.truncated)
            if not len(ended):
                return b.publish(any_done=False)
            b.final_observation[...] = b.observation
            new_observation, info = self._pool.reset(ended.astype(np.int32))
        except Exception as error:
            raise env_error(self.env_id, "step", error) from error
        new_rows = np.empty((len(ended), b.observation.shape[1]), dtype=b.observation.dtype)
        self.flattener.write(new_observation, new_rows)
        b.observation[info["env_id"]] = new_rows
        return b.publish(any_done=True)

    def close(self) -> None:
        self._pool.close()
