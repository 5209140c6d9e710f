"""Bounds and measures the device memory of a GMI's process, and explains when it ran out.

An MPS daemon enforces the limit, and a MIG instance has no more. Under direct and green torch's
allocator is told the limit; other allocations (warp's pool, JAX, a context of some 500 MB) are
watched. GMIs that are threads share the sum of their shares. Nothing here waits for the
device.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi import nvml as driver
from gmi_drl.gmi.backends.backend import backend_of
from gmi_drl.gmi.errors import DeviceMemoryError
from gmi_drl.placement.slicing import memory_share

if TYPE_CHECKING:
    import torch

    from gmi_drl.placement.layout import Layout

_GIB: Final = 1 << 30
# Where warp keeps its runtime, which is None until it is started. The fork server imports warp for
# all GMIs, and asking warp about a device would start it.
_KEEPS_WARP: Final = "warp._src.context"
# The module of adapter mjx that starts JAX. An imported jax may not be started, and asking it would
# start it.
_STARTS_JAX: Final = "gmi_drl.roles.envs.mjx.start"
_WARNED: Final[set[tuple[Any, ...]]] = set()
# Errors of libraries when the memory of a device runs out: torch, its CUDA libraries, cupy and
# bindings; warp ("Failed to allocate 8 bytes on device 'cuda:0'"); XLA.
_RAN_OUT: Final = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAlloc"
    r"|(CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED"
    r"|Failed to allocate \d+ bytes .*device 'cuda"
)


class DeviceMemory:
    """Measures the memory of one GMI's device, in its process.

    `device` is torch's; `warn` is called once if the GMI holds more than its share.
    """

    def __init__(
        self, layout: Layout, gmi_id: int, device: torch.device, warn: Callable[[str], None]
    ) -> None:
        self._spec, self._device, self._warn = layout.gmi(gmi_id), device, warn
        self.share = memory_share(layout, gmi_id)
        self._sharers = layout.mpl[self._spec.gpu_id]  # the GMIs of its device
        self._bound: int | None = None  # of its process; None: not bounded here
        backend = backend_of(self._spec.backend)
        threads = backend.gmis_are_threads
        # Alone on its device it needs no bound.
        is_shared = len(self._sharers) > 1 or layout.topology.devices[self._spec.gpu_id].share < 1
        if self.share is not None and backend.torch_limits_memory and is_shared:
            gmis = self._sharers if threads else (gmi_id,)
            shares = [memory_share(layout, gmi) for gmi in gmis]
            self._bound = sum(share.nbytes for share in shares if share is not None)
        # The key of the warning: threads of a process share one, as they see the same bytes.
        self._warning_key = (os.getpid(), self._spec.device_uuid, None if threads else gmi_id)

    def bound(self) -> None:
        """Sets the limit of torch's allocator, before anything is on the device."""
        if self._bound is None or self._device.type != "cuda":
            return
        import torch

        total = torch.cuda.get_device_properties(self._device).total_memory
        fraction, index = min(1.0, self._bound / total), self._device.index
        # torch needs an index here. The only device of a GMI is the first that it sees.
        torch.cuda.set_per_process_memory_fraction(fraction, 0 if index is None else index)

    def look(self) -> int:
        """Returns the peak bytes of this process, as its libraries count them."""
        peaks = self._peaks()
        peak = sum(peaks.values())
        if self._bound is not None and peak > self._bound and self._warning_key not in _WARNED:
            _WARNED.add(self._warning_key)
            self._warn(
                f"{self._name()}: its process has held {_gib(peak)} of the GPU's memory"
                f"{_parts(peaks)}; {_gib(self._bound)} is its share, and not all of these keep to "
                f"it. {self._remedy()}"
            )
        return peak

    def process_bytes(self) -> int:
        """Returns the bytes of this process by the driver, with its contexts; 0 if not known.

        In a container the driver may know the process by another pid.
        """
        uuid = self._spec.device_uuid
        if self._device.type != "cuda" or uuid is None or self._spec.mig is not None:
            return 0
        try:
            with driver.nvml_session() as nvml:
                handle = driver.query(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)
                processes = driver.read_processes(nvml, [] if handle is None else [handle])
        except Exception:  # no driver, or a lost GPU, whose users will raise
            return 0
        return next((p.mem_bytes or 0 for p in processes if p.pid == os.getpid()), 0)

    def explained(self, error: BaseException) -> DeviceMemoryError | None:
        """Returns the DeviceMemoryError to raise for `error`, if memory ran out; else None."""
        if self._device.type == "cpu":
            return None
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, DeviceMemoryError):
            if _RAN_OUT.search(f"{type(cause).__name__}: {cause}"):
                detail = next((line for line in str(cause).splitlines() if line.strip()), "")
                return self._error(f"{type(cause).__name__}: {detail.strip()}")
            cause = cause.__cause__
        return None

    def _error(self, detail: str) -> DeviceMemoryError:
        peaks, share = self._peaks(), self.share
        size = "it is not known" if share is None else f"{_gib(share.nbytes)}, {share.why}"
        if self._bound is not None and share is not None and self._bound != share.nbytes:
            size += f"; all GMIs of its process have {_gib(self._bound)}"
        return DeviceMemoryError(
            self._spec.gmi_id,
            None if share is None else share.nbytes,
            sum(peaks.values()),
            f"{self._name()}: the device's memory ran out. Its share: {size}. It has held at most "
            f"{_gib(sum(peaks.values()))}{_parts(peaks)}. {self._remedy()} ({detail})",
        )

    def _name(self) -> str:
        spec = self._spec
        return f"gmi {spec.gmi_id} (GPU {spec.gpu_id}, backend {spec.backend})"

    def _remedy(self) -> str:
        fewer = ", or layout.gmi_per_gpu" if len(self._sharers) > 1 else ""
        return f"Lower env.num_env{fewer}."

    def _peaks(self) -> dict[str, int]:
        """Returns the peak bytes by library."""
        if self._device.type == "cpu":
            return {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        import torch

        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        peaks = {"torch": int(stats["reserved_bytes"]["all"]["peak"]) if stats else 0}
        for name, library, peak in _COUNTED:
            if (module := sys.modules.get(library)) is not None:
                # A library that cannot use the device has none, and a user's module may only have
                # its name.
                with contextlib.suppress(Exception):
                    peaks[name] = peak(module, self._device)
        return peaks


def _warp_bytes(warp: Any, device: torch.device) -> int:
    import torch

    # There is one pool of the driver: if torch allocates from it too, torch has counted it.
    if torch.cuda.get_allocator_backend() == "cudaMallocAsync" or not _warp_runs():
        return 0
    return int(warp.get_mempool_used_mem_high(f"cuda:{device.index or 0}"))


def _warp_runs() -> bool:
    return getattr(sys.modules.get(_KEEPS_WARP), "runtime", True) is not None


def _graph_bytes(warp: Any, device: torch.device) -> int:
    """Returns the bytes of warp's captured allocations, which only torch's own pool counts."""
    return cuda_driver.graph_mem_high_bytes(device.index or 0) if _warp_runs() else 0


def _jax_bytes(jax: Any, device: torch.device) -> int:
    if not getattr(sys.modules.get(_STARTS_JAX), "started", False):
        return 0
    for part in jax.local_devices():
        if part.platform == "gpu" and (part.local_hardware_id or 0) == (device.index or 0):
            stats = part.memory_stats() or {}
            return int(max(stats.get("peak_pool_bytes", 0), stats.get("peak_bytes_in_use", 0)))
    return 0


# The owner of the memory, the library that is asked if it is imported, and the function.
_COUNTED: Final[tuple[tuple[str, str, Callable[[Any, torch.device], int]], ...]] = (
    ("warp", "warp", _warp_bytes),
    ("graphs", "warp", _graph_bytes),
    ("jax", "jax", _jax_bytes),
)


def _parts(peaks: dict[str, int]) -> str:
    return f" ({', '.join(f'{name} {_gib(nbytes)}' for name, nbytes in peaks.items())})"


def _gib(nbytes: int) -> str:
    return f"{nbytes / _GIB:.2f} GiB"
