"""Lists the tasks that run on a device and their options, without importing torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gmi_drl.roles.envs.adapters import WARP_IDS
from gmi_drl.roles.envs.mujoco.task import PhysicsTaskOptions, Task
from gmi_drl.roles.envs.mujoco.tasks import TASKS

from .ball_balance import BallBalanceTask


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(PhysicsTaskOptions):
    """Holds the options that every adapter on the device has."""

    adapter: ClassVar[str]

    def faults(self, where: str) -> list[str]:
        faults = super().faults(where)
        if self.on_unstable == "raise":
            faults.append(
                f"{where}: on_unstable='raise'; must be terminate with adapter {self.adapter}, "
                "which counts unstable steps on the device and never waits for it. Leave it out, "
                "or use adapter: mujoco."
            )
        return faults


@dataclass(frozen=True, kw_only=True)
class WarpOptions(DeviceOptions):
    """Adds to a task's options."""

    adapter: ClassVar[str] = "warp"
    capture: bool = True  # the step as CUDA graphs; false launches every kernel from Python
    nconmax: int | None = None  # contacts per environment, on average; None: see warp/capacity.py
    njmax: int | None = None  # constraint rows of one environment, at most
    solver_iterations: int | None = None  # at most, in a physics step; None: the model's

    def faults(self, where: str) -> list[str]:
        faults = super().faults(where)
        faults += [
            f"{where}: {name}={value}; must be at least 1. Leave it out to take it from the model."
            for name in ("nconmax", "njmax", "solver_iterations")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        return faults


@dataclass(frozen=True, kw_only=True)
class MjxOptions(DeviceOptions):
    """Adds nothing to a task's options."""

    adapter: ClassVar[str] = "mjx"


_TASKS: Mapping[str, type[Task[Any]]] = {**TASKS, "BallBalance-v0": BallBalanceTask}
DEVICE_TASKS = {env_id: _TASKS[env_id] for env_id in WARP_IDS}


def _options_with(added: type[DeviceOptions]) -> Mapping[str, type[Any]]:
    """Returns a dataclass by id, which joins the task's options with an adapter's, `added`."""
    return {
        env_id: dataclasses.make_dataclass(
            task.Options.__name__, [], bases=(task.Options, added), frozen=True, kw_only=True
        )
        for env_id, task in DEVICE_TASKS.items()
    }


WARP_OPTIONS = _options_with(WarpOptions)
MJX_OPTIONS = _options_with(MjxOptions)
