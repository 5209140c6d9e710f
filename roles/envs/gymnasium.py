"""Steps any registered environment, through Gymnasium's own vectors."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from .adapters import find_spec, time_limit
from .buffers import HostVecEnv
from .errors import EnvRaised, EnvSpecError, env_error
from .protocol import Step, VecEnvSpec
from .watched import WatchedEnv


class GymnasiumVecEnv(HostVecEnv):
    """Steps N environments in this process (`vectorization: sync`) or in one each (`async`)."""

    def __init__(self, spec: VecEnvSpec) -> None:
        super().__init__(spec)
        arguments = dict(spec.options)
        asynchronous = arguments.pop("vectorization", "sync") == "async"
        env_id = spec.env_id
        self.max_episode_steps = limit = time_limit(env_id, spec.max_episode_steps)
        wrappers, entry = spec.wrappers, find_spec(env_id)
        assert entry is not None  # it was checked

        def make_one(number: int) -> gymnasium.Env[Any, Any]:
            env = gymnasium.make(entry, max_episode_steps=limit, **arguments)
            for wrapper in wrappers:
                env = wrapper(env)
            return WatchedEnv(env, env_id, number)

        copies, mode = [partial(make_one, i) for i in range(spec.num_env)], AutoresetMode.SAME_STEP
        self._env: SyncVectorEnv | AsyncVectorEnv
        try:
            # Workers are spawned afresh: a fork would copy this process's threads' locks.
            self._env = (
                AsyncVectorEnv(copies, context="spawn", autoreset_mode=mode)
                if asynchronous
                else SyncVectorEnv(copies, autoreset_mode=mode)
            )
        except Exception as error:
            raise env_error(self.env_id, "constructor", error) from error
        self._closed, batch = False, self._env
        self.take_spaces(
            spec, batch.single_observation_space, batch.single_action_space,
            lambda number: batch.call("which")[number],
        )  # fmt: skip
        self._seed: int | None = spec.seed

    def reset(self, seed: int | None = None) -> Tensor:
        seed, self._seed = self._seed if seed is None else seed, None  # the first is the given one
        try:
            observation = self._env.reset(seed=seed)[0]
        except Exception as error:
            raise env_error(self.env_id, "reset", error) from error
        self.flattener.write(observation, self.buffers.observation)
        return self.buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        b, actions = self.buffers, self.actions_of(action)
        try:
            observation, reward, terminated, truncated, info = self._env.step(actions)
        except Exception as error:
            raise env_error(self.env_id, "step", error) from error
        self.flattener.write(observation, b.observation)
        b.reward[...] = reward
        b.terminated[...] = terminated
        b.truncated[...] = truncated
        ended = info.get("_final_obs")
        if ended is None:
            return b.publish(any_done=False)
        b.final_observation[...] = b.observation
        for i in np.flatnonzero(ended):
            self.flattener.write_one(info["final_obs"][i], b.final_observation[i], int(i))
        return b.publish(any_done=True)

    @property
    def frames_per_s(self) -> float:
        """Returns how many pictures a second of the simulation has; 30 where it does not say."""
        return float(self._env.metadata.get("render_fps") or 30)

    def render(self) -> NDArray[np.uint8]:
        """Returns a picture [H, W, 3] of the first environment, made with render_mode rgb_array.

        EnvSpecError if it draws none.
        """
        try:
            picture = np.asarray((self._env.render() or [None])[0])
        except Exception as error:
            raise env_error(self.env_id, "render", error) from error
        if picture.ndim != 3 or picture.shape[2] != 3:
            given = f"of shape {picture.shape}" if picture.ndim else repr(picture.item())
            raise EnvSpecError(
                f"env.id={self.env_id!r}: its render gave {given}; must be a picture, an array "
                "[height, width, 3], with render_mode rgb_array. Have it return one."
            )
        return picture

    def __getattr__(self, name: str) -> Any:
        batch = self.__dict__.get("_env")
        if name == "compute_reward" and isinstance(batch, SyncVectorEnv):  # of a goal environment
            compute_reward = getattr(batch.envs[0].unwrapped, name, None)
            if callable(compute_reward):
                return partial(self._goal_rewards, compute_reward)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _goal_rewards(self, compute_reward: Any, achieved: Any, desired: Any) -> Any:
        """Returns what an environment says that goals [B, ...] are worth."""
        try:
            return compute_reward(achieved, desired, {})
        except Exception as error:
            raise env_error(self.env_id, "compute_reward", error) from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._env.close()
            except Exception as error:
                raise EnvRaised.of(self.env_id, "close", error) from error
