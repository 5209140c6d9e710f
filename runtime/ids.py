"""Derives ids from callers and arguments, so that a repeated program makes the same ones.

A task's id is a hash of the caller's task, the number of the call among the caller's, what is
called and the pickled arguments. So when a lost task is run again, its calls are recognised, and
their results are used if they still exist.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import Final

TASK_BYTES: Final = 16
_INDEX: Final = struct.Struct("<I")

_FIRST: Final = _INDEX.pack(0)
_blake2b: Final = hashlib.blake2b


def root() -> bytes:
    """Returns a new id for code that runs in no task, such as a driver's."""
    return os.urandom(TASK_BYTES)


def task(parent: bytes, index: int, function: bytes, arguments: bytes) -> bytes:
    """Returns the id of the `index`-th call that `parent` makes."""
    return _blake2b(
        b"%b%d.%b%b" % (parent, index, function, arguments), digest_size=TASK_BYTES
    ).digest()


def function(body: bytes) -> bytes:
    """Returns the id of a function or class, from its pickle."""
    return _blake2b(body, digest_size=TASK_BYTES).digest()


def result(task: bytes, index: int = 0) -> bytes:
    """Returns the id of the `index`-th result of a task."""
    return task + (_INDEX.pack(index) if index else _FIRST)


def arguments(task: bytes) -> bytes:
    """Returns the id under which a task's large arguments lie in the object store."""
    return task + b"\xff\xff\xff\xff"


def producer(object_id: bytes) -> bytes:
    """Returns the id of the task that makes a result."""
    return object_id[:TASK_BYTES]


def index(object_id: bytes) -> int:
    """Returns the index of a result among those of its task."""
    return int(_INDEX.unpack_from(object_id, TASK_BYTES)[0])
