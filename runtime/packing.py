"""Values as bytes: plain pickle when that will do, cloudpickle for what cannot be imported.

Large buffers (protocol 5) and the descriptors of Memfds stay beside the pickle.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from .errors import SerializationError
from .memfd import Memfd
from .pickling import BufferPickler, dump, needs_value

MAX_FDS: Final = 253  # in one message: SCM_MAX_FD

Part = bytes | bytearray | memoryview

_unpickling = threading.local()


class Packed:
    """A pickled value: the pickle, its out-of-band buffers, and the Memfds it mentions."""

    __slots__ = ("buffers", "memfds", "payload")

    def __init__(
        self,
        payload: Part,
        buffers: Sequence[memoryview] = (),
        memfds: Sequence[Memfd] = (),
    ) -> None:
        self.payload = payload
        self.buffers = buffers
        self.memfds = memfds


class _Pickler(BufferPickler):
    """Puts Memfds beside the pickle too."""

    def prepare(self) -> None:
        super().prepare()
        self.memfds: list[Memfd] = []

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Memfd:
            self.memfds.append(obj)
            return _received_memfd, (len(self.memfds) - 1, obj.name)
        return NotImplemented


def _received_memfd(index: int, name: str) -> Memfd:
    take_fd: Callable[[int], int] | None = getattr(_unpickling, "take_fd", None)
    if take_fd is None:
        raise TypeError("a Memfd can only be unpickled from an actor call")
    return Memfd(take_fd(index), name)


def pack(value: Any, what: str = "the value") -> Packed:
    """`value` as it goes on the wire; `what` names it when it cannot be pickled."""
    try:
        pickler, payload = dump(value, _Pickler)
    except Exception as error:  # whatever a __reduce__ raises
        raise _unpicklable(what, error) from error
    if len(pickler.memfds) > MAX_FDS:
        raise SerializationError(
            f"{what} holds {len(pickler.memfds)} Memfds; one call carries at most {MAX_FDS}. "
            "Send them in several calls."
        )
    return Packed(payload, pickler.buffers, pickler.memfds)


def pack_plain(value: Any, what: str = "the value") -> bytes:
    """`value` as one pickle with everything in it."""
    try:
        try:
            data = pickle.dumps(value, protocol=5)
            again = needs_value(data)
        except Exception:
            again = True
        if again:
            import cloudpickle  # type: ignore[import-untyped]

            data = cloudpickle.dumps(value, protocol=5)
    except Exception as error:  # whatever a __reduce__ raises
        raise _unpicklable(what, error) from error
    return data


def pack_exception(error: BaseException) -> bytes:
    """An exception such that `unpack` will succeed; empty when not even its class can travel.

    Many exceptions cannot be unpickled, because their constructor wants other arguments than they
    keep. Those go as class, arguments and attributes, without what cannot be pickled.
    """
    with contextlib.suppress(SerializationError):
        data = pack_plain(error)
        unpack(data)
        return data
    state = {}
    for name, value in vars(error).items():
        with contextlib.suppress(SerializationError):
            pack_plain(value)
            state[name] = value
    with contextlib.suppress(SerializationError):
        data = pack_plain((type(error), error.args, state))
        return data if unpack_exception(data) is not None else b""
    return b""


def unpack_exception(data: bytes) -> BaseException | None:
    """What `pack_exception` packed; None when its class cannot be had in this process."""
    try:
        value = unpack(data) if data else None
        if isinstance(value, tuple):
            cls, args, state = value
            value = cls.__new__(cls, *args)
            value.args = args
            value.__dict__.update(state)
    except Exception:  # an import that fails here; a __new__ with wishes of its own
        return None
    return value if isinstance(value, BaseException) else None


def unpack(
    data: Part,
    what: str = "the value",
    buffers: Sequence[Part] = (),
    take_fd: Callable[[int], int] | None = None,
) -> Any:
    """The value again; `what` names it when it cannot be rebuilt here.

    `take_fd` gives the descriptor of the Memfd with a number, which then owns it.
    """
    _unpickling.take_fd, outer = take_fd, getattr(_unpickling, "take_fd", None)
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:  # whatever an import or a __setstate__ raises
        raise SerializationError(
            f"{what} cannot be rebuilt in this process: {type(error).__name__}: {error}"
        ) from error
    finally:
        _unpickling.take_fd = outer


def _unpicklable(what: str, error: Exception) -> SerializationError:
    return SerializationError(
        f"{what} cannot be pickled: {type(error).__name__}: {error}. "
        "Send plain data, arrays, or objects of importable classes."
    )
