"""Messages as frames: a pickle, and beside it the memory of arrays and tensors, uncopied.

Tensors go as plain memory (CUDA tensors are copied to the CPU and arrive there), without the rest
of the storage that they are a view of, and without their gradient graph.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from .errors import MessageError

_IN_BAND_BYTES: Final = 2048  # smaller memory is cheaper inside the pickle
_ALIGN: Final = 16

Frame = bytes | memoryview


class _Pickler(pickle.Pickler):
    """Plain pickle with large memory beside it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._beside)
        self.buffers: list[memoryview] = []

    def _beside(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_BAND_BYTES:
            return True
        self.buffers.append(raw)
        return False

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.layout == torch.strided and not obj.is_quantized:
            flat = obj.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            raw: Any = flat.contiguous().view(torch.uint8).numpy()
            return _tensor, (pickle.PickleBuffer(raw), obj.dtype, tuple(obj.shape))
        return NotImplemented


@functools.cache
def _by_value() -> type[_Pickler]:
    """The same for functions and classes that cannot be imported: cloudpickle, when needed."""
    import cloudpickle  # type: ignore[import-untyped]

    class ByValue(_Pickler, cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO) -> None:
            cloudpickle.Pickler.__init__(self, file, protocol=5, buffer_callback=self._beside)
            self.buffers = []

        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented:
                reduced = cloudpickle.Pickler.reducer_override(self, obj)
            return reduced

    return ByValue


def encode(value: Any, what: str) -> list[Frame]:
    """`value` in frames, which share its memory; MessageError, naming `what`, if that cannot be."""
    try:
        try:
            return _dump(_Pickler, value)
        except Exception:  # a lambda, a class of the main script
            return _dump(_by_value(), value)
    except Exception as error:  # whatever a __reduce__ raises
        raise MessageError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}. "
            "Send plain data, arrays, tensors, or objects of importable classes."
        ) from error


def decode(frames: Sequence[memoryview], what: str) -> Any:
    """The value; its arrays and tensors own the frames' memory, or a copy when it lies badly."""
    try:
        return pickle.loads(frames[0], buffers=[_writable(frame) for frame in frames[1:]])
    except Exception as error:  # whatever an import or a __setstate__ raises
        raise MessageError(
            f"{what} cannot be rebuilt here: {type(error).__name__}: {error}"
        ) from error


def _dump(pickler_class: type[_Pickler], value: Any) -> list[Frame]:
    file = io.BytesIO()
    pickler = pickler_class(file)
    pickler.dump(value)
    return [file.getvalue(), *pickler.buffers]


def _writable(frame: memoryview) -> memoryview:
    address = np.frombuffer(frame, np.uint8).ctypes.data
    if frame.readonly or address % _ALIGN:
        return memoryview(bytearray(frame))
    return frame


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    memory = memoryview(buffer)
    if not memory.nbytes:
        return torch.empty(shape, dtype=dtype)
    if memory.readonly:  # it was small and came inside the pickle
        memory = memoryview(bytearray(memory))
    return torch.frombuffer(memory, dtype=dtype).view(shape)
