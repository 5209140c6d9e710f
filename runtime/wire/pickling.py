"""Pickles with the memory of arrays and tensors out of band, and by cloudpickle what needs it.

Tensors go as plain memory (CUDA tensors are copied to the CPU and arrive there), without the rest
of the storage that they are a view of, and without the graph they were computed by.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
import threading
from typing import Any


class OutOfBand:
    """Keeps the buffers beside a pickle, and which of them are the memory of tensors."""

    __slots__ = ("_in_band_bytes", "_tensors", "buffers")

    def __init__(self, in_band_bytes: int = 0) -> None:
        self._in_band_bytes = in_band_bytes  # smaller buffers stay inside the pickle
        self._tensors: list[Any] = []
        self.buffers: list[memoryview] = []

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Keeps a buffer beside the pickle; True leaves it inside."""
        raw = buffer.raw()
        if raw.nbytes < self._in_band_bytes:
            return True
        self.buffers.append(raw)
        return False

    def is_tensor(self, buffer: memoryview) -> bool:
        """Returns whether this is a tensor's memory, which torch cannot take read-only."""
        return any(buffer.obj is memory for memory in self._tensors)

    def reduce_tensor(self, tensor: Any) -> Any:
        """Takes a tensor apart; NotImplemented if torch must do it."""
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized:
            return NotImplemented
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        memory = flat.contiguous().view(torch.uint8).numpy()
        self._tensors.append(memory)
        wants_grad = tensor.is_leaf and tensor.requires_grad
        return _tensor, (pickle.PickleBuffer(memory), tensor.dtype, tuple(tensor.shape), wants_grad)


class _PicklingState(threading.local):
    beside: OutOfBand | None = None  # of the value that is being pickled


_local = _PicklingState()


def dump(value: Any, in_band_bytes: int = 0) -> tuple[memoryview, OutOfBand]:
    """Returns the pickle of `value` and its buffers; raises whatever a __reduce__ raises."""
    outer = _local.beside
    try:
        beside = _local.beside = OutOfBand(in_band_bytes)
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5, buffer_callback=beside.take)
        pickler.dispatch_table = _dispatch_table()
        try:
            pickler.dump(value)
            if not needs_value(payload := file.getbuffer()):
                return payload, beside
        except Exception:  # a lambda, a local class
            pass
        beside = _local.beside = OutOfBand(in_band_bytes)
        file = io.BytesIO()
        _by_value()(file, beside).dump(value)
        return file.getbuffer(), beside
    finally:
        _local.beside = outer  # else what was packed last would stay in memory


def needs_value(data: bytes | bytearray | memoryview) -> bool:
    """Returns whether a plain pickle refers to what only this process has.

    The script's classes are in `__main__`, which is another module on the other side; and a module
    may have been registered with cloudpickle.
    """
    loaded = sys.modules.get("cloudpickle")
    return b"__main__" in bytes(data) or bool(loaded and loaded.list_registry_pickle_by_value())


_table: dict[type, Any] = {}
_table_size = -1


def _dispatch_table() -> dict[type, Any]:
    """copyreg's reducers and ours, as the plain dict that the C pickler is quickest with."""
    global _table, _table_size
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # not there yet while torch is being imported
    size = len(copyreg.dispatch_table) + (tensor is not None)
    if size != _table_size:
        _table = dict(copyreg.dispatch_table)
        if tensor is not None:
            _table[tensor] = _reduce_tensor
        _table_size = size
    return _table


def _reduce_tensor(tensor: Any) -> Any:
    beside = _local.beside
    assert beside is not None
    reduced = beside.reduce_tensor(tensor)
    return tensor.__reduce_ex__(5) if reduced is NotImplemented else reduced


def _tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], wants_grad: bool) -> Any:
    import torch

    memory = memoryview(buffer)
    if not memory.nbytes:
        return torch.empty(shape, dtype=dtype, requires_grad=wants_grad)
    if memory.readonly:  # it came inside the pickle
        memory = memoryview(bytearray(memory))
    return torch.frombuffer(memory, dtype=dtype).view(shape).requires_grad_(wants_grad)


@functools.cache
def _by_value() -> Any:
    """Returns the pickler for functions and classes that cannot be imported."""
    import cloudpickle  # type: ignore[import-untyped]

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, beside: OutOfBand) -> None:
            super().__init__(file, protocol=5, buffer_callback=beside.take)
            self._beside = beside

        def reducer_override(self, obj: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is not None and type(obj) is torch.Tensor:
                reduced = self._beside.reduce_tensor(obj)
                if reduced is not NotImplemented:
                    return reduced
            return super().reducer_override(obj)

    return ByValue
