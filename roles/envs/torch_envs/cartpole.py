"""Steps CartPole-v1 as Gymnasium has it (classic_control/cartpole.py), N at a time."""

from __future__ import annotations

import math

import gymnasium
import torch
from torch import Tensor

from gmi_drl.roles.envs.protocol import VecEnvSpec

from .base import TorchVecEnv, box
from .options import CartPoleOptions

GRAVITY, MASS_CART, MASS_POLE, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
TOTAL_MASS = MASS_POLE + MASS_CART
POLEMASS_LENGTH = MASS_POLE * HALF_LENGTH
FORCE, TIME_STEP_S = 10.0, 0.02
THETA_LIMIT, X_LIMIT = 12 * 2 * math.pi / 360, 2.4


class CartPole(TorchVecEnv):
    """Keeps and shows x, its speed, pole angle, its speed. Action 0 pushes left, 1 right."""

    env_id, state_size, draw_size = "CartPole-v1", 4, 4

    def __init__(self, spec: VecEnvSpec, options: CartPoleOptions) -> None:
        self.options = options
        high = [X_LIMIT * 2, math.inf, THETA_LIMIT * 2, math.inf]
        self.observation_space = box([-h for h in high], high, None, spec.dtype)
        self.action_space = gymnasium.spaces.Discrete(2)
        super().__init__(spec)

    def first_state(self, draws: Tensor) -> Tensor:
        return draws * 0.1 - 0.05

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, x_dot, theta, theta_dot = state.unbind(1)
        force = (action == 1).to(state.dtype) * (2 * FORCE) - FORCE
        cos, sin = torch.cos(theta), torch.sin(theta)
        temp = (force + POLEMASS_LENGTH * theta_dot**2 * sin) / TOTAL_MASS
        theta_acc = (GRAVITY * sin - cos * temp) / (
            HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * cos**2 / TOTAL_MASS)
        )
        x_acc = temp - POLEMASS_LENGTH * theta_acc * cos / TOTAL_MASS
        next_state = state + TIME_STEP_S * torch.stack([x_dot, x_acc, theta_dot, theta_acc], 1)
        fallen = (next_state[:, 0].abs() > X_LIMIT) | (next_state[:, 2].abs() > THETA_LIMIT)
        if self.options.sutton_barto_reward:
            return next_state, -fallen.to(state.dtype), fallen
        return next_state, torch.ones_like(x), fallen

    def observe(self, state: Tensor) -> Tensor:
        return state
