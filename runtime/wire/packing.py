"""Turns values into bytes, by plain pickle if possible, by cloudpickle for what cannot be imported.

The memory of arrays and tensors stays beside the pickle (protocol 5): on the other side they are
views of the received bytes, read-only, since several readers may share these bytes.
A packed value is either a pickle alone (it begins with 0x80), or

    "BUFS"  number of buffers  bytes of the pickle  (length << 1 | tensor) of each  pickle  buffers

with each buffer at a multiple of 64 bytes. `pack` also notes the references, actor handles and
Memfds in a value, which only their runtime knows.

Tensors are sent as plain memory (CUDA tensors arrive on the CPU), without the rest of the storage
of which they are a view, and without their autograd graph.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import os
import pickle
import struct
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime.errors import ObjectStoreFullError, SerializationError

if TYPE_CHECKING:
    from gmi_drl.runtime.store.arena import Arena

MAX_FDS: Final = 253  # in one message: SCM_MAX_FD
_ALIGN: Final = 64
_MAGIC: Final = b"BUFS"
_TENSORS: Final = b"BUFT"  # the same, and some of the buffers are the memory of tensors
_HEAD: Final = struct.Struct("<4sIQ")
_PADDING: Final = bytes(_ALIGN)
_NO_FILE: Final = "<dynamic-code>"  # what cloudpickle calls the file of all code that it sends

Part = bytes | bytearray | memoryview


class _PackingState(threading.local):
    """Holds the context of pickling or unpickling in this thread."""

    packed: Packed | None = None
    beside: OutOfBand | None = None
    fds: Sequence[int] = ()
    inputs: Sequence[Any] = ()


_local = _PackingState()


class Packed:
    """Holds a packed value: its bytes in parts, and the references in it."""

    __slots__ = ("memfds", "mentioned", "nbytes", "parts", "refs")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.nbytes = 0
        self.refs: list[bytes] = []  # ids of the objects and actors it mentions
        self.mentioned: list[Any] = []  # the references and handles themselves
        self.memfds: list[Any] = []

    def mention(self, id: bytes, reference: Any) -> None:
        """Notes a reference, or a handle, in the value that is being packed."""
        self.refs.append(id)
        self.mentioned.append(reference)

    @property
    def body(self) -> bytes:
        """Returns all of it in one piece."""
        return b"".join(self.parts)


def packing() -> Packed | None:
    """Returns the value that `pack` is packing in this thread; None if other code is pickling."""
    return _local.packed


@contextlib.contextmanager
def noting(packed: Packed) -> Iterator[None]:
    """Notes in `packed` the references and handles of what is pickled inside the block."""
    outer, _local.packed = _local.packed, packed
    try:
        yield
    finally:
        _local.packed = outer


def pack(value: Any, what: str | Callable[[], str] = "the value") -> Packed:
    """Returns `value` as bytes; `what` names it when it cannot be pickled."""
    packed, outer = Packed(), _local.packed
    _local.packed = packed
    try:
        payload, out_of_band = dump(value)
    except Exception as error:  # whatever a __reduce__ raises
        raise _unpicklable(what, error) from error
    finally:
        _local.packed = outer
    if len(packed.memfds) > MAX_FDS:
        raise SerializationError(
            f"{what if isinstance(what, str) else what()} holds {len(packed.memfds)} Memfds; one "
            f"call carries at most {MAX_FDS}. Send them in several calls."
        )
    if not out_of_band.buffers:
        packed.parts, packed.nbytes = [payload], len(payload)
        return packed
    number = len(out_of_band.buffers)
    lengths = [raw.nbytes << 1 | out_of_band.is_tensor(raw) for raw in out_of_band.buffers]
    magic = _TENSORS if any(length & 1 for length in lengths) else _MAGIC
    head = _HEAD.pack(magic, number, len(payload)) + struct.pack(f"<{number}Q", *lengths)
    parts: list[Part] = [head, payload]
    total = len(head) + len(payload)
    for raw in out_of_band.buffers:
        if total % _ALIGN:
            parts.append(_PADDING[: -total % _ALIGN])
            total += -total % _ALIGN
        parts.append(raw)
        total += raw.nbytes
    packed.parts, packed.nbytes = parts, total
    return packed


def view(arena: Arena, place: tuple[int, int], released: Callable[[], None]) -> memoryview:
    """Returns a view of a packed value in the object store.

    A value with tensors gets private pages, as torch cannot take read-only memory.
    """
    offset, nbytes = place
    private = os.pread(arena.fd, len(_TENSORS), offset) == _TENSORS
    return arena.view(offset, nbytes, released, writable=private)


def write(arena: Arena, where: int | str, packed: Packed, what: str) -> None:
    """Copies a packed value to an offset in the store, or to a file; `what` names it."""
    try:
        if isinstance(where, int):
            arena.write(where, packed.parts)
            return
        with open(where, "wb") as file:
            file.writelines(packed.parts)
    except OSError as error:
        reason = (
            f", and the machine has no memory left for them ({error.strerror}), though "
            f"object_store_bytes={arena.nbytes:,} would allow them. Make it smaller: values go to "
            "disk earlier then."
        )
        if isinstance(where, str):
            reason = (
                ". What is in the object store's memory is all looked at, and on disk there is no "
                f"room either: {where}: {error.strerror}. Drop values, give "
                "init(object_store_bytes=...) more, or make room on the disk."
            )
        raise ObjectStoreFullError(f"{what} has {packed.nbytes:,} bytes{reason}") from error


def unpack(
    body: Part, what: str | Callable[[], str] = "the value", fds: Sequence[int] = (),
    inputs: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Unpacks a value, whose arrays are views of `body`; `what` names it in an error.

    `fds` are the descriptors of its Memfds, which are duplicated; `inputs` the values of
    references among the arguments of a call.
    """
    if not len(body):
        return None
    local = _local
    outer = local.fds, local.inputs
    local.fds, local.inputs = fds, inputs
    try:
        if body[0] == 0x80:
            return pickle.loads(body)
        view = memoryview(body)
        _, number, payload_bytes = _HEAD.unpack_from(view)
        start = _HEAD.size + 8 * number
        lengths = struct.unpack_from(f"<{number}Q", view, _HEAD.size)
        payload = view[start : start + payload_bytes]
        start += payload_bytes
        buffers = []
        for length in lengths:
            start += -start % _ALIGN
            raw = view[start : start + (length >> 1)]
            if not length & 1:
                raw = raw.toreadonly()
            elif raw.readonly:
                raw = memoryview(bytearray(raw))
            buffers.append(raw)
            start += length >> 1
        return pickle.loads(payload, buffers=buffers)
    except Exception as error:  # whatever an import or a __setstate__ raises
        remedy = ""
        if isinstance(error, ModuleNotFoundError):
            remedy = (
                ". A process looks for modules where your program did when it was started: set "
                "sys.path before init(), or call shutdown() and init()"
            )
        raise SerializationError(
            f"{what if isinstance(what, str) else what()} cannot be rebuilt in this process: "
            f"{type(error).__name__}: {error}{remedy}"
        ) from error
    finally:
        local.fds, local.inputs = outer


def pack_plain(value: Any, what: str = "the value") -> bytes:
    """Returns `value` as one pickle with everything in it."""
    try:
        try:
            data = pickle.dumps(value, protocol=5)
            by_value = needs_value(data)
        except Exception:
            by_value = True
        if by_value:
            file = io.BytesIO()
            _cloudpickle()(file).dump(value)
            data = file.getvalue()
    except Exception as error:  # whatever a __reduce__ raises
        raise _unpicklable(what, error) from error
    return data


def pack_exception(error: BaseException) -> bytes:
    """Packs an exception such that `unpack` will succeed; empty if not even its class can be sent.

    One whose constructor takes other arguments than `args` is packed as class, args, attributes.
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
    """Unpacks what `pack_exception` packed; None if its class is not available here."""
    try:
        value = unpack(data) if data else None
        if isinstance(value, tuple):
            cls, args, state = value
            value = cls.__new__(cls, *args)
            value.args = args
            value.__dict__.update(state)
    except Exception:  # a failing import, or a __new__ that needs other arguments
        return None
    return value if isinstance(value, BaseException) else None


@dataclass(eq=False, slots=True)
class Input:
    """Stands for a reference among the arguments of a call, where the callee gets its value."""

    index: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _input, (self.index,)


def _input(index: int) -> Any:
    return _local.inputs[index]


def received_fd(index: int) -> int:
    """Copies the descriptor that came as number `index` with the value being unpacked."""
    if index >= len(_local.fds):
        raise TypeError("a Memfd can only be unpickled from an actor call")
    return os.dup(_local.fds[index])


def _unpicklable(what: str | Callable[[], str], error: Exception) -> SerializationError:
    return SerializationError(
        f"{what if isinstance(what, str) else what()} cannot be pickled: "
        f"{type(error).__name__}: {error}. "
        "Send plain data, arrays, or objects of importable classes."
    )


# ---- pickles, with the memory of arrays and tensors out of band


class OutOfBand:
    """Collects the buffers beside a pickle, and which of them are the memory of tensors."""

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
        """Reduces a tensor to its memory; NotImplemented if torch must do it."""
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized:
            return NotImplemented
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        memory = flat.contiguous().view(torch.uint8).numpy()
        self._tensors.append(memory)
        wants_grad = tensor.is_leaf and tensor.requires_grad
        return _tensor, (pickle.PickleBuffer(memory), tensor.dtype, tuple(tensor.shape), wants_grad)


def dump(value: Any, in_band_bytes: int = 0) -> tuple[memoryview, OutOfBand]:
    """Returns the pickle of `value` and its buffers; raises whatever a __reduce__ raises."""
    outer = _local.beside
    try:
        out_of_band = _local.beside = OutOfBand(in_band_bytes)
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5, buffer_callback=out_of_band.take)
        pickler.dispatch_table = _dispatch_table()
        try:
            pickler.dump(value)
            if not needs_value(payload := file.getbuffer()):
                return payload, out_of_band
        except Exception:  # a lambda, a local class
            pass
        out_of_band = _local.beside = OutOfBand(in_band_bytes)
        file = io.BytesIO()
        _cloudpickle()(file, out_of_band).dump(value)
        return file.getbuffer(), out_of_band
    finally:
        _local.beside = outer  # else the last value would stay in memory


def needs_value(data: bytes | bytearray | memoryview) -> bool:
    """Returns whether a pickle refers to `__main__`, or to a module that is sent by value."""
    module = sys.modules.get("cloudpickle")
    return b"__main__" in bytes(data) or bool(module and module.list_registry_pickle_by_value())


_table: dict[type, Any] = {}
_table_size = -1


def _dispatch_table() -> dict[type, Any]:
    """Returns copyreg's reducers and that of tensors as a dict, the C pickler's fastest way."""
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
    out_of_band = _local.beside
    assert out_of_band is not None
    reduced = out_of_band.reduce_tensor(tensor)
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
def _cloudpickle() -> Any:
    """Returns the pickler for functions and classes that cannot be imported."""
    import cloudpickle  # type: ignore[import-untyped]

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, out_of_band: OutOfBand | None = None) -> None:
            take = None if out_of_band is None else out_of_band.take  # None: all in the file
            super().__init__(file, protocol=5, buffer_callback=take)
            self._out_of_band = out_of_band

        def reducer_override(self, obj: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is not None and type(obj) is torch.Tensor and self._out_of_band is not None:
                reduced = self._out_of_band.reduce_tensor(obj)
                if reduced is not NotImplemented:
                    return reduced
            if type(obj) is types.CodeType:
                return self._reduce_code(obj)
            return super().reducer_override(obj)

        def _reduce_code(self, code: types.CodeType) -> Any:
            """Keeps the name of the file, which cloudpickle 3.1.3 drops: tracebacks show it."""
            make, parts = self.dispatch_table[types.CodeType](code)
            # A copy: where the string is shared, pickle writes other bytes for the same function.
            name = "".join(code.co_filename)
            return make, tuple(name if part == _NO_FILE else part for part in parts)

    return ByValue
