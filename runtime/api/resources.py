"""Tells what resources there are, which are free, and what the code that runs here holds."""

from __future__ import annotations

from .call_context import context, in_call
from .refs import running


def cluster_resources() -> dict[str, float]:
    """Returns all that calls can ask for, on all devices together."""
    total, _ = running().request("resources")
    return dict(total)


def available_resources() -> dict[str, float]:
    """Returns what of it nobody holds just now, without resources of which nothing is left."""
    _, free = running().request("resources")
    return dict(free)


def get_gpu_ids() -> list[int | str]:
    """Returns the GPUs that the calling task or actor holds, as CUDA_VISIBLE_DEVICES names them.

    The runtime does not set that variable; who has a part of a GPU may share it with others.
    """
    return list(context().gpu_ids)


def get_runtime_context() -> RuntimeContext:
    """Returns what a task or actor can know of itself under Ray's names, as `context()` has it."""
    return RuntimeContext()


class RuntimeContext:
    """Tells where this code runs. Ids are hexadecimal; None where there is no task or actor."""

    def get_task_id(self) -> str | None:
        return context().task_id.hex() if in_call() else None

    def get_task_name(self) -> str:
        return context().name

    def get_actor_id(self) -> str | None:
        return context().actor_id.hex() or None

    def get_actor_name(self) -> str:
        return context().actor_name

    def get_assigned_resources(self) -> dict[str, float]:
        """Returns what this task, or this method's actor, holds; nothing in the driver."""
        return dict(context().resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        return {"GPU": [str(id) for id in context().gpu_ids]}

    @property
    def was_current_actor_reconstructed(self) -> bool:
        return context().restarts > 0

    @property
    def namespace(self) -> str:
        return running().namespace
