"""Steps Barkour-v0: a quadruped walks at the velocity told, in place of Isaac Gym's Anymal.

Observation [48]: linear velocity of the trunk x 2 and angular velocity / 4, both in its frame,
up to here 6; the direction of gravity in it 3; the command, scaled alike, 3; joint angles from the
standing pose 12 and speeds / 20 12, in the model's order of joints; the last action 12.
Action [12], -1 to 1: targets of the joints' servos, `action_scale` rad around the standing pose.

    reward = dt * max(0, w_xy exp(-|command_xy - v_xy|^2 / 0.25)
                       + w_yaw exp(-(command_yaw - w_z)^2 / 0.25) - w_t |torques|^2)

An episode ends when the trunk or a knee touches the floor. These parts have no shape in the model:
the trunk is taken as a box, a knee as a ball, and touching is where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from .arrays import conjugate, rotate, up_in
from .robots import MODELS, RobotOptions, remove_visual_geoms, scale_servo, solve_to_convergence
from .task import Array, Fields, Task

LEGS = ("front_right", "front_left", "hind_right", "hind_left")
STANDING = (0.0, 0.5, 1.0)  # rad: abduction, hip, knee of every leg
START_HEIGHT_M = 0.28  # of the trunk's frame: clear of the floor in every first pose
TRUNK_CENTRE, TRUNK_HALF = (0.06, 0.0, 0.06), (0.205, 0.105, 0.06)  # m, in the trunk's frame
KNEE_RADIUS_M = 0.03
TIME_STEP_S = 0.004
LINEAR, ANGULAR, JOINT_SPEED = 2.0, 0.25, 0.05  # what observations are multiplied by
_SHARPNESS = 1 / 0.25


@dataclass(frozen=True, kw_only=True)
class BarkourOptions(RobotOptions):
    xml_file: str = str(MODELS / "barkour_v0/assets/barkour_v0_mjx.xml")
    frame_skip: int = 5
    action_scale: float = 0.5  # rad
    command_x_range: tuple[float, float] = (-1.0, 1.0)  # m/s
    command_y_range: tuple[float, float] = (-0.5, 0.5)  # m/s
    command_yaw_range: tuple[float, float] = (-1.0, 1.0)  # rad/s
    linear_velocity_weight: float = 1.0
    angular_velocity_weight: float = 0.5
    torque_cost_weight: float = 2.5e-5

    def compile(self, path: Path) -> mujoco.MjModel:
        """Puts the robot on a plane, in place of the model's random heights."""
        spec = mujoco.MjSpec.from_file(str(path))
        for key in list(spec.keys):
            spec.delete(key)  # its controls are angles
        spec.delete(spec.geom("hfield_floor"))
        spec.delete(spec.hfield("rand_uniform"))
        remove_visual_geoms(spec)
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], contype=0, conaffinity=1
        )
        for k, actuator in enumerate(spec.actuators):
            scale_servo(actuator, STANDING[k % len(STANDING)], self.action_scale)
        solve_to_convergence(spec)
        spec.option.timestep = TIME_STEP_S
        return spec.compile()


class Barkour(Task[BarkourOptions]):
    """Remembers the command [3] of the episode, velocity along x, y and about z."""

    max_episode_steps = 2500  # 50 s
    Options = BarkourOptions
    observation_size = 48
    memory_size = 3

    def prepare(self) -> None:
        model, o, xp = self.model, self.options, self.xp
        self._standing = xp.constant(np.array(STANDING * len(LEGS)))
        self._half = xp.constant(np.array(TRUNK_HALF))
        self._centre = xp.constant(np.array(TRUNK_CENTRE))
        self._knees = xp.rows([model.body(f"lower_leg_1to1_{leg}").id for leg in LEGS])
        self._root = xp.constant(np.array([0, 0, START_HEIGHT_M, 1, 0, 0, 0]))
        ranges = np.array([o.command_x_range, o.command_y_range, o.command_yaw_range])
        self._command = xp.constant(ranges.mean(1)), xp.constant(ranges[:, 1] - ranges.mean(1))
        self._scale = xp.constant(np.array([LINEAR, LINEAR, ANGULAR]))

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        views = {"ctrl": data.ctrl, "xpos": data.xpos, "torque": data.actuator_force}
        return super().views(data) | views

    def _velocity(self, f: Fields) -> Array:
        """Returns the linear one [N, 3] in the trunk's frame; qvel has the angular one in it."""
        v: Array = rotate(self.xp, conjugate(self.xp, f["qpos"][:, 3:7]), f["qvel"][:, :3])
        return v

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        o, xp = self.options, self.xp
        parts = [
            LINEAR * self._velocity(f),
            ANGULAR * f["qvel"][:, 3:6],
            -up_in(xp, f["qpos"][:, 3:7]),
            f["memory"] * self._scale,
            f["qpos"][:, 7:] - self._standing,
            JOINT_SPEED * f["qvel"][:, 6:],
            xp.clip(f["ctrl"], -1, 1),
        ]
        xp.write_columns(out, [xp.clip(xp.join(parts), -o.clip_observation, o.clip_observation)])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o, xp, command = self.options, self.xp, f["memory"]
        along = xp.square_sum(command[:, :2] - self._velocity(f)[:, :2])
        about = xp.square_sum(command[:, 2:] - f["qvel"][:, 5:6])
        reward = o.linear_velocity_weight * xp.exp(-_SHARPNESS * along)
        reward = reward + o.angular_velocity_weight * xp.exp(-_SHARPNESS * about)
        reward = reward - o.torque_cost_weight * xp.square_sum(f["torque"])
        up = up_in(xp, f["qpos"][:, 3:7])
        lowest = f["qpos"][:, 2] + (up * self._centre - abs(up) * self._half).sum(-1)
        knees = xp.take(f["xpos"].reshape(-1, self.model.nbody, 3), self._knees)[..., 2]
        touches: NDArray[np.bool_] = (lowest < 0) | (knees < KNEE_RADIUS_M).any(1)
        return self.dt * xp.clip(reward, 0, float("inf")), touches

    def first_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        nu = self.model.nu
        draws = rng.uniform(low=-1, high=1, size=2 * nu)  # at once: on a GPU a draw is kernels
        standing, speeds = self._standing * (1 + 0.5 * draws[..., :nu]), 0.1 * draws[..., nu:]
        root = self._root + 0 * standing[..., :7]  # once, or for every environment
        return self.xp.join([root, standing]), self.xp.join([0 * root[..., :6], speeds])

    def sample_memory(self, rng: np.random.Generator) -> Array:
        middle, reach = self._command
        drawn: Array = middle + reach * rng.uniform(low=-1, high=1, size=self.memory_size)
        return drawn
