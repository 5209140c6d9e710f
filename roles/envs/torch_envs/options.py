"""Options of the environments written in torch (this file imports no torch)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CartPoleOptions:
    sutton_barto_reward: bool = False


@dataclass(frozen=True, kw_only=True)
class PendulumOptions:
    g: float = 10.0


@dataclass(frozen=True, kw_only=True)
class BallBalanceOptions:
    """Lengths in metres, times in seconds; the equations are in ball_balance.py."""

    action_speed_scale: float = 20.0
    ball_speed_cost: float = 1.0


OPTIONS: dict[str, type[CartPoleOptions | PendulumOptions | BallBalanceOptions]] = {
    "CartPole-v1": CartPoleOptions,
    "Pendulum-v1": PendulumOptions,
    "BallBalance-v0": BallBalanceOptions,
}
