"""Steps ShadowHand-v0: a hand turns a cube to a given orientation, as in Isaac Gym's task.

Observation [211], in Isaac Gym's order: joint angles scaled to -1..1 24, speeds / 5 24 and servo
torques x 10 24; the cube's position 3, orientation 4, linear velocity 3 and angular / 5 3; the
goal's position 3 and orientation 4; the turn from goal to cube 4; of every fingertip position 3,
orientation 4, linear 3 and angular velocity 3, as they are; then of every fingertip contact force 3
and torque 3 about it, x 10; the last action 20. Vectors are along the world's axes, quaternions
have w first.
Action [20], -1 to 1: servo targets over their range; the two outer joints of a finger have one.

    reward = w_d |cube - goal| + w_r / (angle + eps) + w_a |action|^2
             + bonus where the angle is within the tolerance + penalty where the cube fell

An episode ends when the cube is `fall_distance` from its goal; where the goal is reached, a new one
is drawn.

The model is mujoco-mjx's hand and a cube over its palm. A finger's two outer joints (J1, J2) are
pulled together by one tendon with one servo, as in the real hand. Bodies do not weigh (Isaac Gym's
task switches their gravity off). Collision meshes become the capsules that MuJoCo fits to them: a
GPU finds the contacts of a capsule many times faster, and makes less room for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from .arrays import about_y_then_x, conjugate, multiply, rotate
from .robots import MODELS, RobotOptions, remove_visual_geoms, scale_servo, solve_to_convergence
from .task import Array, Fields, Task

HAND_JOINTS = 24
COUPLED = ("FF", "MF", "RF", "LF")
CUBE_HALF_M, CUBE_MASS_KG = 0.0325, 0.1
CUBE_START = (0.32, 0.0, 0.1)  # m, of its centre: over the palm, and the fingers wherever they are
GOAL = (0.32, 0.0, 0.06)  # 4 cm below, as in Isaac Gym: about where the cube lies
TIME_STEP_S = 1 / 240
TIPS = ("ff", "mf", "rf", "lf", "th")
SPEED, FORCE = 0.2, 10.0  # what observations are multiplied by
_CUBE_POSITION, _CUBE_TURN = slice(24, 27), slice(27, 31)  # of qpos
_CUBE_LINEAR, _CUBE_ANGULAR = slice(24, 27), slice(27, 30)  # of qvel


@dataclass(frozen=True, kw_only=True)
class ShadowHandOptions(RobotOptions):
    xml_file: str = str(MODELS / "shadow_hand/right_hand.xml")
    frame_skip: int = 4
    dist_reward_scale: float = -10.0
    rot_reward_scale: float = 1.0
    rot_eps: float = 0.1  # rad
    action_penalty_scale: float = -2e-4
    success_tolerance: float = 0.1  # rad
    reach_goal_bonus: float = 250.0
    fall_distance: float = 0.24  # m
    fall_penalty: float = 0.0
    reset_position_noise: float = 0.01  # m
    reset_dof_pos_noise: float = 0.2  # of a joint's range
    reset_dof_vel_noise: float = 0.0  # rad/s

    def compile(self, path: Path) -> mujoco.MjModel:
        return build_hand(path)


class ShadowHand(Task[ShadowHandOptions]):
    """Remembers the goal's orientation [4]."""

    max_episode_steps = 600
    Options = ShadowHandOptions
    observation_size = 211
    memory_size = 4
    rne_post = True

    def prepare(self) -> None:
        model, xp = self.model, self.xp
        low, high = model.jnt_range[:HAND_JOINTS].T
        self._middle = xp.constant((low + high) / 2)
        self._reach = xp.constant((high - low) / 2)
        self._goal, self._start = xp.constant(np.array(GOAL)), xp.constant(np.array(CUBE_START))
        self._tips = xp.rows([model.body(f"rh_{tip}distal").id for tip in TIPS])
        self._hand = xp.rows([model.body("rh_forearm").id])  # root of all fingertips

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        names = ("qpos", "qvel", "ctrl", "qfrc_actuator", "xpos", "xquat", "cvel", "cfrc_ext")
        return {name: getattr(data, name) for name in (*names, "subtree_com")}

    def _turn(self, f: Fields) -> Array:
        """Returns the turn [N, 4] from the goal to the cube."""
        q: Array = multiply(self.xp, f["qpos"][:, _CUBE_TURN], conjugate(self.xp, f["memory"]))
        return q

    def _angle(self, f: Fields) -> Array:
        """Returns the angle [N] of `_turn`, rad."""
        sine = self.xp.square_sum(self._turn(f)[:, 1:]) ** 0.5
        angle: Array = 2 * self.xp.arcsin(self.xp.clip(sine, 0, 1))
        return angle

    def _fingertips(self, f: Fields) -> tuple[Array, Array]:
        """Returns states [N, 5 * 13] and contact forces and torques [N, 5 * 6]."""
        xp = self.xp
        n, bodies = len(f["qpos"]), self.model.nbody
        position, turn, velocity, force = (
            xp.take(f[name].reshape(n, bodies, -1), self._tips)
            for name in ("xpos", "xquat", "cvel", "cfrc_ext")
        )
        centre = xp.take(f["subtree_com"].reshape(n, bodies, -1), self._hand)
        # cvel and cfrc_ext: angular before linear, about the centre of mass of the whole hand.
        arm = position - centre
        angular = velocity[..., :3]
        linear = velocity[..., 3:] + xp.cross(angular, arm)
        torque = force[..., :3] - xp.cross(arm, force[..., 3:])
        states = xp.join([position, turn, linear, angular])
        return states.reshape(n, -1), xp.join([force[..., 3:], torque]).reshape(n, -1)

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        o, xp, qpos, qvel = self.options, self.xp, f["qpos"], f["qvel"]
        states, forces = self._fingertips(f)
        parts = [
            (qpos[:, :HAND_JOINTS] - self._middle) / self._reach,
            SPEED * qvel[:, :HAND_JOINTS],
            FORCE * f["qfrc_actuator"][:, :HAND_JOINTS],
            qpos[:, HAND_JOINTS:],
            qvel[:, _CUBE_LINEAR],
            SPEED * rotate(xp, qpos[:, _CUBE_TURN], qvel[:, _CUBE_ANGULAR]),
            self._goal + 0 * f["memory"][:, :3],
            f["memory"],
            self._turn(f),
            states,
            FORCE * forces,
            xp.clip(f["ctrl"], -1, 1),
        ]
        xp.write_columns(out, [xp.clip(xp.join(parts), -o.clip_observation, o.clip_observation)])

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o, xp = self.options, self.xp
        distance = xp.square_sum(f["qpos"][:, _CUBE_POSITION] - self._goal) ** 0.5
        angle = self._angle(f)
        fallen: NDArray[np.bool_] = distance >= o.fall_distance
        reward = o.dist_reward_scale * distance + o.rot_reward_scale / (angle + o.rot_eps)
        reward = reward + o.action_penalty_scale * xp.square_sum(xp.clip(action, -1, 1))
        reward = reward + o.reach_goal_bonus * (angle <= o.success_tolerance)
        return reward + o.fall_penalty * fallen, fallen

    def resample_mask(self, f: Fields) -> NDArray[np.bool_]:
        reached: NDArray[np.bool_] = self._angle(f) <= self.options.success_tolerance
        return reached

    def first_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draws the hand in a part of its range around 0, the cube anyhow above the palm."""
        o, xp = self.options, self.xp
        n = HAND_JOINTS
        draws = rng.uniform(low=-1, high=1, size=2 * n + 5)  # at once: on a GPU a draw is kernels
        joints, speeds, shift = draws[..., :n], draws[..., n : 2 * n], draws[..., 2 * n : 2 * n + 3]
        hand = o.reset_dof_pos_noise * (self._middle + self._reach * joints)
        position = self._start + o.reset_position_noise * shift
        qpos = xp.join([hand, position, self._orientation(draws[..., 2 * n + 3 :])])
        return qpos, xp.join([o.reset_dof_vel_noise * speeds, 0 * shift, 0 * shift])

    def sample_memory(self, rng: np.random.Generator) -> Array:
        return self._orientation(rng.uniform(low=-1, high=1, size=2))

    def _orientation(self, drawn: Array) -> Array:
        turns = math.pi * drawn
        q: Array = about_y_then_x(self.xp, turns[..., :1], turns[..., 1:])
        return q


def build_hand(path: Path) -> mujoco.MjModel:
    """Returns mujoco-mjx's hand with 20 servos, and a cube over its palm, compiled."""
    spec = mujoco.MjSpec.from_file(str(path))
    remove_visual_geoms(spec)
    for numeric in list(spec.numerics):
        spec.delete(numeric)  # how few contacts MJX is to keep
    for body in spec.bodies:
        body.gravcomp = 1
    for geom in spec.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
            geom.type = mujoco.mjtGeom.mjGEOM_CAPSULE
    for finger in COUPLED:
        _couple_outer_joints(spec, finger)
    for actuator in spec.actuators:
        low, high = actuator.ctrlrange
        scale_servo(actuator, (low + high) / 2, (high - low) / 2)
    cube = spec.worldbody.add_body(name="cube", pos=CUBE_START)
    cube.add_freejoint()
    cube.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[CUBE_HALF_M] * 3,
        mass=CUBE_MASS_KG,
        contype=7,  # meets every part of the hand, whose masks differ
        conaffinity=0,
        condim=3,
    )
    solve_to_convergence(spec)
    option = spec.option
    option.timestep = TIME_STEP_S
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    option.impratio = 1  # at the hand's own 10, where the solver stops early the cube bursts away
    model = spec.compile()
    assert model.nu == 20
    assert model.nq == HAND_JOINTS + 7
    return model


def _couple_outer_joints(spec: mujoco.MjSpec, finger: str) -> None:
    """Puts one servo on the sum of the two outer joints' angles."""
    tendon = spec.add_tendon(name=f"rh_{finger}J0")
    for joint in (f"rh_{finger}J2", f"rh_{finger}J1"):
        tendon.wrap_joint(joint, 1)
    servo, redundant = spec.actuator(f"rh_A_{finger}J2"), spec.actuator(f"rh_A_{finger}J1")
    servo.name = f"rh_A_{finger}J0"
    servo.trntype = mujoco.mjtTrn.mjTRN_TENDON
    servo.target = tendon.name
    spec.delete(redundant)
