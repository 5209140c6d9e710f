"""The device of a trial, in a worker that has trials of all: its cores, or its GPU, for a while."""

from __future__ import annotations

import contextlib
import gc
import os
import traceback
from collections.abc import Iterator

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi.backends import cpu
from gmi_drl.gmi.backends.gpu import bare, uuid_of
from gmi_drl.placement import Device, GmiSpec


class TrialError(GmiDrlError, RuntimeError):
    """A trial cannot be trained as it was asked for."""


@contextlib.contextmanager
def on_device(spec: GmiSpec, device: Device) -> Iterator[str]:
    """In this block the process has the cores of the GMI, that many threads for torch, its GPU.

    Yields torch's name of the device. It has an index, since `cuda` alone is the GPU of the thread
    that asks, and a role may have threads.
    """
    import torch

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    cpu.enter(spec, device)
    _move_threads(os.sched_getaffinity(0))
    try:
        if device.kind == "gpu":
            index = _cuda_index(spec)
            with torch.cuda.device(index), _given_back():
                yield f"cuda:{index}"
        else:
            yield "cpu"
    finally:
        torch.set_num_threads(threads)
        _move_threads(cores)


@contextlib.contextmanager
def _given_back() -> Iterator[None]:
    """After this block, however it ends, the process holds none of the GPU's memory.

    The next trial of this worker may be on another GPU, and another worker's on this one.
    """
    import torch

    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # their locals are the policy and its samples
        raise
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _move_threads(cores: set[int]) -> None:
    """Lets all threads of this process run on these cores alone.

    The pools of torch and OpenMP were made on the cores of an earlier trial, and would stay there.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def _cuda_index(spec: GmiSpec) -> int:
    """Torch's index of the GMI's GPU. The worker sees all GPUs, as it has trials of each."""
    import torch

    wanted = bare(uuid_of(spec))
    seen = [
        bare(str(torch.cuda.get_device_properties(i).uuid))
        for i in range(torch.cuda.device_count())
    ]
    if wanted not in seen:
        raise TrialError(
            f"GPU {spec.device_uuid} is not among those that CUDA sees here ({', '.join(seen)}). "
            "Check CUDA_VISIBLE_DEVICES, and hardware.num_gpus."
        )
    return seen.index(wanted)
