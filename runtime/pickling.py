"""Pickle with large memory beside it, and cloudpickle for what cannot be imported elsewhere."""

from __future__ import annotations

import functools
import io
import pickle
import sys
from typing import Any, Final, TypeVar

_IN_BAND_BYTES: Final = 4096  # smaller buffers are cheaper inside the pickle

P = TypeVar("P", bound="BufferPickler")


class BufferPickler(pickle.Pickler):
    """Plain pickle, which is fast, with large buffers (protocol 5) beside it.

    A subclass says in `reducer_override` how else to take things apart, and in `prepare` what it
    collects meanwhile.
    """

    buffers: list[memoryview]

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._out_of_band)
        self.prepare()

    def prepare(self) -> None:
        """Begin with nothing collected."""
        self.buffers = []

    def reducer_override(self, obj: Any) -> Any:
        return NotImplemented

    def _out_of_band(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_BAND_BYTES:
            return True
        self.buffers.append(raw)
        return False


def dump(value: Any, plain: type[P]) -> tuple[P, memoryview]:
    """The pickle of `value` and the pickler that holds what lies beside it.

    What the other side cannot import goes by value. Raises whatever a __reduce__ raises.
    """
    try:
        pickler, payload = _dump(value, plain)
        again = needs_value(payload)
    except Exception:  # a lambda, a local class
        again = True
    if again:
        pickler, payload = _dump(value, _by_value(plain))  # type: ignore[arg-type]
    return pickler, payload


def needs_value(data: bytes | bytearray | memoryview) -> bool:
    """Whether a plain pickle refers to what only this process has.

    The script's classes are in `__main__`, which is another module on the other side; and a module
    may have been registered with cloudpickle.
    """
    loaded = sys.modules.get("cloudpickle")
    return b"__main__" in bytes(data) or bool(loaded and loaded.list_registry_pickle_by_value())


def _dump(value: Any, pickler_class: type[P]) -> tuple[P, memoryview]:
    file = io.BytesIO()
    pickler = pickler_class(file)
    pickler.dump(value)
    return pickler, file.getbuffer()


@functools.cache
def _by_value(plain: Any) -> Any:
    """The pickler class for functions and classes that cannot be imported, of the plain one.

    The plain reducer is asked first; it leaves functions and classes to cloudpickle's.
    """
    import cloudpickle  # type: ignore[import-untyped]

    class ByValue(plain, cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO) -> None:
            cloudpickle.Pickler.__init__(self, file, protocol=5, buffer_callback=self._out_of_band)
            self.prepare()

        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented:
                reduced = cloudpickle.Pickler.reducer_override(self, obj)
            return reduced

    return ByValue
