"""The tasks that run on a device, by their ids (this file imports no torch)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from gmi_drl.roles.envs.mujoco.barkour import Barkour
from gmi_drl.roles.envs.mujoco.planar import HalfCheetah
from gmi_drl.roles.envs.mujoco.shadow_hand import ShadowHand
from gmi_drl.roles.envs.mujoco.spatial import Ant, Humanoid
from gmi_drl.roles.envs.mujoco.task import Task

from .ball_balance import BallBalance
from .options import DeviceOptions


class Entry(NamedTuple):
    task: type[Task[Any]]
    max_episode_steps: int


DEVICE_TASKS: Mapping[str, Entry] = {
    "Ant-v5": Entry(Ant, 1000),
    "BallBalance-v0": Entry(BallBalance, 500),
    "Barkour-v0": Entry(Barkour, Barkour.max_episode_steps),
    "HalfCheetah-v5": Entry(HalfCheetah, 1000),
    "Humanoid-v5": Entry(Humanoid, 1000),
    "ShadowHand-v0": Entry(ShadowHand, ShadowHand.max_episode_steps),
}


def options_with(added: type[DeviceOptions]) -> Mapping[str, type[Any]]:
    """The options of every task and, of an adapter, those that `added` has: a dataclass by id."""
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
