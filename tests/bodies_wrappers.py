"""Wrappers of a batch as users write them."""

import numpy as np
import torch
from gymnasium.spaces import Box

from gmi_drl.roles.envs import EnvWrapper


class Doubled(EnvWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self._factor = factor

    def observe(self, observation):
        return observation * self._factor


class WithOnes(EnvWrapper):
    """Shows a 1 behind each observation, and says so in its space."""

    def __init__(self, env):
        super().__init__(env)
        space, one = env.observation_space, np.ones(1, np.float32)
        low, high = (np.concatenate([bound, one]) for bound in (space.low, space.high))
        self.observation_space = Box(low, high)

    def observe(self, observation):
        return torch.cat([observation, torch.ones(len(observation), 1)], 1)


class Raises(EnvWrapper):
    def __init__(self, env):
        raise KeyError("no such thing")


class FailsLate(EnvWrapper):
    """Raises in its third step, or shows another shape from then on."""

    def __init__(self, env, how):
        super().__init__(env)
        self._how, self._steps = how, 0

    def step(self, action):
        self._steps += 1
        if self._steps == 3 and self._how == "raises":
            raise KeyError("no such thing")
        return super().step(action)

    def observe(self, observation):
        return observation[:, :2] if self._steps > 2 else observation


class Whole(EnvWrapper):
    """Says nothing of how its observations are stacks, so that they are kept whole."""
