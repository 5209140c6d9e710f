"""Which ids run here, and their options (this file imports neither torch nor warp)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gmi_drl.roles.envs.mujoco import planar, spatial
from gmi_drl.roles.envs.mujoco.task import TaskOptions

from .ball_balance import BallBalanceTaskOptions


@dataclass(frozen=True, kw_only=True)
class WarpOptions(TaskOptions):
    """What this adapter adds to a task's options."""

    capture: bool = True  # the step as CUDA graphs; false launches every kernel from Python
    nconmax: int | None = None  # contacts per environment, on average; None: see capacity.py
    njmax: int | None = None  # constraint rows of one environment, at most

    def faults(self, where: str) -> list[str]:
        found = super().faults(where)
        if self.on_unstable == "raise":
            found.append(
                f"{where}: on_unstable='raise'; must be terminate with adapter warp, which counts "
                "unstable steps on the device and never waits for it. Leave it out, or use "
                "adapter: mujoco."
            )
        found += [
            f"{where}: {name}={value}; must be at least 1. Leave it out to take it from the model."
            for name, value in (("nconmax", self.nconmax), ("njmax", self.njmax))
            if value is not None and value < 1
        ]
        return found


@dataclass(frozen=True, kw_only=True)
class AntOptions(spatial.AntOptions, WarpOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class HalfCheetahOptions(planar.HalfCheetahOptions, WarpOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class HumanoidOptions(spatial.HumanoidOptions, WarpOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class BallBalanceOptions(BallBalanceTaskOptions, WarpOptions):
    pass


OPTIONS: Mapping[str, type[Any]] = {
    "Ant-v5": AntOptions,
    "BallBalance-v0": BallBalanceOptions,
    "HalfCheetah-v5": HalfCheetahOptions,
    "Humanoid-v5": HumanoidOptions,
}
MAX_EPISODE_STEPS = {
    "Ant-v5": 1000,
    "BallBalance-v0": 500,
    "HalfCheetah-v5": 1000,
    "Humanoid-v5": 1000,
}
