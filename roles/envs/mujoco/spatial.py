"""Defines Ant, Humanoid, HumanoidStandup, bodies in space that observe contact forces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from .task import Array, Fields, PhysicsTaskOptions, Task

_INF = float("inf")


@dataclass(frozen=True, kw_only=True)
class AntOptions(PhysicsTaskOptions):
    xml_file: str = "ant.xml"
    frame_skip: int = 5
    forward_reward_weight: float = 1
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_reward: float = 1.0
    main_body: int | str = 1
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (0.2, 1.0)
    contact_force_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


class Ant(Task[AntOptions]):
    """Pays w_f * x velocity of the main body + bonus while healthy - costs.

    costs = w_c * |action|^2 + w_k * |clipped contact forces|^2
    """

    Options = AntOptions
    velocity_noise = "normal"

    def prepare(self) -> None:
        model, options = self.model, self.options
        self.skipped = 2 if options.exclude_current_positions_from_observation else 0
        self.body = model.body(options.main_body).id
        self.rne_post = options.include_cfrc_ext_in_observation or bool(options.contact_cost_weight)
        self.observation_size = model.nq + model.nv - self.skipped
        if options.include_cfrc_ext_in_observation:
            self.observation_size += 6 * (model.nbody - 1)

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        views = {"qpos": data.qpos, "qvel": data.qvel, "xy": data.xpos[..., self.body, :2]}
        if self.rne_post:
            views["cfrc_ext"] = data.cfrc_ext
        return views

    def position(self, f: Fields) -> Array:
        # xpos, not qpos: it lags one time step, as Gymnasium's does.
        xy: Array = self.xp.copy(f["xy"])
        return xy

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        parts = [f["qpos"][:, self.skipped :], f["qvel"]]
        if self.options.include_cfrc_ext_in_observation:
            parts.append(self.xp.clip(f["cfrc_ext"][:, 6:], *self.options.contact_force_range))
        self.xp.write_columns(out, parts)

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o = self.options
        z = f["qpos"][:, 2]
        healthy = (o.healthy_z_range[0] <= z) & (z <= o.healthy_z_range[1])
        healthy &= self.xp.isfinite(f["qpos"]).all(1)
        healthy &= self.xp.isfinite(f["qvel"]).all(1)
        x_velocity = (f["xy"][:, 0] - before[:, 0]) / self.dt
        cost = o.ctrl_cost_weight * self.xp.square_sum(action)
        if self.rne_post:
            forces = self.xp.clip(f["cfrc_ext"], *o.contact_force_range)
            cost += o.contact_cost_weight * self.xp.square_sum(forces)
        reward = x_velocity * o.forward_reward_weight + healthy * o.healthy_reward - cost
        return reward, ~healthy if o.terminate_when_unhealthy else self.xp.none(f["qpos"])


@dataclass(frozen=True, kw_only=True)
class _HumanoidObservation(PhysicsTaskOptions):
    frame_skip: int = 5
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 1e-2
    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


@dataclass(frozen=True, kw_only=True)
class HumanoidOptions(_HumanoidObservation):
    xml_file: str = "humanoid.xml"
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    contact_cost_range: tuple[float, float] = (-_INF, 10.0)
    healthy_reward: float = 5.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class HumanoidStandupOptions(_HumanoidObservation):
    xml_file: str = "humanoidstandup.xml"
    uph_cost_weight: float = 1  # Gymnasium takes it and never uses it
    impact_cost_weight: float = 0.5e-6
    impact_cost_range: tuple[float, float] = (-_INF, 10.0)


class _HumanoidTask(Task[Any]):
    rne_post = True

    # Field of MjData -> columns left out of the observation: the world body's, the root joint's.
    _OPTIONAL = {"cinert": 10, "cvel": 6, "qfrc_actuator": 6, "cfrc_ext": 6}  # noqa: RUF012

    def prepare(self) -> None:
        model, options = self.model, self.options
        self.skipped = 2 if options.exclude_current_positions_from_observation else 0
        self.observed = {
            name: skip
            for name, skip in self._OPTIONAL.items()
            if getattr(options, f"include_{name}_in_observation")
        }
        data = mujoco.MjData(model)
        self.observation_size = model.nq + model.nv - self.skipped
        for name, skip in self.observed.items():
            self.observation_size += getattr(data, name).size - skip

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        views = {"qpos": data.qpos, "qvel": data.qvel, "cfrc_ext": data.cfrc_ext}
        return views | {name: getattr(data, name) for name in self.observed}

    def observe(self, f: Fields, out: NDArray[Any]) -> None:
        observed = (f[name][:, skip:] for name, skip in self.observed.items())
        self.xp.write_columns(out, [f["qpos"][:, self.skipped :], f["qvel"], *observed])


class Humanoid(_HumanoidTask):
    """Pays w_f * x velocity of the centre of mass + bonus while healthy - costs.

    costs = w_c * |action|^2 + clip(w_k * |contact forces|^2)
    """

    Options = HumanoidOptions

    def prepare(self) -> None:
        super().prepare()
        self.mass = self.xp.constant(self.model.body_mass)

    def views(self, data: mujoco.MjData) -> dict[str, Array]:
        return super().views(data) | {"xipos": data.xipos}

    def position(self, f: Fields) -> Array:
        xipos = f["xipos"].reshape(-1, self.model.nbody, 3)
        centre = self.xp.weighted_sum(self.mass, xipos) / self.mass.sum()
        xy: Array = self.xp.copy(centre[:, :2])
        return xy

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o = self.options
        z = f["qpos"][:, 2]
        healthy = (o.healthy_z_range[0] < z) & (z < o.healthy_z_range[1])
        x_velocity = (self.position(f)[:, 0] - before[:, 0]) / self.dt
        contact = o.contact_cost_weight * self.xp.square_sum(f["cfrc_ext"])
        contact = self.xp.clip(contact, *o.contact_cost_range)
        cost = o.ctrl_cost_weight * self.xp.square_sum(action) + contact
        reward = o.forward_reward_weight * x_velocity + healthy * o.healthy_reward - cost
        return reward, ~healthy if o.terminate_when_unhealthy else self.xp.none(f["qpos"])


class HumanoidStandup(_HumanoidTask):
    """Pays height / time step - w_c * |action|^2 - clip(w_i * |contact forces|^2) + 1."""

    Options = HumanoidStandupOptions

    def evaluate(self, f: Fields, before: Array, action: Array) -> tuple[Array, NDArray[np.bool_]]:
        o = self.options
        up = f["qpos"][:, 2] / self.model.opt.timestep
        impact = o.impact_cost_weight * self.xp.square_sum(f["cfrc_ext"])
        impact = self.xp.clip(impact, *o.impact_cost_range)
        reward = up - o.ctrl_cost_weight * self.xp.square_sum(action) - impact + 1
        return reward, self.xp.none(f["qpos"])
