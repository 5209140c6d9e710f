"""Sums in the memory of a GPU: what can be checked without one."""

import contextlib
import ctypes
import functools
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fake_streams import Late, Stream
from gmi_drl.comm import create_group
from gmi_drl.comm.group.tags import BARRIER, make_tag
from gmi_drl.comm.reducers import ipc
from gmi_drl.comm.reducers.ipc import GpuSum


class Array(np.ndarray):
    """An array that keeps what its memory belongs to, as cupy's do."""


def array(shape, kind, owner):
    made = np.zeros(shape, kind).view(Array)
    made.owner = owner
    return made


CUPY = SimpleNamespace(
    ndarray=array,
    cuda=SimpleNamespace(
        UnownedMemory=lambda address, nbytes, owner: owner,
        MemoryPointer=lambda memory, offset: memory,
    ),
)


class Memory:
    """Device memory, given back when nobody holds it."""


def test_buffers_that_nobody_holds_give_their_memory_back():
    made, own = GpuSum.__new__(GpuSum), Memory()
    made._cupy, made._gpu, made._device = CUPY, contextlib.nullcontext(), torch.device("cpu")
    made._numel, made._nbytes, made._dtype = 3, 256, torch.float32
    made.buffer, made.result = made._tensor(own, 0), made._tensor(own, 256)
    assert made.buffer.tolist() == [0.0] * 3
    kept, buffer = weakref.ref(own), made.buffer
    del own, made
    gc.collect()
    assert kept() is not None  # gradients are views of it
    del buffer
    gc.collect()
    assert kept() is None


class HostMemory:
    """What stands for device memory: bytes of this process, at their address."""

    def __init__(self, nbytes):
        self.bytes, self.size = (ctypes.c_char * nbytes)(), nbytes
        self.ptr = ctypes.addressof(self.bytes)
        ctypes.memset(self.ptr, 0x7F, nbytes)  # cudaMalloc clears nothing


def at(address, shape, kind):
    nbytes = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), kind).reshape(shape)


class Cupy:
    """cupy on a late device, by the CUDA runtime's documentation.

    Ranks are threads; `process` tells whose call it is, as a process cannot open its own handles.
    """

    int32 = uint64 = int64 = int
    float32 = np.float32

    def __init__(self, device, process):
        self._device, self._process = device, process
        self._events, self._handles, self.opened = {}, {}, set()
        self.cuda = SimpleNamespace(
            runtime=self, Device=lambda index: contextlib.nullcontext(), Memory=HostMemory,
            Event=self._event, MemoryPointer=lambda memory, offset: memory,
            UnownedMemory=lambda address, nbytes, owner: (address, owner),
            Stream=SimpleNamespace(from_external=self._from_external),
        )  # fmt: skip
        self._here = threading.local()

    def ndarray(self, shape, kind, memory):
        return at(memory[0], shape, kind)

    def asarray(self, values, dtype):
        """The copy to the device is queued."""
        made = np.zeros(len(values), dtype)
        self._here.stream.put(lambda: made.__setitem__(slice(None), values))
        return made

    def kernel(self, grid, block, arguments):
        addresses, k, out, share, count = arguments

        def add():
            total = sum(at(int(address), count, "f4") for address in addresses[:k])
            at(int(out), count, "f4")[:] = total * share

        self._here.stream.put(add)

    def _from_external(self, stream):
        version, pointer = stream.__cuda_stream__()
        if version != 0:
            raise ValueError("unsupported version")
        return self._on(pointer)

    @contextlib.contextmanager
    def _on(self, pointer):
        self._here.stream = self._device.stream_at(pointer)
        yield
        self._here.stream = None

    def _event(self, block=False, disable_timing=False, interprocess=False):
        event = self._device.event(enable_timing=not disable_timing, interprocess=interprocess)
        return SimpleNamespace(ptr=self._known(event), keeps=event)

    def _known(self, event):
        self._events[id(event)] = event
        return id(event)

    # cupy.cuda.runtime ---------------------------------------------------------------------

    def memsetAsync(self, pointer, value, nbytes, stream):
        self._device.stream_at(stream).put(lambda: ctypes.memset(pointer, value, nbytes))

    def streamSynchronize(self, stream):
        self._device.stream_at(stream).synchronize()

    def deviceSynchronize(self):
        self._device.finish()

    def eventRecord(self, event, stream):
        self._events[event].record(self._device.stream_at(stream))

    def streamWaitEvent(self, stream, event):
        self._events[event].wait(self._device.stream_at(stream))

    def ipcGetMemHandle(self, pointer):
        handle = b"m%063d" % len(self._handles)
        self._handles[handle] = (self._process(), pointer)
        return handle

    def ipcGetEventHandle(self, event):
        handle = self._events[event].ipc_handle()
        self._handles[handle] = (self._process(), event)
        return handle

    def _of_another(self, handle):
        process, what = self._handles[handle]
        if process == self._process():
            raise RuntimeError("cudaErrorInvalidResourceHandle: a process cannot open its own")
        return what

    def ipcOpenMemHandle(self, handle):
        pointer = self._of_another(handle)
        self.opened.add((self._process(), pointer))
        return pointer

    def ipcCloseMemHandle(self, pointer):
        self.opened.remove((self._process(), pointer))

    def ipcOpenEventHandle(self, handle):
        self._of_another(handle)
        event = self._known(self._device.opened(0, handle))
        self.opened.add((self._process(), event))
        return event

    def eventDestroy(self, event):
        self.opened.remove((self._process(), event))
        del self._events[event]


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
@pytest.mark.parametrize("numel", [1, 997])
def test_ranks_add_in_each_others_memory_in_the_order_that_events_make(monkeypatch, numel, threads):
    device, thread = Late(), threading.local()
    cupy = Cupy(device, lambda: 1 if threads else thread.rank)
    monkeypatch.setattr(ipc.importlib, "import_module", lambda _: cupy)
    monkeypatch.setattr(ipc, "os", SimpleNamespace(getpid=cupy._process, environ={}))
    monkeypatch.setattr(ipc, "_kernel", lambda _: cupy.kernel)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.current)
    monkeypatch.setattr(GpuSum, "_most_blocks", 4)
    spec = create_group([f"gmi {rank}" for rank in range(3)], strategy="ipc")

    def rank_of_a_thread(rank):
        thread.rank = rank
        device.current = Stream(device, f"rank {rank}")
        group = spec.join(rank, timedelta(seconds=20))
        sums = GpuSum(group, range(3), 0, numel, torch.float32, torch.device("cpu"))
        found = [sums.result.clone()]
        for step in (1, 2, 3):
            value = torch.arange(numel) + 10.0 * rank + step
            device.put(functools.partial(sums.buffer.copy_, value))
            sums.written()
            group.meet(make_tag(BARRIER, count=100 + 2 * step))
            sums.add(1 / 3)
            group.meet(make_tag(BARRIER, count=101 + 2 * step))
            sums.until_added()
            device.put(lambda: found.append(sums.result.clone()))
        device.current.synchronize()
        group.barrier()
        group.close()
        return found

    with ThreadPoolExecutor(3) as executor:
        all_found = list(executor.map(rank_of_a_thread, range(3)))
    for first, *found in all_found:
        assert not first.any()
        for step, result in zip((1, 2, 3), found, strict=True):
            torch.testing.assert_close(result, torch.arange(numel) + 10.0 + step)
    assert not ipc._here
    assert not cupy.opened


@pytest.mark.parametrize("number", ["float", "double"])
def test_the_kernel_compiles_behind_the_headers_that_cupy_puts_first(number):
    compiler = pytest.importorskip("cupy.cuda.compiler")  # needs no GPU
    kernel = ipc._kernel(number)
    program = compiler._NVRTCProgram(kernel.code, "add.cu", (), (), None, "ptx")
    ptx, _ = program.compile((*kernel.options, "-arch=compute_90"), None)
    assert b".entry add" in ptx
