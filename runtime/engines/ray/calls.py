"""Describes what travels over Ray: calls, packed values, and what a call has raised."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import ray

from gmi_drl.runtime.driver.task import TaskSpec
from gmi_drl.runtime.errors import NotOnThisEngine
from gmi_drl.runtime.wire import packing

from .keeper import Value

_OUT_OF_BAND: Final = 1 << 16  # bytes, from which on Ray need not copy a value to read it


class Raised(Exception):
    """Carries a call's packed exception through Ray, which also raises it in dependent calls."""

    def __init__(self, failure: bytes) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(frozen=True)
class Call:
    """One call of a function or a method."""

    id: bytes
    name: str
    namespace: str  # where names are looked for
    function: bytes | str  # the id of a function, or the name of a method
    arguments: bytes  # packed; empty if they are the first of the inputs
    arguments_stored: bool
    mentions: Mapping[bytes, Any]  # references and handles in the arguments and in the function
    returns: int
    chosen: Any = None  # of a method: the options that differ from its class's
    inputs: tuple[Any, ...] = ()  # Ray's references of its inputs, where they must be known later

    @classmethod
    def of(cls, task: TaskSpec, namespace: str, mentions: Mapping[bytes, Any]) -> Call:
        """Returns what travels of a call."""
        return cls(
            id=task.id, name=task.name, namespace=namespace, function=task.function,
            arguments=task.arguments, arguments_stored=bool(task.body_id), mentions=mentions,
            returns=task.returns,
        )  # fmt: skip


@dataclass(frozen=True)
class ActorBuild:
    """Tells an actor's process what it needs to build the actor."""

    id: bytes
    name: str
    cls: bytes
    setup: bytes
    cores: tuple[int, ...]
    num_threads: int
    log: str
    is_concurrent: bool
    is_restarted: bool  # after a crash
    checkpoint_every: int
    max_task_retries: int
    concurrency_groups: Mapping[str, int] = field(default_factory=dict)


def to_value(packed: packing.Packed, mentions: dict[bytes, Any]) -> Value:
    """Returns a packed value as it is passed to Ray: large ones as memory that it maps."""
    if packed.memfds:
        raise NotOnThisEngine(
            f"{packed.memfds[0]!r} travels within one host only. Send the array itself."
        )
    body = packed.body
    return (body if len(body) < _OUT_OF_BAND else np.frombuffer(body, np.uint8)), mentions


def part_of(value: Value) -> packing.Part:
    """Returns the bytes of a value; those of a large one are not copied."""
    body = value[0]
    return body if isinstance(body, bytes) else memoryview(body)


@functools.cache
def remote_of(function_or_class: Any) -> Any:
    """Returns what Ray calls it by; Ray sends it to the cluster once for each of these."""
    return ray.remote(function_or_class)
