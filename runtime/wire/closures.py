"""Pickles functions and classes with the references and actor handles that they capture.

A function may use references and handles of its closure or its globals. They are kept alive by
whoever can call the function, and by each of its calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gmi_drl.runtime import ids
from gmi_drl.runtime.errors import SerializationError

from . import packing


class Code:
    """Holds a packed function or class, to be sent to other processes."""

    __slots__ = ("_captured", "_runtime", "body", "id", "refs")

    def __init__(self, body: bytes, packed: packing.Packed, runtime: Any) -> None:
        self.body = body
        self.id = ids.function(body)
        self.refs: Sequence[bytes] = packed.refs  # ids of what it captures
        self._captured = packed.mentioned  # keeps them alive
        self._runtime = weakref.ref(runtime)

    def is_for(self, runtime: Any) -> bool:
        """Returns whether it is for this runtime; another one does not know its references."""
        return self._runtime() is runtime


@dataclass(eq=False)
class FunctionWithRefs:
    """Calls a function that captures references; it is unpickled anew, so as to hold none."""

    body: bytes
    what: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return packing.unpack(self.body, self.what)(*args, **kwargs)


def pack_function(function: Any, what: str, runtime: Any) -> Code:
    """Packs a function; `what` names it when it cannot be pickled."""
    packed, body = _pack(function, what)
    if packed.refs:
        body = packing.pack_plain(FunctionWithRefs(body, what))
    return Code(body, packed, runtime)


def pack_class(cls: Any, what: str, runtime: Any) -> Code:
    """Packs a class; the actor's process keeps what the class captures."""
    packed, body = _pack(cls, what)
    return Code(body, packed, runtime)


def _pack(code: Any, what: str) -> tuple[packing.Packed, bytes]:
    packed = packing.Packed()
    with packing.noting(packed):
        body = packing.pack_plain(code, what)
    if packed.memfds:
        raise SerializationError(
            f"{what} captures {packed.memfds[0]!r}; a Memfd travels in the arguments of a call. "
            "Give it as an argument."
        )
    return packed, body
