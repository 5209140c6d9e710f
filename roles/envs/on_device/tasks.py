"""Lists the tasks that run on a device and their options, without importing torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from gmi_drl.roles.envs.mujoco.barkour import Barkour
from gmi_drl.roles.envs.mujoco.planar import HalfCheetah
from gmi_drl.roles.envs.mujoco.shadow_hand import ShadowHand
from gmi_drl.roles.envs.mujoco.spatial import Ant, Humanoid
from gmi_drl.roles.envs.mujoco.task import Task, TaskOptions

from .ball_balance import BallBalanceTask


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(TaskOptions):
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


class DeviceTask(NamedTuple):
    task: type[Task[Any]]
    max_episode_steps: int


DEVICE_TASKS: Mapping[str, DeviceTask] = {
    "Ant-v5": DeviceTask(Ant, 1000),
    "BallBalance-v0": DeviceTask(BallBalanceTask, 500),
    "Barkour-v0": DeviceTask(Barkour, Barkour.max_episode_steps),
    "HalfCheetah-v5": DeviceTask(HalfCheetah, 1000),
    "Humanoid-v5": DeviceTask(Humanoid, 1000),
    "ShadowHand-v0": DeviceTask(ShadowHand, ShadowHand.max_episode_steps),
}


def options_with(added: type[DeviceOptions]) -> Mapping[str, type[Any]]:
    """Returns a dataclass by id, of the options of the task and those of an adapter, `added`."""
    return {
        env_id: dataclasses.make_dataclass(
            entry.task.Options.__name__,
            [],
            bases=(entry.task.Options, added),
            frozen=True,
            kw_only=True,
        )
        for env_id, entry in DEVICE_TASKS.items()
    }
