"""Steps BallBalance-v0: a ball is kept on a round table on three legs of variable length.

The task of Isaac Gym's BallBalance (24 observations, 3 actions, the same reward), with physics of
our own, small and in the open. The table is a plane over (x, y); leg k stands at angle
phi_k = 0, 120, 240 degrees, `LEG_RADIUS` from the centre, and is extended by h_k from its middle.

    servo       target_k <- clamp(target_k + speed * action_k * dt, -stroke, stroke)
                h_k'' = w^2 (target_k - h_k) - 2 w h_k'             (critically damped)
    table       z(x, y) = c + a x + b y,  c = mean h_k,
                a = 2/(3 r) sum h_k cos phi_k,  b = 2/(3 r) sum h_k sin phi_k   (exact: 3 points)
    ball        solid, rolls without slipping (5/7 of what a sliding point would do), pressed on
                by n = max(0, g + z''), where z'' = c'' + a'' x + b'' y; rolling friction d:
                (x, y)'' = -5/7 n (a, b) / (1 + a^2 + b^2) - d (x, y)'
    leg load    m n (1/3 + 2/3 (x x_k + y y_k) / r^2)    (static balance of force and moments)
    reward      1 / (1 + distance from the centre) * 1 / (1 + speed)
    end         the ball leaves the table

Semi-implicit Euler, `SUBSTEPS` to a step. Left out: the horizontal travel of a tilting table, the
ball's hop when n = 0 (it coasts), the ball's effect on the legs (they are strong).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gmi_drl.roles.envs.protocol import VecEnvSpec

from .base import TorchVecEnv, box
from .options import BallBalanceOptions

TIME_STEP_S, SUBSTEPS = 0.02, 2
TABLE_RADIUS, LEG_RADIUS = 0.5, 0.35  # m
BALL_MASS, GRAVITY = 0.5, 9.81  # kg, m/s^2
SERVO_RATE = 20.0  # w, 1/s
ROLLING_FRICTION = 0.05  # d, 1/s
NUM_LEGS = 3
PARTS = [3, 3, 3, 2, 2]  # of a state


class BallBalance(TorchVecEnv):
    """Keeps leg extensions, their speeds, targets [3 each], ball position and speed [2 each].

    Observation [24]: leg extensions 3, their speeds 3, ball position 3 and velocity 3 (z that of
    the table under it), leg loads 3 (N), table a, b, c 3, their rates 3, leg targets 3.
    """

    env_id, state_size, draw_size = "BallBalance-v0", 13, 4

    def __init__(self, spec: VecEnvSpec, options: BallBalanceOptions) -> None:
        self.options = options
        self.observation_space = box(-math.inf, math.inf, (24,), spec.dtype)
        self.action_space = box(-1.0, 1.0, (NUM_LEGS,), torch.float32)
        angles = [2 * math.pi * k / NUM_LEGS for k in range(NUM_LEGS)]
        like: dict[str, Any] = {"dtype": spec.dtype, "device": spec.device}
        # Leg extensions [N, 3] @ plane [3, 3] = a, b, c of the table.
        scale = 2 / (NUM_LEGS * LEG_RADIUS)
        rows = [[scale * math.cos(p), scale * math.sin(p), 1 / NUM_LEGS] for p in angles]
        self._plane = torch.tensor(rows, **like)
        # Ball position [N, 2] @ legs [2, 3] + 1/3 = share of the load on each leg.
        columns = [[f(p) for p in angles] for f in (math.cos, math.sin)]
        self._share = torch.tensor(columns, **like) * (2 / (NUM_LEGS * LEG_RADIUS))
        super().__init__(spec)

    def first_state(self, draws: Tensor) -> Tensor:
        o = self.options
        turn = 2 * math.pi * draws[:, 0::2]  # direction of place, of velocity
        size = torch.stack(
            [o.start_radius_m * draws[:, 1].sqrt(), o.start_speed_m_per_s * draws[:, 3]], 1
        )
        x, y = size * torch.cos(turn), size * torch.sin(turn)
        legs = draws.new_zeros(len(draws), 3 * NUM_LEGS)
        return torch.cat([legs, x[:, :1], y[:, :1], x[:, 1:], y[:, 1:]], 1)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        o = self.options
        h, h_dot, target, ball, ball_dot = torch.split(state, PARTS, 1)
        moved = target + action.clamp(-1, 1) * (o.actuator_speed_m_per_s * TIME_STEP_S)
        target = moved.clamp(-o.stroke_m, o.stroke_m)
        dt = TIME_STEP_S / SUBSTEPS
        for _ in range(SUBSTEPS):
            h_acc = self._servo(h, h_dot, target)
            h_dot = h_dot + dt * h_acc
            h = h + dt * h_dot
            slope = (h @ self._plane)[:, :2]
            steep = 1 + slope.square().sum(1, keepdim=True)
            pull = (5 / 7) * self._press(ball, h_acc) / steep
            ball_dot = ball_dot + dt * (-pull * slope - ROLLING_FRICTION * ball_dot)
            ball = ball + dt * ball_dot
        next_state = torch.cat([h, h_dot, target, ball, ball_dot], 1)
        distance, speed = ball.norm(dim=1), ball_dot.norm(dim=1)
        return next_state, 1 / (1 + distance) / (1 + speed), distance > TABLE_RADIUS

    def _servo(self, h: Tensor, h_dot: Tensor, target: Tensor) -> Tensor:
        return SERVO_RATE**2 * (target - h) - 2 * SERVO_RATE * h_dot

    def _press(self, ball: Tensor, h_acc: Tensor) -> Tensor:
        """Returns n [N, 1]: what the ball weighs on the moving table, per kilogram."""
        rate = h_acc @ self._plane
        lift = rate[:, 2:] + (rate[:, :2] * ball).sum(1, keepdim=True)
        return (GRAVITY + lift).clamp(min=0)

    def observe(self, state: Tensor) -> Tensor:
        h, h_dot, target, ball, ball_dot = torch.split(state, PARTS, 1)
        table, table_dot = h @ self._plane, h_dot @ self._plane
        z = table[:, 2:] + (table[:, :2] * ball).sum(1, keepdim=True)
        z_dot = (
            table_dot[:, 2:]
            + (table_dot[:, :2] * ball).sum(1, keepdim=True)
            + (table[:, :2] * ball_dot).sum(1, keepdim=True)
        )
        press = self._press(ball, self._servo(h, h_dot, target))
        load = BALL_MASS * press * (1 / NUM_LEGS + (ball @ self._share))
        return torch.cat([h, h_dot, ball, z, ball_dot, z_dot, load, table, table_dot, target], 1)
