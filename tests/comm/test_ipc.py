"""Sums in the memory of a GPU: what can be checked without one."""

import contextlib
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import torch

from gmi_drl.comm.ipc import GpuSum


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
