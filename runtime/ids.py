"""Ids, derived from what is called with what: a program that is run again makes the same ones.

A task's id is a hash of who calls (the caller's task), the how-manieth call of its that is, what is
called and the pickled arguments. The id of its i-th result is the task's with i behind it. So when
a lost task is run again, what it submits is recognised, and what of that is still there is used.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import Final

TASK_BYTES: Final = 16
_INDEX: Final = struct.Struct("<I")
OBJECT_BYTES: Final = TASK_BYTES + _INDEX.size

_FIRST: Final = _INDEX.pack(0)
_blake2b: Final = hashlib.blake2b


def root() -> bytes:
    """The id of a driver's own code, which is no task: a new one each time."""
    return os.urandom(TASK_BYTES)


def task(parent: bytes, index: int, function: bytes, arguments: bytes) -> bytes:
    """The id of the `index`-th call that `parent` makes: of `function` with these arguments."""
    return _blake2b(
        b"%b%d.%b%b" % (parent, index, function, arguments), digest_size=TASK_BYTES
    ).digest()


def function(body: bytes) -> bytes:
    """The id of a function or class, from its pickle."""
    return _blake2b(body, digest_size=TASK_BYTES).digest()


def result(task: bytes, index: int = 0) -> bytes:
    """The id of the `index`-th result of a task."""
    return task + (_INDEX.pack(index) if index else _FIRST)


def arguments(task: bytes) -> bytes:
    """The id under which a task's arguments lie in the object store, when they are large."""
    return task + b"\xff\xff\xff\xff"


def producer(object_id: bytes) -> bytes:
    """The id of the task a result comes from."""
    return object_id[:TASK_BYTES]


def index(object_id: bytes) -> int:
    """Which result of its task this is."""
    found: int = _INDEX.unpack_from(object_id, TASK_BYTES)[0]
    return found
