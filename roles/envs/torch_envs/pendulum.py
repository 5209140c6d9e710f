"""Steps Pendulum-v1 as Gymnasium has it (classic_control/pendulum.py), N at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.envs.protocol import VecEnvSpec

from .base import TorchVecEnv, box
from .options import PendulumOptions

MAX_SPEED, MAX_TORQUE, TIME_STEP_S, MASS, LENGTH = 8.0, 2.0, 0.05, 1.0, 1.0


class Pendulum(TorchVecEnv):
    """Keeps the angle (0 is up) and its speed; shows cos, sin, speed. The action is a torque."""

    env_id, state_size, draw_size = "Pendulum-v1", 2, 2

    def __init__(self, spec: VecEnvSpec, options: PendulumOptions) -> None:
        self.options = options
        high = [1.0, 1.0, MAX_SPEED]
        self.observation_space = box([-h for h in high], high, None, spec.dtype)
        self.action_space = box(-MAX_TORQUE, MAX_TORQUE, (1,), torch.float32)
        like: dict[str, Any] = {"dtype": spec.dtype, "device": spec.device}
        self._max_start = torch.tensor([math.pi, 1.0], **like)  # angle and speed of a first state
        super().__init__(spec)

    def first_state(self, draws: Tensor) -> Tensor:
        return (draws * 2 - 1) * self._max_start

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, None]:
        theta, speed = state.unbind(1)
        u = action[:, 0].clamp(-MAX_TORQUE, MAX_TORQUE)
        normal = torch.remainder(theta + math.pi, 2 * math.pi) - math.pi
        cost = normal**2 + 0.1 * speed**2 + 0.001 * u**2
        gravity, inertia = 3 * self.options.g / (2 * LENGTH), 3.0 / (MASS * LENGTH**2)
        speed = speed + (gravity * torch.sin(theta) + inertia * u) * TIME_STEP_S
        speed = speed.clamp(-MAX_SPEED, MAX_SPEED)
        return torch.stack([theta + speed * TIME_STEP_S, speed], 1), -cost, None

    def observe(self, state: Tensor) -> Tensor:
        theta, speed = state.unbind(1)
        return torch.stack([torch.cos(theta), torch.sin(theta), speed], 1)
