"""Messages as frames: a pickle, and beside it the memory of arrays and tensors, uncopied.

Tensors go as plain memory, CUDA tensors by way of the CPU.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gmi_drl.comm.errors import MessageError
from gmi_drl.runtime.wire.pickling import dump

_ALIGN: Final = 16
_IN_BAND_BYTES: Final = 4096  # smaller buffers are cheaper inside the pickle than as frames

Frame = bytes | memoryview


def encode(value: Any, what: str) -> list[Frame]:
    """`value` in frames, which share its memory; MessageError, naming `what`, if that cannot be."""
    try:
        payload, beside = dump(value, _IN_BAND_BYTES)
        return [payload, *beside.buffers]
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
