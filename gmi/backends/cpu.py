"""The backend cpu gives a GMI a share of CPU cores: affinity, and one thread per core."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi.errors import SliceError
from gmi_drl.runtime import THREAD_VARIABLES

from .backend import Backend

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_MMAPPED_BYTES: Final = 2**25  # larger arrays are mapped; the greatest value that glibc takes
_KEPT_BYTES: Final = 2**26


class CpuBackend(Backend):
    """Gives GMIs shares of cores, without GPUs."""

    summary = "GMIs as shares of CPU cores"

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Sets thread counts, and hides GPUs, as torch's optimizers would start CUDA on them."""
        return thread_environment(spec) | {"CUDA_VISIBLE_DEVICES": ""}

    def enter(self, spec: GmiSpec, device: Device) -> None:
        take_cores(spec)
        keep_freed_memory()

    def verify(self, spec: GmiSpec, device: Device) -> None:
        verify_cores(spec)


def num_threads(spec: GmiSpec) -> int:
    """Returns the threads for computing: one per core of the GMI."""
    return max(1, len(spec.cores))


def thread_environment(spec: GmiSpec) -> dict[str, str]:
    """Returns the thread counts for the libraries that read them when they are loaded."""
    return dict.fromkeys(THREAD_VARIABLES, str(num_threads(spec)))


def take_cores(spec: GmiSpec) -> None:
    """Sets the affinity of this thread, and torch's threads if torch is loaded already."""
    if spec.cores:
        try:
            os.sched_setaffinity(0, spec.cores)
        except OSError as error:
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: cores={list(spec.cores)}; the system refuses them "
                f"({error.strerror}). Use cores of {sorted(os.sched_getaffinity(0))}."
            ) from error
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(num_threads(spec))


def keep_freed_memory() -> None:
    """Has the C library keep freed memory, up to some size, and reuse it.

    By default glibc returns arrays of a few hundred kB to the system, and each page of the next
    one faults again: a tenth of the time of an update of 256 rows by layers of 256 units.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def verify_cores(spec: GmiSpec) -> None:
    """Raises SliceError unless affinity and torch's threads are what the spec says."""
    affinity = os.sched_getaffinity(0)
    if spec.cores and affinity != set(spec.cores):
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: cores={list(spec.cores)}; the process runs on "
            f"cores {sorted(affinity)}. Something else sets its affinity (a container, taskset): "
            "choose cores it allows."
        )
    if torch := sys.modules.get("torch"):
        threads = torch.get_num_threads()
        if threads != num_threads(spec):
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: {num_threads(spec)} threads for torch; it has {threads}. "
                "Do not call torch.set_num_threads while modules are preloaded."
            )
