"""The tasks by their Gymnasium ids."""

from __future__ import annotations

from typing import Any

from .planar import HalfCheetah, Hopper, Swimmer, Walker2d
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
}
