"""Lists the options of every id, without importing torch or warp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gmi_drl.roles.envs.on_device.tasks import DeviceOptions, options_with


@dataclass(frozen=True, kw_only=True)
class WarpOptions(DeviceOptions):
    """Adds to a task's options."""

    adapter: ClassVar[str] = "warp"
    capture: bool = True  # the step as CUDA graphs; false launches every kernel from Python
    nconmax: int | None = None  # contacts per environment, on average; None: see capacity.py
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


OPTIONS = options_with(WarpOptions)
