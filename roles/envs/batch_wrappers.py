"""Wraps whole batches of environments; users' wrappers derive from `EnvWrapper`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box
from torch import Tensor

from .errors import EnvError, EnvSpecError, env_error
from .protocol import Stacking, Step, VecEnv
from .spaces import flat_space


class EnvWrapper:
    """A batch that is another one; override `observe`, or `step` and `reset`, to change it.

    What it does not have itself is the wrapped one's. N environments, D numbers of an observation.
    """

    # Not the wrapped one's, unless a wrapper that shows what that shows says so.
    stacking: Stacking | None = None

    def __init__(self, env: VecEnv) -> None:
        self.env, self.num_env, self.device = env, env.num_env, env.device
        self.observation_space: Space[Any] = env.observation_space
        self.action_space: Space[Any] = env.action_space
        self.max_episode_steps = env.max_episode_steps

    def reset(self, seed: int | None = None) -> Tensor:
        return self.observe(self.env.reset(seed))

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        shown, final = self.observe(step.observation), self.observe(step.final_observation)
        return step._replace(observation=shown, final_observation=final)

    def observe(self, observation: Tensor) -> Tensor:
        """Returns what is shown of observations [N, D] of the wrapped batch."""
        return observation

    def state_dict(self) -> dict[str, Any] | None:
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state)

    def close(self) -> None:
        self.env.close()

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # a copy that is being made has none yet
            raise AttributeError(name)
        if name == "structured_space" and self.observation_space != self.env.observation_space:
            raise AttributeError(name)  # it shows vectors of its own, if it does not say more
        return getattr(self.env, name)


class WatchedBatch(EnvWrapper):
    """Tells which wrapper it was where one of a user's raises, or shows what its space is not."""

    def __init__(self, env: VecEnv, name: str) -> None:
        """`name`: of the environment and the wrapper, for the error."""
        super().__init__(env)
        self._name, self.stacking = name, getattr(env, "stacking", None)
        self._shape = (env.num_env, *(env.observation_space.shape or ()))

    def reset(self, seed: int | None = None) -> Tensor:
        try:
            observation = self.env.reset(seed)
        except Exception as error:
            raise env_error(self._name, "reset", error) from error
        self._check_shape(observation, "reset")
        return observation

    def step(self, action: Tensor) -> Step:
        try:
            step = self.env.step(action)
        except Exception as error:
            raise env_error(self._name, "step", error) from error
        self._check_shape(step.observation, "step")
        return step

    def _check_shape(self, observation: Tensor, what: str) -> None:
        if tuple(observation.shape) != self._shape:
            raise EnvError(
                f"env {self._name}: {what} gave observations of shape {list(observation.shape)}; "
                f"must be of shape {list(self._shape)}, by num_env and observation_space. A "
                "wrapper that changes the shape sets observation_space too."
            )


class ClipReward(EnvWrapper):
    """Pays rewards between `low` and `high`."""

    def __init__(self, env: VecEnv, low: float = -1.0, high: float = 1.0) -> None:
        super().__init__(env)
        if not low < high:
            raise EnvSpecError(
                f"env.wrappers: clip_reward: low={low}, high={high}; low must be less. Swap them."
            )
        self._low, self._high = low, high
        self.stacking = getattr(env, "stacking", None)

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        return step._replace(reward=step.reward.clamp(self._low, self._high))

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name != "compute_reward":
            return value
        # What goals are worth is paid so, too.
        return lambda *goals: np.clip(value(*goals), self._low, self._high)


class KeepNumbers(EnvWrapper):
    """Shows some numbers of an observation, `places` in its vector, and hides the others."""

    def __init__(self, env: VecEnv, places: Sequence[int]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        width = space.shape[0]
        valid = [place for place in places if isinstance(place, int) and 0 <= place < width]
        if not valid or len(valid) < len(places):
            raise EnvSpecError(
                f"env.wrappers: keep_numbers: places={list(places)}; must be one or more of 0 "
                f"to {width - 1}, as an observation has {width}. Name those to show."
            )
        self._places = torch.tensor(valid, device=env.device)
        low, high = space.low[valid], space.high[valid]
        self.observation_space = Box(low, high, dtype=space.dtype.type)
        self.structured_space = self.observation_space

    def observe(self, observation: Tensor) -> Tensor:
        return observation.index_select(1, self._places)


class FrameStack(EnvWrapper):
    """Shows the last `count` observations together, along their last axis, the newest last.

    Where an episode begins its first observation is there `count` times. Images [H, W] become
    [H, W, count], images [H, W, C] [H, W, count C], vectors [D] [count D].
    """

    def __init__(self, env: VecEnv, count: int = 4) -> None:
        super().__init__(env)
        space: Space[Any] = getattr(env, "structured_space", env.observation_space)
        if not isinstance(space, Box) or count < 2:
            raise EnvSpecError(
                f"env.wrappers: frame_stack: count={count} of observations {space}; must be 2 "
                "or more of a Box. Leave the wrapper out."
            )
        self._count = count
        self._shape = space.shape if len(space.shape) in (1, 3) else (*space.shape, 1)
        low, high = (
            np.concatenate([bound.reshape(self._shape)] * count, -1)
            for bound in (space.low, space.high)
        )
        self.structured_space = Box(low, high, dtype=space.dtype.type)
        self.observation_space = flat_space(self.structured_space)
        self.stacking = Stacking(count, self._shape[-1])
        self._stack: Tensor | None = None

    def reset(self, seed: int | None = None) -> Tensor:
        self._stack = self._repeated(self._frames(self.env.reset(seed)))
        return self._stack.flatten(1)

    def step(self, action: Tensor) -> Step:
        assert self._stack is not None, "reset comes first"
        step = self.env.step(action)
        older, frames = self._stack[..., self._shape[-1] :], self._frames(step.observation)
        ended = (step.terminated | step.truncated).view(-1, *(1 for _ in self._shape))
        following = torch.cat([older, frames], -1)
        self._stack = torch.where(ended, self._repeated(frames), following)
        final = torch.cat([older, self._frames(step.final_observation)], -1)
        shown = self._stack.flatten(1)
        return step._replace(observation=shown, final_observation=final.flatten(1))

    def state_dict(self) -> dict[str, Any] | None:
        inner = self.env.state_dict()
        return None if inner is None else {"env": inner, "stack": self._stack}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        self._stack = state["stack"].to(self.device)

    def _frames(self, observation: Tensor) -> Tensor:
        return observation.view(len(observation), *self._shape)

    def _repeated(self, frames: Tensor) -> Tensor:
        return torch.cat([frames] * self._count, -1)


def unwrapped(env: VecEnv) -> VecEnv:
    """Returns the batch inside of all wrappers."""
    while isinstance(env, EnvWrapper):
        env = env.env
    return env
