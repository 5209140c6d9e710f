"""Runs tasks and actors of the runtime on a Ray cluster, of one host or of many."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import RayEngine


def start(address: str, *, trusted: bool, namespace: str, capacity: Mapping[str, Any]) -> RayEngine:
    """Joins a cluster, or starts one of this `capacity`; returns the driver's runtime on it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from . import nodes
    from .engine import RayEngine
    from .keeper import KEEPER, Keeper

    nodes.join(address, trusted=trusted, capacity=capacity)
    try:
        node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        keeper = ray.remote(Keeper).options(
            name=KEEPER, num_cpus=0, max_concurrency=1000, scheduling_strategy=node
        )
        return RayEngine(namespace, keeper.remote(sys.path))
    except BaseException:
        nodes.leave()
        raise
