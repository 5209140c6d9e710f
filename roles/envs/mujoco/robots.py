"""Finds the robots of the package mujoco-mjx, and changes their models as all tasks need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mujoco  # type: ignore[import-untyped]

from gmi_drl.placement.faults import install

from .task import PhysicsTaskOptions

# Found without importing the package, which imports JAX.
MODELS = Path(mujoco.__file__).parent / "mjx/test_data"


@dataclass(frozen=True, kw_only=True)
class RobotOptions(PhysicsTaskOptions):
    """Holds the options of a task whose robot is read from mujoco-mjx."""

    clip_observation: float = 5.0  # larger numbers are cut off, as are actions beyond 1

    def faults(self, where: str) -> list[str]:
        faults = super().faults(where)
        if Path(self.xml_file).is_relative_to(MODELS) and not Path(self.xml_file).is_file():
            faults.append(
                f"{where} needs the package mujoco-mjx, in which the robot's model is, and which "
                f"is not installed. {install('mjx')}."
            )
        if not self.clip_observation > 0:
            faults.append(
                f"{where}: clip_observation={self.clip_observation}; must be above 0. "
                "Leave it out for 5."
            )
        return faults


def scale_servo(actuator: mujoco.MjsActuator, middle: float, reach: float) -> None:
    """Makes a position servo's control a number from -1 to 1: its target is middle + reach * it."""
    stiffness = actuator.gainprm[0]
    actuator.gainprm[0] = stiffness * reach
    actuator.biasprm[0] = stiffness * middle
    actuator.ctrlrange = [-1, 1]


def solve_to_convergence(spec: mujoco.MjSpec) -> None:
    """Gives the solver iterations enough to converge, which it mostly does in two.

    The models are made for one, after which two simulators need not agree.
    """
    spec.option.iterations, spec.option.ls_iterations = 20, 20


def remove_visual_geoms(spec: mujoco.MjSpec) -> None:
    """Removes geoms that collide with nothing, and their meshes; the models name every mass."""
    for geom in list(spec.geoms):
        if not geom.contype and not geom.conaffinity:
            spec.delete(geom)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
