"""Sums in the memory of a GPU: what can be checked without one."""

import contextlib
import ctypes
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gmi_drl.comm import create_group, ipc
from gmi_drl.comm.ipc import GpuSum
from gmi_drl.comm.tags import BARRIER, make_tag


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


def at(address, shape, kind):
    nbytes = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), kind).reshape(shape)


def add(grid, block, arguments):
    """The kernel, by numpy."""
    addresses, k, out, share, count = arguments
    total = sum(at(int(a), count, "f4") for a in addresses[:k])
    at(int(out), count, "f4")[:] = total * share


class Events:
    """Events that are known by their address."""

    def __init__(self, **_):
        self.ptr = id(self)
        Events.known.add(self.ptr)


def wait(stream, event):
    assert event in Events.known


def refuse(*_):
    raise RuntimeError("cudaErrorInvalidResourceHandle: a process cannot open its own")


def cupy_on_host():
    runtime = SimpleNamespace(
        memsetAsync=lambda *_: None, streamSynchronize=lambda stream: None,
        eventRecord=lambda event, stream: wait(stream, event), streamWaitEvent=wait,
        ipcGetMemHandle=lambda ptr: b"m" * 64,
        ipcGetEventHandle=lambda ptr: b"e" * 64, ipcOpenMemHandle=refuse, ipcOpenEventHandle=refuse,
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Device=lambda index: contextlib.nullcontext(), Memory=HostMemory,
        Event=Events, UnownedMemory=lambda address, nbytes, owner: (address, owner),
        MemoryPointer=lambda memory, offset: memory,
        ExternalStream=lambda stream: contextlib.nullcontext(),
    )  # fmt: skip
    return SimpleNamespace(
        cuda=cuda, asarray=np.asarray, int32=int, uint64=int, int64=int, float32=np.float32,
        ndarray=lambda shape, kind, memory: at(memory[0], shape, kind),
    )  # fmt: skip


@pytest.mark.parametrize("numel", [1, 997])
def test_threads_of_one_process_add_in_each_others_memory(monkeypatch, numel):
    Events.known = set()
    monkeypatch.setattr(ipc.importlib, "import_module", lambda _: cupy_on_host())
    monkeypatch.setattr(ipc, "_kernel", lambda _: add)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(GpuSum, "_stream", 7)
    monkeypatch.setattr(GpuSum, "_most_blocks", 4)
    spec = create_group([f"gmi {rank}" for rank in range(3)], strategy="ipc")

    def rank_of_a_thread(rank):
        group = spec.join(rank, timedelta(seconds=20))
        device = torch.device("cpu")
        sums = GpuSum(group, range(3), 0, numel, torch.float32, device)
        found = []
        for step in (1, 2):
            sums.buffer[:] = torch.arange(numel) + 10.0 * rank + step
            sums.written()
            group.meet(make_tag(BARRIER, count=100 + 2 * step))
            sums.add(1 / 3)
            group.meet(make_tag(BARRIER, count=101 + 2 * step))
            sums.until_added()
            found.append(sums.result.clone())
        group.barrier()
        group.close()
        return found

    with ThreadPoolExecutor(3) as threads:
        all_found = list(threads.map(rank_of_a_thread, range(3)))
    for found in all_found:
        for step, result in zip((1, 2), found, strict=True):
            torch.testing.assert_close(result, torch.arange(numel) + 10.0 + step)
    assert not ipc._here
