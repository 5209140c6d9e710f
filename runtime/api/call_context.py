"""Provides the context of running code: its task, process and resources."""

from __future__ import annotations

import contextvars
import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from gmi_drl.runtime import ids

from .refs import running


@dataclass(frozen=True, slots=True)
class Context:
    """Holds what a task or method can know of itself; most fields are empty in the driver."""

    task_id: bytes
    name: str = "driver"
    attempt: int = 0  # how often it was started before
    actor_id: bytes = b""
    actor_name: str = ""
    restarts: int = 0  # of the actor's process
    device: int = 0  # the group of cores, or GPU, that it runs on
    replayed: bool = False  # run again after a crash, to rebuild the actor; its answer is known
    resources: Mapping[str, float] = field(default_factory=dict)  # of the call, or the actor
    gpu_ids: tuple[int | str, ...] = ()
    cancelled: bool = False  # it was interrupted; its later calls are not cancelled with it
    calls: itertools.count[int] = field(default_factory=lambda: itertools.count(), repr=False)


_current: contextvars.ContextVar[Context] = contextvars.ContextVar("gmi_drl_context")
_driver: Context | None = None


def context() -> Context:
    """Returns the context of the code that runs here."""
    global _driver
    current = _current.get(None) or _driver
    if current is None:
        current = _driver = Context(ids.root())
    return current


def enter(new: Context) -> None:
    """Sets the context of this thread, or asyncio task, to a call."""
    _current.set(new)


def mark_cancelled() -> None:
    """Notes that the call of this thread, or asyncio task, is being interrupted."""
    current = _current.get(None)
    if current is not None:
        _current.set(dataclasses.replace(current, cancelled=True))


def set_default(new: Context | None) -> None:
    """Sets the context of threads that run no call; None: a driver's, with an id of its own."""
    global _driver
    _driver = new


# What users can ask, under Ray's names.


def cluster_resources() -> dict[str, float]:
    """Returns the total resources that calls can ask for, on all devices together."""
    total, _ = running().request("resources")
    return dict(total)


def available_resources() -> dict[str, float]:
    """Returns the resources that are free now, without those of which nothing is left."""
    _, free = running().request("resources")
    return dict(free)


def get_gpu_ids() -> list[int | str]:
    """Returns the GPUs that the calling task or actor holds, as CUDA_VISIBLE_DEVICES names them.

    The runtime does not set that variable. A GPU held in part may be shared with others.
    """
    return list(context().gpu_ids)


def get_runtime_context() -> RuntimeContext:
    """Returns the `context()` of a task or actor under Ray's names."""
    return RuntimeContext()


class RuntimeContext:
    """Tells where this code runs. Ids are hexadecimal; None where there is no task or actor."""

    def get_task_id(self) -> str | None:
        return context().task_id.hex() if _current.get(None) is not None else None

    def get_task_name(self) -> str:
        return context().name

    def get_actor_id(self) -> str | None:
        return context().actor_id.hex() or None

    def get_actor_name(self) -> str:
        return context().actor_name

    def get_assigned_resources(self) -> dict[str, float]:
        """Returns the resources of this task, or of this method's actor; nothing in the driver."""
        return dict(context().resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        return {"GPU": [str(id) for id in context().gpu_ids]}

    @property
    def was_current_actor_reconstructed(self) -> bool:
        return context().restarts > 0

    @property
    def namespace(self) -> str:
        return running().namespace
