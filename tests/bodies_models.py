"""Environments and functions that tests of models name; imported by name in processes."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """A point that is pushed, and whose episode is over beyond 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-0.9, 0.9, 2).astype(np.float32)
        return self._at.copy(), {}

    def step(self, action):
        self._at = (self._at + 0.3 * np.float32(action[0])).astype(np.float32)
        over = bool(abs(self._at[0]) > 1.0)
        return self._at.copy(), float(-(self._at[1] ** 2)), over, False, {}


class Bytes(Walk):
    """The same as an image."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((8, 8, 1), np.uint8), {}


def beyond(observation, action, following):
    return following[:, 0].abs() > 1.0


def halfway(observation, action, following):
    """Ends more of a model's roll-outs, whatever it has learned by then."""
    return following[:, 0].abs() > 0.5


def height(observation, action, following):
    return following[:, 0]


def fifth(observation, action, following):
    return following[:, 4] > 0.0


def anywhere(observation, action, following):
    return (following.abs() > 1.0).any()


def nothing(observation, action, following):
    return None


gymnasium.register("GmiWalk-v0", entry_point=Walk, max_episode_steps=20, disable_env_checker=True)
gymnasium.register("GmiBytes-v0", entry_point=Bytes, max_episode_steps=20, disable_env_checker=True)
