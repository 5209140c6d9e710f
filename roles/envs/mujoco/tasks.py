"""Lists the tasks by their ids: Gymnasium's, and two of our own."""

from __future__ import annotations

from typing import Any

from .barkour import Barkour
from .planar import HalfCheetah, Hopper, Swimmer, Walker2d
from .shadow_hand import ShadowHand
from .small import InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher
from .spatial import Ant, Humanoid, HumanoidStandup
from .task import Task

TASKS: dict[str, type[Task[Any]]] = {
    "Ant-v5": Ant,
    "HalfCheetah-v5": HalfCheetah,
    "Hopper-v5": Hopper,
    "Humanoid-v5": Humanoid,
    "HumanoidStandup-v5": HumanoidStandup,
    "InvertedDoublePendulum-v5": InvertedDoublePendulum,
    "InvertedPendulum-v5": InvertedPendulum,
    "Pusher-v5": Pusher,
    "Reacher-v5": Reacher,
    "Swimmer-v5": Swimmer,
    "Walker2d-v5": Walker2d,
    "Barkour-v0": Barkour,
    "ShadowHand-v0": ShadowHand,
}
OPTIONS = {env_id: task.Options for env_id, task in TASKS.items()}
