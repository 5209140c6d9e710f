"""Steps BallBalance-v0 with MuJoCo's physics: `torch_envs`' task on `ball_balance.xml`.

Observation [24], in the same places: leg extensions 3, their speeds 3, ball position 3 (from where
it rests on the level table) and velocity 3, leg forces 3 (N, the servos'; without the legs'
damping), table slope along x, y and height 3, their rates 3, leg targets 3. What MuJoCo derives
(extensions, their speeds, forces) lags one time step behind the rest.

Action: speeds of the three leg targets, m/s. Reward and end as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from gmi_drl.roles.envs.mujoco.task import Array, Fields, PhysicsTaskOptions, Task

TABLE_RADIUS = 0.5  # m
FALLEN = -0.2  # m: a ball lower than any table can be
_BALL = slice(3, 6)  # of qpos and of qvel; before it lift, roll and pitch of the table


@dataclass(frozen=True, kw_only=True)
class BallBalanceTaskOptions(PhysicsTaskOptions):
    xml_file: str = str(Path(__file__).with_name("ball_balance.xml"))
    frame_skip: int = 2
    start_m: float = 0.2  # the ball starts as far from the centre as this, along x and along y
    start_speed_m_per_s: float = 0.35  # along each of them, at most


class BallBalanceTask(Task[BallBalanceTaskOptions]):
    """Pays 1 / (1 + distance from the centre) * 1 / (1 + speed)."""

    max_episode_steps = 500
    Options = BallBalanceTaskOptions
    observation_size = 24

    def prepare(self) -> None:
        model, options, xp = self.model, self.options, self.xp
        position, push = np.zeros(model.nq), np.zeros(model.nv)
        position[3:5], push[3:5] = options.start_m, options.start_speed_m_per_s
        self._place, self._push = xp.constant(position), xp.constant(push)
        self._rest = xp.constant(model.qpos0[_BALL].copy())

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        names = ("qpos", "qvel", "act", "ten_length", "ten_velocity", "actuator_force")
        return {name: getattr(data, name) for name in names}

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        qpos, qvel = f["qpos"], f["qvel"]
        ball = [qpos[:, _BALL] - self._rest, qvel[:, _BALL]]
        table = [column for q in (qpos, qvel) for column in (-q[:, 2:3], q[:, 1:2], q[:, :1])]
        parts = [f["ten_length"], f["ten_velocity"], *ball, f["actuator_force"], *table, f["act"]]
        self.xp.write_columns(out, parts)

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        distance = self.xp.square_sum(f["qpos"][:, 3:5]) ** 0.5
        speed = self.xp.square_sum(f["qvel"][:, 3:5]) ** 0.5
        lost: NDArray[np.bool_] = (distance > TABLE_RADIUS) | (f["qpos"][:, 5] < FALLEN)
        return 1 / (1 + distance) / (1 + speed), lost

    def first_state(self, rng: np.random.Generator) -> tuple[Array, Array]:
        qpos = self.init_qpos + self._place * rng.uniform(low=-1, high=1, size=self.model.nq)
        qvel = self.init_qvel + self._push * rng.uniform(low=-1, high=1, size=self.model.nv)
        return qpos, qvel
