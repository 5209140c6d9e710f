"""Knows where code runs: in which task of which process, and how many calls it has made."""

from __future__ import annotations

import contextvars
import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from gmi_drl.runtime import ids


@dataclass(frozen=True, slots=True)
class Context:
    """Holds what a task or method can know of itself; in the driver, most of it is empty."""

    task_id: bytes
    name: str = "driver"
    attempt: int = 0  # how often it was begun before
    actor_id: bytes = b""
    actor_name: str = ""
    restarts: int = 0  # of the actor's process
    device: int = 0  # the group of cores, or GPU, that it runs on
    replayed: bool = False  # run again after a crash, to rebuild the actor; its answer is known
    resources: Mapping[str, float] = field(default_factory=dict)  # what the call, or actor, holds
    gpu_ids: tuple[int | str, ...] = ()
    cancelled: bool = False  # it was interrupted; what it calls from here on is not cancelled
    calls: itertools.count[int] = field(default_factory=lambda: itertools.count(), repr=False)


_current: contextvars.ContextVar[Context] = contextvars.ContextVar("gmi_drl_context")
_driver: Context | None = None


def context() -> Context:
    """Returns the context of the code that runs here."""
    global _driver
    here = _current.get(None) or _driver
    if here is None:
        here = _driver = Context(ids.root())
    return here


def in_call() -> bool:
    """Returns whether this code runs in a task or a method."""
    return _current.get(None) is not None


def enter(new: Context) -> None:
    """Makes this thread, or asyncio task, run a call from here on."""
    _current.set(new)


def mark_cancelled() -> None:
    """Notes that the call which this thread, or asyncio task, runs is being interrupted."""
    here = _current.get(None)
    if here is not None:
        _current.set(dataclasses.replace(here, cancelled=True))


def set_default(new: Context | None) -> None:
    """Sets the context of threads that run no call; None: a driver's, with an id of its own."""
    global _driver
    _driver = new
