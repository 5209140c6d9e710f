"""A VecEnv whose every number can be worked by hand.

Environment i counts its steps from 0; the observation is (i, count). It pays its count as reward,
is cut (truncated) after `limit` steps, and can be made to pay NaN at one place.
"""

import numpy as np
import torch
from gymnasium import spaces

from gmi_drl.roles.envs.protocol import Step


class ToyEnv:
    def __init__(self, num_env, limit, *, terminates=False, nan_at=None, nan_in="reward"):
        self.num_env, self.limit, self.terminates = num_env, limit, terminates
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.device = torch.device("cpu")
        self.max_episode_steps = limit
        self.actions = []
        self._nan_at, self._nan_in, self._steps = nan_at, nan_in, 0
        self._count = torch.zeros(num_env)

    def _observation(self):
        return torch.stack([torch.arange(self.num_env).float(), self._count], dim=1)

    def reset(self, seed=None):
        self._count.zero_()
        return self._observation()

    def step(self, action):
        self.actions.append(action.clone())
        self._count += 1
        reward = self._count.clone()
        final = self._observation()
        ended = self._count >= self.limit
        self._count[ended] = 0
        observation = self._observation()
        if self._nan_at is not None and self._nan_at[0] == self._steps:
            spoiled = {"reward": reward, "observation": observation, "final": final}[self._nan_in]
            spoiled[self._nan_at[1]] = torch.nan
        self._steps += 1
        no = torch.zeros_like(ended)
        over, cut = (ended, no) if self.terminates else (no, ended)
        return Step(observation, reward, over, cut, final)

    def state_dict(self):
        return {"count": self._count.clone()}

    def load_state_dict(self, state):
        self._count.copy_(state["count"])

    def close(self):
        pass
