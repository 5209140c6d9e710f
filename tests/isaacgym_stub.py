"""Gives IsaacGymEnvs' VecTask over any environment of ours: its code runs without Isaac Gym.

    import isaacgym_stub as isaacgymenvs
    env = isaacgymenvs.make(seed=0, task="Ant", num_envs=64, sim_device="cpu", rl_device="cpu")
    observations, reward, reset, extras = env.step(torch.zeros(env.num_envs, env.num_acts))

The physics are those of the environment underneath, not Isaac Gym's: sizes of observations differ
(Ant-v5 has 105, Isaac Gym's Ant 60).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.envs import make_env
from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.protocol import VecEnv

TASKS = {  # IsaacGymEnvs' task -> the environment of ours nearest to it
    "Ant": "Ant-v5",
    "Anymal": "Barkour-v0",
    "FrankaCabinet": "FrankaCabinet-v0",
    "BallBalance": "BallBalance-v0",
    "Cartpole": "InvertedPendulum-v5",
    "Humanoid": "Humanoid-v5",
    "ShadowHand": "ShadowHand-v0",
}


class VecTask:
    """The public face of isaacgymenvs.tasks.base.vec_task.VecTask.

    Actions are in [-1, 1] and scaled to the bounds of the environment's own. An environment that
    ends is reset in the same step: `obs` is then the next episode's first, and the finished one's
    last is in `extras["final_observation"]` (VecTask itself resets one step later).
    """

    num_states = 0
    num_agents = 1

    def __init__(
        self,
        env: VecEnv,
        rl_device: str = "cpu",
        clip_observations: float = np.inf,
        clip_actions: float = 1.0,
    ) -> None:
        spaces = gymnasium.spaces
        observation, action = env.observation_space, env.action_space
        if not isinstance(observation, spaces.Box) or len(observation.shape) != 1:
            raise EnvSpecError(
                f"observation space {observation}; VecTask needs a flat Box. Flatten it."
            )
        if not isinstance(action, spaces.Box) or len(action.shape) != 1:
            raise EnvSpecError(
                f"action space {action}; VecTask acts with a flat Box. Use a continuous task."
            )
        self.env = env
        self.device, self.rl_device = str(env.device), rl_device
        self.num_environments = env.num_env
        self.num_observations, self.num_actions = observation.shape[0], action.shape[0]
        self.obs_space = spaces.Box(-np.inf, np.inf, observation.shape, np.float32)
        self.act_space = spaces.Box(-1.0, 1.0, action.shape, np.float32)
        self.state_space = spaces.Box(-np.inf, np.inf, (0,), np.float32)
        self.clip_obs, self.clip_actions = clip_observations, clip_actions
        self.max_episode_length = env.max_episode_steps
        self.control_steps = self.total_train_env_frames = 0
        bounded = np.isfinite(action.low).all() and np.isfinite(action.high).all()
        low, high = (action.low, action.high) if bounded else (-1.0, 1.0)
        self._middle = torch.as_tensor((high + low) / 2, dtype=torch.float32, device=env.device)
        self._half = torch.as_tensor((high - low) / 2, dtype=torch.float32, device=env.device)
        self.rew_buf = torch.zeros(env.num_env, device=env.device)
        self.reset_buf = torch.ones(env.num_env, dtype=torch.long, device=env.device)
        self.timeout_buf = torch.zeros(env.num_env, dtype=torch.bool, device=env.device)
        self.progress_buf = torch.zeros(env.num_env, dtype=torch.long, device=env.device)
        self.obs_buf = env.reset()
        self.obs_dict: dict[str, Tensor] = {}
        self.extras: dict[str, Any] = {}

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        return self.obs_space

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        return self.act_space

    @property
    def num_envs(self) -> int:
        return self.num_environments

    @property
    def num_obs(self) -> int:
        return self.num_observations

    @property
    def num_acts(self) -> int:
        return self.num_actions

    def reset(self) -> dict[str, Tensor]:
        """The observations to begin with; called once, and begins nothing anew (as VecTask)."""
        self.obs_dict["obs"] = self._shown(self.obs_buf)
        return self.obs_dict

    def reset_done(self) -> tuple[dict[str, Tensor], Tensor]:
        """The observations, and which environments were reset for it (in `step`, here)."""
        return self.reset(), self.reset_buf.nonzero().flatten()

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        """obs_dict, rewards [N], resets [N] (0 or 1), extras with time_outs [N]."""
        clipped = actions.to(self._half.device).clamp(-self.clip_actions, self.clip_actions)
        step = self.env.step(self._middle + self._half * clipped)
        ended = step.terminated | step.truncated
        self.obs_buf = step.observation
        self.rew_buf = step.reward
        self.reset_buf = ended.to(torch.long)
        self.timeout_buf = step.truncated
        self.progress_buf = (self.progress_buf + 1) * ~ended
        self.control_steps += 1
        self.obs_dict["obs"] = self._shown(self.obs_buf)
        self.extras["time_outs"] = self.timeout_buf.to(self.rl_device, copy=True)
        self.extras["final_observation"] = self._shown(step.final_observation)
        return (
            self.obs_dict,
            self.rew_buf.to(self.rl_device, torch.float32, copy=True),
            self.reset_buf.to(self.rl_device),
            self.extras,
        )

    def _shown(self, observation: Tensor) -> Tensor:
        clamped = observation.clamp(-self.clip_obs, self.clip_obs)  # a new tensor, as VecTask's
        return clamped.to(self.rl_device, torch.float32)

    def get_state(self) -> Tensor:
        return torch.zeros(self.num_envs, 0, device=self.rl_device)

    def set_train_info(self, env_frames: int, *args: Any, **kwargs: Any) -> None:
        self.total_train_env_frames = env_frames

    def get_env_state(self) -> dict[str, Any] | None:
        return self.env.state_dict()

    def set_env_state(self, env_state: dict[str, Any] | None) -> None:
        if env_state is not None:
            self.env.load_state_dict(env_state)
            self.obs_buf = env_state["observation"].to(self.env.device)

    def close(self) -> None:
        self.env.close()


def make(
    seed: int,
    task: str,
    num_envs: int,
    sim_device: str = "cpu",
    rl_device: str = "cpu",
    graphics_device_id: int = -1,
    headless: bool = True,
    multi_gpu: bool = False,
    virtual_screen_capture: bool = False,
    force_render: bool = False,
    cfg: Any = None,
) -> VecTask:
    """`isaacgymenvs.make`; `task` is one of TASKS or an id of `make_env`. Rendering and cfg are
    Isaac Gym's own and have no effect."""
    env = make_env(TASKS.get(task, task), num_envs, device=sim_device, seed=seed)
    return VecTask(env, rl_device=rl_device)
