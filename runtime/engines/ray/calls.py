"""Describes what travels over Ray: calls, packed values, and what a call has raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

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
    body: Any = None  # Ray's reference of the function
    chosen: Any = None  # of a function: (max_retries, retry_exceptions); of a method: what differs
    inputs: tuple[Any, ...] = ()  # Ray's references of its inputs, where they must be known later


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
    body = packed.body
    return (body if len(body) < _OUT_OF_BAND else np.frombuffer(body, np.uint8)), mentions


def part_of(value: Value) -> packing.Part:
    """Returns the bytes of a value; those of a large one are not copied."""
    body = value[0]
    return body if isinstance(body, bytes) else memoryview(body)
