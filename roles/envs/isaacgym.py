"""Steps tasks of IsaacGymEnvs as a VecEnv, where `isaacgym` and `isaacgymenvs` import.

Written to VecTask's interface (IsaacGymEnvs 1.5.1, tasks/base/vec_task.py) and tested against
a package that has it. Isaac Gym Preview 4 ships binaries for Python 3.8 alone and insists on being
imported before torch.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from .errors import EnvError, EnvSpecError
from .protocol import Step, VecEnvSpec, WithoutState


class IsaacGymVecEnv(WithoutState):
    """Steps one VecTask; `options` go to `isaacgymenvs.make` (headless, cfg, ...).

    The one departure from the protocol: IsaacGymEnvs resets an environment at the beginning of
    the step after its end, so `observation` after an end is the finished episode's too (equal to
    `final_observation`), and the next step's action counts for nothing there. Every library that
    trains on IsaacGymEnvs lives with this step.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        try:
            importlib.import_module("isaacgym")  # before isaacgymenvs, which imports torch
            isaacgymenvs = importlib.import_module("isaacgymenvs")
        except ImportError as error:
            raise EnvSpecError(
                f"env.adapter=isaacgym: {error}. isaacgym must import, and before torch: "
                "start Python with `import isaacgym` first, or choose another adapter."
            ) from error
        self.env_id, self.num_env, self.device = spec.env_id, spec.num_env, spec.device
        name = str(spec.device)
        arguments = {"headless": True, "graphics_device_id": -1, "force_render": False}
        self._task = isaacgymenvs.make(
            seed=spec.seed,
            task=spec.env_id,
            num_envs=spec.num_env,
            sim_device=name,
            rl_device=name,
            **arguments | dict(spec.options),
        )
        if spec.max_episode_steps is not None:
            self._task.max_episode_length = spec.max_episode_steps
        self.max_episode_steps: int | None = int(self._task.max_episode_length)
        self.observation_space: gymnasium.Space[Any] = _box(self._task.observation_space)
        self.action_space: gymnasium.Space[Any] = _box(self._task.action_space)
        self._seed = spec.seed

    def reset(self, seed: int | None = None) -> Tensor:
        if seed is not None and seed != self._seed:
            raise EnvError(
                f"env {self.env_id}: seed={seed}, but a simulation of Isaac Gym takes its seed "
                f"({self._seed}) when it is made. Make the environments anew with this seed."
            )
        observation: Tensor = self._task.reset()["obs"]
        return observation

    def step(self, action: Tensor) -> Step:
        observations, reward, reset, extras = self._task.step(action.to(self.device))
        ended = reset.to(torch.bool)
        truncated = extras["time_outs"].to(torch.bool)
        observation = observations["obs"]
        return Step(observation, reward, ended & ~truncated, truncated, observation)

    def close(self) -> None:
        """Does nothing: Isaac Gym frees a simulation when its process ends."""


def _box(space: Any) -> gymnasium.spaces.Box:
    """Returns Gym's Box as Gymnasium's."""
    return gymnasium.spaces.Box(np.asarray(space.low), np.asarray(space.high), dtype=np.float32)
