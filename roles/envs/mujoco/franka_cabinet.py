"""Steps FrankaCabinet-v0: an arm opens a drawer, as in Isaac Gym's task.

Observation [23], in Isaac Gym's order: angles of the arm's joints and places of the fingers, scaled
to -1..1 9, their speeds / 10 9; the way from the grasp point of the hand to that of the drawer 3;
how far the drawer is open, m, and its speed 2. What MuJoCo derives (the way, and in rewards where
the fingers are) lags one time step behind the rest.
Action [9], -1 to 1: speeds of the servos' targets, 7.5 rad/s and for fingers 0.75 m/s.

    reward = 2 (1 / (1 + d^2))^2, twice within 2 cm            d: the way's length
             + 0.5 (how far the hand points into the drawer, and its fingers stand one over another)
             + 0.25 around + 7.5 open (1 + around)              around: 0.5 with the handle between
             + 5 (8 cm - the fingers' heights from the handle), where it is between them
             - 0.01 |action|^2
             + 0.5, around, 2 around where it is open by 1, 20, 39 cm
    or -1 where a finger is more than 4 cm beyond the handle

An episode ends when the drawer is open by 39 cm. A finger is where its frame is, at its root.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from .arrays import rotate
from .robots import RobotOptions
from .task import Array, Fields, Task

POSE = (1.157, -1.066, -0.155, -2.239, -1.841, 1.003, 0.469, 0.035, 0.035)  # rad, m: at the start
STIFFNESS = (400.0,) * 7 + (4000.0,) * 2  # N m/rad, N/m
DAMPING = (80.0,) * 7 + (100.0,) * 2
FORCE = (87.0,) * 4 + (12.0,) * 3 + (200.0,) * 2  # at most
SPEED_SCALE = (1.0,) * 7 + (0.1,) * 2  # of targets
TIME_STEP_S = 1 / 240
GRASP = (0.0, 0.04, 0.1654)  # m, in the frame of link 7
HANDLE = (0.3, 0.01, 0.0)  # in the drawer's
OPEN_M, BEYOND_M = 0.39, 0.04
_SERVOS = len(POSE)


@dataclass(frozen=True, kw_only=True)
class FrankaCabinetOptions(RobotOptions):
    xml_file: str = str(Path(__file__).with_name("franka_cabinet.xml"))
    frame_skip: int = 4
    action_scale: float = 7.5  # rad/s
    dof_velocity_scale: float = 0.1
    dist_reward_scale: float = 2.0
    rot_reward_scale: float = 0.5
    around_handle_reward_scale: float = 0.25
    open_reward_scale: float = 7.5
    finger_dist_reward_scale: float = 5.0
    action_penalty_scale: float = 0.01
    reset_dof_pos_noise: float = 0.125  # rad, and m of fingers, which stay in their range

    def compile(self, path: Path) -> mujoco.MjModel:
        """Adds servos whose targets are activations, in seconds at full speed from the pose."""
        spec = mujoco.MjSpec.from_file(str(path))
        spec.option.timestep = TIME_STEP_S
        for k, joint in enumerate(spec.joints[:_SERVOS]):
            scale = self.action_scale * SPEED_SCALE[k]
            spec.add_actuator(
                name=joint.name,
                trntype=mujoco.mjtTrn.mjTRN_JOINT,
                target=joint.name,
                dyntype=mujoco.mjtDyn.mjDYN_INTEGRATOR,
                gaintype=mujoco.mjtGain.mjGAIN_FIXED,
                biastype=mujoco.mjtBias.mjBIAS_AFFINE,
                gainprm=_padded(STIFFNESS[k] * scale),
                biasprm=_padded(STIFFNESS[k] * POSE[k], -STIFFNESS[k], -DAMPING[k]),
                ctrllimited=True,
                ctrlrange=[-1, 1],
                actlimited=True,
                actrange=(np.array(joint.range) - POSE[k]) / scale,
                forcelimited=True,
                forcerange=[-FORCE[k], FORCE[k]],
            )
        return spec.compile()


class FrankaCabinet(Task[FrankaCabinetOptions]):
    """Has nothing to remember: targets are activations."""

    max_episode_steps = 500
    Options = FrankaCabinetOptions
    observation_size = 23

    def prepare(self) -> None:
        model, xp = self.model, self.xp
        low, high = model.jnt_range[:_SERVOS].T
        self._pose, self._low, self._high = map(xp.constant, (np.array(POSE), low, high))
        self._scale = xp.constant(self.options.action_scale * np.array(SPEED_SCALE))
        self._grasp, self._handle = map(xp.constant, (np.array(GRASP), np.array(HANDLE)))
        self._forward, self._up = xp.constant(np.eye(3)[2]), xp.constant(np.eye(3)[1])
        names = ("link7", "left_finger", "right_finger", "drawer")
        self._bodies = xp.rows([model.body(name).id for name in names])

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        return super().views(data) | {"xpos": data.xpos, "xquat": data.xquat}

    def _places(self, f: Fields) -> tuple[Array, Array, Array, Array, Array]:
        """Returns the grasp points of hand and drawer, both fingers [N, 3], and the turn [N, 4]."""
        xp, bodies = self.xp, self.model.nbody
        positions = xp.take(f["xpos"].reshape(-1, bodies, 3), self._bodies)
        turns = xp.take(f["xquat"].reshape(-1, bodies, 4), self._bodies)
        grasp = positions[:, 0] + rotate(xp, turns[:, 0], self._grasp + 0 * positions[:, 0])
        return grasp, positions[:, 3] + self._handle, positions[:, 1], positions[:, 2], turns[:, 1]

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        o, xp, qpos, qvel = self.options, self.xp, f["qpos"], f["qvel"]
        grasp, handle, *_ = self._places(f)
        parts = [
            2 * (qpos[:, :_SERVOS] - self._low) / (self._high - self._low) - 1,
            o.dof_velocity_scale * qvel[:, :_SERVOS],
            handle - grasp,
            qpos[:, _SERVOS:],
            qvel[:, _SERVOS:],
        ]
        xp.write_columns(out, [xp.clip(xp.join(parts), -o.clip_observation, o.clip_observation)])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o, xp = self.options, self.xp
        grasp, handle, left, right, turn = self._places(f)
        far = xp.square_sum(handle - grasp)
        near = (1 / (1 + far)) ** 2 * (1 + 1.0 * (far <= 0.02**2))
        into = -rotate(xp, turn, self._forward + 0 * grasp)[:, 0]
        upright = rotate(xp, turn, self._up + 0 * grasp)[:, 2]
        pointing = 0.5 * (into * abs(into) + upright * abs(upright))
        over, under = left[:, 2] - handle[:, 2], handle[:, 2] - right[:, 2]
        between = 1.0 * ((over > 0) & (under > 0))
        around, opened = 0.5 * between, f["qpos"][:, _SERVOS]
        reward = o.dist_reward_scale * near + o.rot_reward_scale * pointing
        reward = reward + o.around_handle_reward_scale * around
        reward = reward + o.open_reward_scale * opened * (1 + around)
        reward = reward + o.finger_dist_reward_scale * (0.08 - over - under) * between
        reward = reward - o.action_penalty_scale * xp.square_sum(xp.clip(action, -1, 1))
        reward = reward + 0.5 * (opened > 0.01) + around * (opened > 0.2)
        reward = reward + 2 * around * (opened > OPEN_M)
        edge = handle[:, 0] - BEYOND_M
        beyond = (left[:, 0] < edge) | (right[:, 0] < edge)
        done: NDArray[np.bool_] = opened > OPEN_M
        return reward * ~beyond - 1.0 * beyond, done

    def first_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        draws = rng.uniform(low=-1, high=1, size=_SERVOS)
        arm = self._pose + self.options.reset_dof_pos_noise * draws
        qpos = self.xp.join([self.xp.clip(arm, self._low, self._high), 0 * draws[..., :1]])
        return qpos, 0 * qpos

    def first_activation(self, qpos: Array) -> Array:
        targets: Array = (qpos[..., :_SERVOS] - self._pose) / self._scale
        return targets


def _padded(*numbers: float) -> list[float]:
    return [*numbers, *[0.0] * (10 - len(numbers))]
