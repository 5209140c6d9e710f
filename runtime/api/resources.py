"""What there is, what of it is free, and what the code that runs here holds."""

from __future__ import annotations

from .call_context import context, in_call
from .session import running


def cluster_resources() -> dict[str, float]:
    """All that calls can ask for, on all devices together."""
    total, _ = running().request("resources")
    return dict(total)


def available_resources() -> dict[str, float]:
    """What of it nobody holds just now; a resource of which nothing is left is not in it."""
    _, free = running().request("resources")
    return dict(free)


def get_gpu_ids() -> list[int | str]:
    """The GPUs that the task or actor which asks holds, as CUDA_VISIBLE_DEVICES names them.

    That variable is not set by the runtime, and nothing keeps a call from using other GPUs. Two
    that have parts of a GPU may have parts of the same.
    """
    return list(context().gpu_ids)


def get_runtime_context() -> RuntimeContext:
    """What a task or actor can know of itself, under Ray's names; `context()` has it as data."""
    return RuntimeContext()


class RuntimeContext:
    """Where this code runs. Ids are hexadecimal; None where there is no task or actor."""

    def get_task_id(self) -> str | None:
        return context().task_id.hex() if in_call() else None

    def get_task_name(self) -> str:
        return context().name

    def get_actor_id(self) -> str | None:
        return context().actor_id.hex() or None

    def get_actor_name(self) -> str:
        return context().actor_name

    def get_assigned_resources(self) -> dict[str, float]:
        """What this task, or the actor whose method this is, holds; nothing in the driver."""
        return dict(context().resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        return {"GPU": [str(id) for id in context().gpu_ids]}

    @property
    def was_current_actor_reconstructed(self) -> bool:
        return context().restarts > 0

    @property
    def namespace(self) -> str:
        return running().namespace
