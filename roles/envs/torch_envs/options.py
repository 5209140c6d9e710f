"""Defines the options and time limits of the environments in torch, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CartPoleOptions:
    sutton_barto_reward: bool = False  # -1 when it falls, else 0; instead of always 1


@dataclass(frozen=True, kw_only=True)
class PendulumOptions:
    g: float = 10.0  # gravity, m/s^2


@dataclass(frozen=True, kw_only=True)
class BallBalanceOptions:
    actuator_speed_m_per_s: float = 0.5  # how fast full action moves a leg's target
    stroke_m: float = 0.1  # how far a leg's target goes up and down
    start_radius_m: float = 0.3  # the ball starts anywhere within
    start_speed_m_per_s: float = 0.5  # at most, in any direction


OPTIONS: dict[str, type[CartPoleOptions | PendulumOptions | BallBalanceOptions]] = {
    "CartPole-v1": CartPoleOptions,
    "Pendulum-v1": PendulumOptions,
    "BallBalance-v0": BallBalanceOptions,
}
MAX_EPISODE_STEPS = {"CartPole-v1": 500, "Pendulum-v1": 200, "BallBalance-v0": 500}
