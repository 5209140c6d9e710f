"""Environments that Gymnasium's worker processes import by name (light: no torch in them)."""

import os

import gymnasium
import numpy as np


class PidEnv(gymnasium.Env):
    """Shows which process it lives in; ends after three steps."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def __init__(self, shift: float = 0.0):
        self.shift, self.age = shift, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._observation(), {}

    def step(self, action):
        self.age += 1
        assert action in self.action_space
        return self._observation(), float(action), self.age == 3, False, {}

    def _observation(self):
        return np.array([os.getpid(), self.age + self.shift])


class DictEnv(PidEnv):
    observation_space = gymnasium.spaces.Dict({"a": PidEnv.observation_space})


class ChoiceEnv(gymnasium.Env):
    """Shows a choice that its space does not have, in step 2 of the one with an odd seed."""

    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.seed, self.age = seed, 0
        return 0, {}

    def step(self, action):
        self.age += 1
        return 7 if self.age == 2 and self.seed % 2 else 1, 0.0, False, False, {}


gymnasium.register("GmiChoice-v0", entry_point=ChoiceEnv)
gymnasium.register("GmiPid-v0", entry_point=PidEnv)
gymnasium.register("GmiDict-v0", entry_point=DictEnv)
