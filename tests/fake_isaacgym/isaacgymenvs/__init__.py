"""Stands in for IsaacGymEnvs: `make`, and a task that keeps VecTask's manners.

As VecTask's: an environment that ended is reset by the *next* step; `reset` returns a dictionary
and resets nothing; `time_outs` is true where the limit was reached and the environment ended.
"""

import types

import numpy as np
import torch


def make(
    seed, task, num_envs, sim_device, rl_device, graphics_device_id=-1, headless=False,
    multi_gpu=False, virtual_screen_capture=False, force_render=True, cfg=None,
):  # fmt: skip
    return CountTask(seed, task, num_envs, rl_device, headless)


class CountTask:
    """Observes (environment, age in steps, sum of actions); falls when the sum exceeds 5."""

    max_episode_length = 6

    def __init__(self, seed, task, num_envs, rl_device, headless):
        self.seed, self.task, self.num_envs, self.headless = seed, task, num_envs, headless
        self.rl_device, self.num_obs, self.num_acts = rl_device, 3, 2
        ones = np.ones(3, np.float32)
        self.observation_space = types.SimpleNamespace(low=-np.inf * ones, high=np.inf * ones)
        self.action_space = types.SimpleNamespace(low=-ones[:2], high=ones[:2])
        self.obs_buf = torch.zeros(num_envs, 3)
        self.obs_buf[:, 0] = torch.arange(num_envs)
        self.reset_buf = torch.ones(num_envs, dtype=torch.long)
        self.progress_buf = torch.zeros(num_envs, dtype=torch.long)
        self.extras, self.obs_dict = {}, {}

    def reset(self):
        self.obs_dict["obs"] = self.obs_buf.clone()
        return self.obs_dict

    def step(self, actions):
        self.obs_buf[:, 2] += actions.clamp(-1, 1).sum(1)
        self.progress_buf += 1
        ended = self.reset_buf.nonzero().flatten()
        self.obs_buf[ended, 2] = 0
        self.progress_buf[ended] = 0
        self.obs_buf[:, 1] = self.progress_buf
        over = self.progress_buf >= self.max_episode_length - 1
        self.reset_buf = ((self.obs_buf[:, 2] > 5) | over).long()
        self.extras["time_outs"] = over & (self.reset_buf != 0)
        self.obs_dict["obs"] = self.obs_buf.clone()
        return self.obs_dict, self.obs_buf[:, 2].clone(), self.reset_buf.clone(), self.extras
