"""Defines InvertedPendulum, InvertedDoublePendulum, Reacher and Pusher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from .task import Array, Fields, PhysicsTaskOptions, Task


@dataclass(frozen=True, kw_only=True)
class InvertedPendulumOptions(PhysicsTaskOptions):
    xml_file: str = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01


class InvertedPendulum(Task[InvertedPendulumOptions]):
    """Pays 1 until the pole leans more than 0.2 rad, which ends the episode."""

    Options = InvertedPendulumOptions

    def prepare(self) -> None:
        self.observation_size = self.model.nq + self.model.nv

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        self.xp.write_columns(out, [f["qpos"], f["qvel"]])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        finite = np.isfinite(f["qpos"]).all(1) & np.isfinite(f["qvel"]).all(1)
        upright: NDArray[np.bool_] = finite & ~(np.abs(f["qpos"][:, 1]) > 0.2)
        return upright.astype(np.float64), ~upright


@dataclass(frozen=True, kw_only=True)
class InvertedDoublePendulumOptions(PhysicsTaskOptions):
    xml_file: str = "inverted_double_pendulum.xml"
    frame_skip: int = 5
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1


class InvertedDoublePendulum(Task[InvertedDoublePendulumOptions]):
    """Pays a bonus while the tip is above 1 m - distance and velocity penalties."""

    Options = InvertedDoublePendulumOptions
    velocity_noise = "normal"

    def prepare(self) -> None:
        nq, nv = self.model.nq, self.model.nv
        self.observation_size = 2 * nq + nv  # x, sin and cos of angles, force on cart

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        return super().views(data) | {"tip": data.site_xpos[0], "force": data.qfrc_constraint[:1]}

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        x, angles = f["qpos"][:, :1], f["qpos"][:, 1:]
        clipped = [np.clip(f[name], -10, 10) for name in ("qvel", "force")]
        self.xp.write_columns(out, [x, np.sin(angles), np.cos(angles), *clipped])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        x, y = f["tip"][:, 0], f["tip"][:, 2]
        v1, v2 = f["qvel"][:, 1], f["qvel"][:, 2]
        fallen = y <= 1
        distance = 0.01 * x**2 + (y - 2) ** 2
        velocity = 1e-3 * v1**2 + 5e-3 * v2**2
        return self.options.healthy_reward * ~fallen - distance - velocity, fallen


@dataclass(frozen=True, kw_only=True)
class ReacherOptions(PhysicsTaskOptions):
    xml_file: str = "reacher.xml"
    frame_skip: int = 2
    reward_dist_weight: float = 1
    reward_control_weight: float = 1


class Reacher(Task[ReacherOptions]):
    """Pays -w_d * |fingertip - target| - w_c * |action|^2."""

    Options = ReacherOptions

    def prepare(self) -> None:
        self.observation_size = 4 + (self.model.nq - 2) + 2 + 2

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        fingertip, target = data.body("fingertip").xpos, data.body("target").xpos
        return super().views(data) | {"fingertip": fingertip, "target": target}

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        theta = f["qpos"][:, :2]
        error = (f["fingertip"] - f["target"])[:, :2]
        parts = [np.cos(theta), np.sin(theta), f["qpos"][:, 2:], f["qvel"][:, :2], error]
        self.xp.write_columns(out, parts)

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o = self.options
        distance = np.sqrt(self.xp.square_sum(f["fingertip"] - f["target"]))
        cost = self.xp.square_sum(action) * o.reward_control_weight
        return -distance * o.reward_dist_weight - cost, self.xp.none(f["qpos"])

    def first_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        qpos = rng.uniform(low=-0.1, high=0.1, size=self.model.nq) + self.init_qpos
        goal = rng.uniform(low=-0.2, high=0.2, size=2)
        while np.linalg.norm(goal) >= 0.2:
            goal = rng.uniform(low=-0.2, high=0.2, size=2)
        qpos[-2:] = goal
        qvel = self.init_qvel + rng.uniform(low=-0.005, high=0.005, size=self.model.nv)
        qvel[-2:] = 0
        return qpos, qvel


@dataclass(frozen=True, kw_only=True)
class PusherOptions(PhysicsTaskOptions):
    xml_file: str = "pusher_v5.xml"
    frame_skip: int = 5
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1
    reward_control_weight: float = 0.1


class Pusher(Task[PusherOptions]):
    """Pays -w_d * |object - goal| - w_c * |action|^2 - w_n * |object - tip|."""

    Options = PusherOptions
    observation_size = 23
    _BODIES = ("tips_arm", "object", "goal")

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        return super().views(data) | {name: data.body(name).xpos for name in self._BODIES}

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        bodies = (f[name] for name in self._BODIES)
        self.xp.write_columns(out, [f["qpos"][:, :7], f["qvel"][:, :7], *bodies])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o = self.options
        near = -np.sqrt(self.xp.square_sum(f["object"] - f["tips_arm"])) * o.reward_near_weight
        distance = -np.sqrt(self.xp.square_sum(f["object"] - f["goal"])) * o.reward_dist_weight
        reward = distance + -self.xp.square_sum(action) * o.reward_control_weight + near
        return reward, self.xp.none(f["qpos"])

    def first_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        qpos = self.init_qpos.copy()
        while True:  # the object, away from the goal at the origin
            x, y = rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)
            cylinder = np.concatenate([x, y])
            if np.linalg.norm(cylinder) > 0.17:
                break
        qpos[-4:-2] = cylinder
        qpos[-2:] = 0
        qvel = self.init_qvel + rng.uniform(low=-0.005, high=0.005, size=self.model.nv)
        qvel[-4:] = 0
        return qpos, qvel
