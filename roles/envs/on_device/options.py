"""Options that every adapter on the device has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gmi_drl.roles.envs.mujoco.task import TaskOptions


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(TaskOptions):
    adapter: ClassVar[str]

    def faults(self, where: str) -> list[str]:
        found = super().faults(where)
        if self.on_unstable == "raise":
            found.append(
                f"{where}: on_unstable='raise'; must be terminate with adapter {self.adapter}, "
                "which counts unstable steps on the device and never waits for it. Leave it out, "
                "or use adapter: mujoco."
            )
        return found
