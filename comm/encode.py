"""Messages as frames: a pickle, and beside it the memory of arrays and tensors, uncopied.

Tensors go as plain memory (CUDA tensors are copied to the CPU and arrive there), without the rest
of the storage that they are a view of, and without their gradient graph.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gmi_drl.runtime.pickling import BufferPickler, dump

from .errors import MessageError

_ALIGN: Final = 16

Frame = bytes | memoryview


class _Pickler(BufferPickler):
    """Takes tensors apart into plain memory."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.layout == torch.strided and not obj.is_quantized:
            flat = obj.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            raw: Any = flat.contiguous().view(torch.uint8).numpy()
            return _tensor, (pickle.PickleBuffer(raw), obj.dtype, tuple(obj.shape))
        return NotImplemented


def encode(value: Any, what: str) -> list[Frame]:
    """`value` in frames, which share its memory; MessageError, naming `what`, if that cannot be."""
    try:
        pickler, payload = dump(value, _Pickler)
        return [payload, *pickler.buffers]
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
