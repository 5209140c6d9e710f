"""Defines HalfCheetah, Hopper, Walker2d, Swimmer, which run forward, mostly in a plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .task import Array, Fields, PhysicsTaskOptions, Task


@dataclass(frozen=True, kw_only=True)
class HalfCheetahOptions(PhysicsTaskOptions):
    xml_file: str = "half_cheetah.xml"
    frame_skip: int = 5
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True


@dataclass(frozen=True, kw_only=True)
class SwimmerOptions(HalfCheetahOptions):
    xml_file: str = "swimmer.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class Walker2dOptions(HalfCheetahOptions):
    xml_file: str = "walker2d_v5.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (0.8, 2.0)
    healthy_angle_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 5e-3


@dataclass(frozen=True, kw_only=True)
class HopperOptions(Walker2dOptions):
    xml_file: str = "hopper.xml"
    healthy_state_range: tuple[float, float] = (-100.0, 100.0)
    healthy_z_range: tuple[float, float] = (0.7, float("inf"))
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2)


class HalfCheetah(Task[HalfCheetahOptions]):
    """Pays w_f * x velocity - w_c * |action|^2; never ends by itself."""

    Options = HalfCheetahOptions
    velocity_noise = "normal"
    planar_positions = 1  # coordinates left out of the observation unless asked for

    def prepare(self) -> None:
        excluded = self.options.exclude_current_positions_from_observation
        self.skipped = self.planar_positions if excluded else 0
        self.observation_size = self.model.nq + self.model.nv - self.skipped

    def position(self, f: Fields) -> Array:
        x: Array = self.xp.copy(f["qpos"][:, :1])
        return x

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        self.xp.write_columns(out, [f["qpos"][:, self.skipped :], f["qvel"]])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o = self.options
        x_velocity = (f["qpos"][:, 0] - before[:, 0]) / self.dt
        cost = o.ctrl_cost_weight * self.xp.square_sum(action)
        return o.forward_reward_weight * x_velocity - cost, self.xp.none(f["qpos"])


class Swimmer(HalfCheetah):
    """HalfCheetah's reward; two position coordinates; uniform first velocities."""

    Options = SwimmerOptions
    velocity_noise = "uniform"
    planar_positions = 2


class Walker2d(HalfCheetah):
    """HalfCheetah's reward plus a bonus while upright; falling ends the episode."""

    Options = Walker2dOptions
    velocity_noise = "uniform"
    options: Walker2dOptions

    def healthy(self, f: Fields) -> NDArray[np.bool_]:
        o = self.options
        z, angle = f["qpos"][:, 1], f["qpos"][:, 2]
        upright: NDArray[np.bool_] = (o.healthy_z_range[0] < z) & (z < o.healthy_z_range[1])
        upright &= (o.healthy_angle_range[0] < angle) & (angle < o.healthy_angle_range[1])
        return upright

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        self.xp.write_columns(out, [f["qpos"][:, self.skipped :], self.xp.clip(f["qvel"], -10, 10)])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o = self.options
        healthy = self.healthy(f)
        x_velocity = (f["qpos"][:, 0] - before[:, 0]) / self.dt
        reward = o.forward_reward_weight * x_velocity + healthy * o.healthy_reward
        reward -= o.ctrl_cost_weight * self.xp.square_sum(action)
        return reward, ~healthy if o.terminate_when_unhealthy else self.xp.none(f["qpos"])


class Hopper(Walker2d):
    """Walker2d's reward; every other coordinate must stay in a range too."""

    Options = HopperOptions
    options: HopperOptions

    def healthy(self, f: Fields) -> NDArray[np.bool_]:
        low, high = self.options.healthy_state_range
        upright = super().healthy(f)
        for values in (f["qpos"][:, 2:], f["qvel"]):
            upright &= ((low < values) & (values < high)).all(1)
        return upright
