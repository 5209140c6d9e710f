"""Barkour, FrankaCabinet and ShadowHand written a second time: one environment, over MjData.

Turns by MuJoCo's mju_ functions, velocities by mj_objectVelocity, contact forces out of the list of
contacts. Constants are IsaacGymEnvs' (cfg/task/Anymal.yaml, FrankaCabinet.yaml, ShadowHand.yaml),
but for what docs/gpu-simulation.md says.
"""

import mujoco
import numpy as np

XBODY = mujoco.mjtObj.mjOBJ_XBODY


def turned(vector, quat):
    out = np.zeros(3)
    mujoco.mju_rotVecQuat(out, vector, quat)
    return out


def inverse(quat):
    out = np.zeros(4)
    mujoco.mju_negQuat(out, quat)
    return out


def product(a, b):
    out = np.zeros(4)
    mujoco.mju_mulQuat(out, a, b)
    return out


class Reference:
    """`stream` is the environment's generator; draws come in the same order from it."""

    def __init__(self, model, stream, frame_skip):
        self.model, self.data = model, mujoco.MjData(model)
        self.stream, self.frame_skip, self.elapsed = stream, frame_skip, 0

    def begin(self, qpos, qvel):
        """A new episode; from the state of the batch, once that is seen to be the same."""
        mujoco.mj_resetData(self.model, self.data)
        ours = self.first_state()
        np.testing.assert_allclose(qpos, ours[0], rtol=0, atol=1e-14)
        np.testing.assert_allclose(qvel, ours[1], rtol=0, atol=1e-14)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        self.draw()
        mujoco.mj_forward(self.model, self.data)
        self.elapsed = 0

    def step(self, action, limit):
        self.data.ctrl[:] = action
        for _ in range(self.frame_skip):
            mujoco.mj_step(self.model, self.data)
        mujoco.mj_rnePostConstraint(self.model, self.data)
        self.elapsed += 1
        reward, terminated = self.judge(np.clip(action, -1, 1))
        return reward, terminated, self.elapsed >= limit


class BarkourReference(Reference):
    standing = np.array([0, 0.5, 1.0] * 4)

    def first_state(self):
        angles = self.standing * self.stream.uniform(0.5, 1.5, 12)
        speeds = self.stream.uniform(-0.1, 0.1, 12)
        return np.r_[0, 0, 0.28, 1, 0, 0, 0, angles], np.r_[np.zeros(6), speeds]

    def draw(self):
        self.command = self.stream.uniform(-1, 1, 3) * [1, 0.5, 1]

    def velocity(self):
        return turned(self.data.qvel[:3], inverse(self.data.qpos[3:7]))

    def judge(self, action):
        d = self.data
        x, y, _ = self.velocity()
        error = (self.command[0] - x) ** 2 + (self.command[1] - y) ** 2
        spin = (self.command[2] - d.qvel[5]) ** 2
        reward = np.exp(-error / 0.25) + 0.5 * np.exp(-spin / 0.25)
        reward -= 2.5e-5 * sum(torque**2 for torque in d.qfrc_actuator[6:])
        ends = [
            d.qpos[:3] + turned([0.06 + i * 0.205, j * 0.105, 0.06 + k * 0.06], d.qpos[3:7])
            for i in (-1, 1)
            for j in (-1, 1)
            for k in (-1, 1)
        ]
        knees = [d.body(b).xpos[2] for b in range(self.model.nbody) if self.is_shin(b)]
        assert len(knees) == 4
        touches = min(end[2] for end in ends) < 0 or min(knees) < 0.03
        return 0.02 * max(0, reward), touches

    def is_shin(self, body):
        return self.model.body(body).name.startswith("lower_leg")

    def observe(self):
        d = self.data
        seen = np.r_[
            2 * self.velocity(),
            d.qvel[3:6] / 4,
            turned([0, 0, -1], inverse(d.qpos[3:7])),
            self.command * [2, 2, 0.25],
            d.qpos[7:] - self.standing,
            d.qvel[6:] * 0.05,
            np.clip(d.ctrl, -1, 1),
        ]
        return np.clip(seen, -5, 5)


class ShadowHandReference(Reference):
    goal_position = np.array([0.32, 0, 0.06])
    tolerance, fallen = 0.1, 0.24

    def turn(self):
        q, r, out = np.zeros(4), np.zeros(4), self.stream.uniform(-1, 1, 2) * np.pi
        mujoco.mju_axisAngle2Quat(q, [1, 0, 0], out[0])
        mujoco.mju_axisAngle2Quat(r, [0, 1, 0], out[1])
        return product(q, r)

    def first_state(self):
        low, high = self.model.jnt_range[:24].T
        joints, speeds, place = (self.stream.uniform(-1, 1, n) for n in (24, 24, 3))
        assert len(speeds) == 24  # by default joints start at rest
        hand = 0.2 * (low + (high - low) * (joints + 1) / 2)
        cube = np.array([0.32, 0, 0.1]) + 0.01 * place
        return np.r_[hand, cube, self.turn()], np.zeros(30)

    def draw(self):
        self.goal = self.turn()

    def difference(self):
        return product(self.data.qpos[27:31], inverse(self.goal))

    def judge(self, action):
        distance = np.linalg.norm(self.data.qpos[24:27] - self.goal_position)
        turn = np.zeros(3)
        mujoco.mju_quat2Vel(turn, self.difference(), 1)
        angle = np.linalg.norm(turn)
        reward = -10 * distance + 1 / (angle + 0.1) - 2e-4 * sum(a**2 for a in action)
        if angle <= self.tolerance:
            reward += 250
            self.draw()
        return reward, distance >= self.fallen

    def tips(self):
        """States and forces of the fingertips."""
        m, d = self.model, self.data
        states, forces = [], []
        for finger in ("ff", "mf", "rf", "lf", "th"):
            body = m.body(f"rh_{finger}distal").id
            velocity, force, torque = np.zeros(6), np.zeros(3), np.zeros(3)
            mujoco.mj_objectVelocity(m, d, XBODY, body, velocity, 0)
            states += [d.xpos[body], d.xquat[body], velocity[3:], velocity[:3]]
            for i in range(d.ncon):
                contact, felt = d.contact[i], np.zeros(6)
                mujoco.mj_contactForce(m, d, i, felt)
                push = contact.frame.reshape(3, 3).T @ felt[:3]
                bodies = m.geom_bodyid[list(contact.geom)]
                sign = int(bodies[1] == body) - int(bodies[0] == body)
                force += sign * push
                torque += sign * np.cross(contact.pos - d.xpos[body], push)
            forces += [force, torque]
        return np.concatenate(states), np.concatenate(forces)

    def observe(self):
        m, d = self.model, self.data
        low, high = m.jnt_range[:24].T
        states, forces = self.tips()
        seen = np.r_[
            (2 * d.qpos[:24] - low - high) / (high - low),
            d.qvel[:24] / 5,
            10 * d.qfrc_actuator[:24],
            d.qpos[24:],
            d.qvel[24:27],
            turned(d.qvel[27:], d.qpos[27:31]) / 5,
            self.goal_position,
            self.goal,
            self.difference(),
            states,
            10 * forces,
            np.clip(d.ctrl, -1, 1),
        ]
        return np.clip(seen, -5, 5)


class FrankaCabinetReference(Reference):
    pose = np.array([1.157, -1.066, -0.155, -2.239, -1.841, 1.003, 0.469, 0.035, 0.035])
    speed = np.array([7.5] * 7 + [0.75] * 2)

    def first_state(self):
        low, high = self.model.jnt_range[:9].T
        arm = np.clip(self.pose + 0.125 * self.stream.uniform(-1, 1, 9), low, high)
        return np.r_[arm, 0], np.zeros(10)

    def draw(self):
        self.targets = self.data.qpos[:9].copy()
        self.data.act[:] = (self.targets - self.pose) / self.speed

    def places(self):
        d = self.data
        hand = d.body("link7")
        grasp = hand.xpos + turned([0, 0.04, 0.107 + 0.0584], hand.xquat)
        return grasp, d.body("drawer").xpos + np.array([0.3, 0.01, 0])

    def judge(self, action):
        d, (grasp, handle) = self.data, self.places()
        low, high = self.model.jnt_range[:9].T
        self.targets = np.clip(self.targets + self.speed / 60 * action, low, high)
        np.testing.assert_allclose(d.act * self.speed + self.pose, self.targets, atol=1e-9)
        left, right = d.body("left_finger"), d.body("right_finger")
        opened = d.qpos[9]
        distance = np.linalg.norm(handle - grasp)
        near = (1 / (1 + distance**2)) ** 2
        reward = 2 * (2 * near if distance <= 0.02 else near)
        for axis, wanted in (([0, 0, 1], [-1, 0, 0]), ([0, 1, 0], [0, 0, 1])):
            along = turned(axis, left.xquat) @ wanted
            reward += 0.5 * 0.5 * np.sign(along) * along**2
        around = 0.0
        if left.xpos[2] > handle[2] > right.xpos[2]:
            around = 0.5
            heights = abs(left.xpos[2] - handle[2]), abs(right.xpos[2] - handle[2])
            reward += 5 * (0.04 - heights[0] + 0.04 - heights[1])
        reward += (
            0.25 * around + 7.5 * (opened * around + opened) - 0.01 * sum(action.astype(float) ** 2)
        )
        if opened > 0.01:
            reward += 0.5
        if opened > 0.2:
            reward += around
        if opened > 0.39:
            reward += 2 * around
        if min(left.xpos[0], right.xpos[0]) < handle[0] - 0.04:
            reward = -1
        return reward, opened > 0.39

    def observe(self):
        d, (grasp, handle) = self.data, self.places()
        low, high = self.model.jnt_range[:9].T
        scaled = 2 * (d.qpos[:9] - low) / (high - low) - 1
        seen = np.r_[scaled, 0.1 * d.qvel[:9], handle - grasp, d.qpos[9], d.qvel[9]]
        return np.clip(seen, -5, 5)
