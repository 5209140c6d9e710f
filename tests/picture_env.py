"""A VecEnv of random pictures in bytes, whose episodes end at random in both ways."""

import numpy as np
import torch
from gymnasium import spaces

from gmi_drl.roles.envs.batch_wrappers import ClipReward, FrameStack
from gmi_drl.roles.envs.protocol import Step


class PictureEnv:
    def __init__(self, num_env, shape, seed, nan_at=None):
        self.num_env, self._nan_at, self._steps = num_env, nan_at, 0
        self.structured_space = spaces.Box(0, 255, shape, np.uint8)
        width = int(np.prod(shape))
        self.observation_space = spaces.Box(0, 255, (width,), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.device, self.max_episode_steps = torch.device("cpu"), None
        self._generator = torch.Generator().manual_seed(seed)

    def _pictures(self):
        shape = (self.num_env, *self.observation_space.shape)
        return torch.randint(256, shape, dtype=torch.uint8, generator=self._generator)

    def _odds(self):
        return torch.rand(self.num_env, generator=self._generator)

    def reset(self, seed=None):
        return self._pictures()

    def step(self, action):
        over, cut = self._odds() < 0.15, self._odds() < 0.15
        observation = self._pictures()
        final = torch.where((over | cut)[:, None], self._pictures(), observation)
        reward = self._odds()
        if self._nan_at is not None and self._nan_at[0] == self._steps:
            reward[self._nan_at[1]] = torch.nan
        self._steps += 1
        return Step(observation, reward, over, cut, final)

    def close(self):
        pass


class Watched:
    """Passes an environment on, and keeps all it has shown."""

    def __init__(self, env):
        self._env, self.shown = env, []

    def __getattr__(self, name):
        return getattr(self._env, name)

    def reset(self, seed=None):
        self.shown.append(self._env.reset(seed).clone())
        return self.shown[-1]

    def step(self, action):
        step = self._env.step(action)
        self.shown.append(step.observation.clone())
        return step


def stacked(num_env, shape, count, seed=0, nan_at=None):
    """Pictures in stacks of `count`, or one by one, with rewards that a wrapper outside clips."""
    env = PictureEnv(num_env, shape, seed, nan_at)
    if count > 1:
        env = FrameStack(env, count)
    return Watched(ClipReward(env, 0.0, 0.9))
