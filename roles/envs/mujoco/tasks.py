"""Lists the tasks by their ids: Gymnasium's, and three of our own."""

from __future__ import annotations

from typing import Any

from .barkour import Barkour
from .franka_cabinet import FrankaCabinet
from .planar import HalfCheetah, Hopper, Swimmer, Walker2d
from .shadow_hand import ShadowHand
from .small import InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher
from .spatial import Ant, Humanoid, HumanoidStandup
from .task import Task

_GYMNASIUMS: tuple[type[Task[Any]], ...] = (
    Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, InvertedDoublePendulum, InvertedPendulum,
    Pusher, Reacher, Swimmer, Walker2d,
)  # fmt: skip
TASKS: dict[str, type[Task[Any]]] = {f"{task.__name__}-v5": task for task in _GYMNASIUMS}
TASKS |= {
    "Barkour-v0": Barkour, "FrankaCabinet-v0": FrankaCabinet, "ShadowHand-v0": ShadowHand,
}  # fmt: skip
OPTIONS = {env_id: task.Options for env_id, task in TASKS.items()}
