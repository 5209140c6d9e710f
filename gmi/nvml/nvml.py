"""Reads NVML, the driver's library: one GPU as a Device, without starting CUDA.

What the driver cannot say is None; a GPU that is lost is an error of that GPU alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from gmi_drl.gmi.errors import DiscoveryError
from gmi_drl.placement.topology import Device, GpuProcess

# CUDA cores per SM, by compute capability (CUDA C programming guide, "Compute Capabilities").
_CORES_PER_SM_64: Final = {(7, 0), (7, 2), (7, 5), (8, 0)}
_CORES_PER_SM: Final = 128  # 8.6, 8.7, 8.9 and everything from 9.0 on
_PCI: Final = Path("/sys/bus/pci/devices")
_NODES: Final = Path("/sys/devices/system/node")
_MOST_NODES: Final = 64  # that are asked about
# Exclusive: of a process, or of a thread (1), which was removed long ago.
_MODES: Final[dict[int, Literal["default", "exclusive", "prohibited"]]] = {
    0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive",
}  # fmt: skip


@contextlib.contextmanager
def nvml_session() -> Iterator[Any]:
    """Opens nvidia-ml-py until the end of the block; DiscoveryError says why not."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        raise DiscoveryError("nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DiscoveryError(f"NVML: {error}") from error
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # the last GPU may just have been lost
            pynvml.nvmlShutdown()


def query(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """Returns NVML's answer; None where it has none. Raises NVMLError when the GPU is lost."""
    lost = (
        nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired, nvml.NVMLError_GpuNotFound,
        nvml.NVMLError_Uninitialized, nvml.NVMLError_DriverNotLoaded,
    )  # fmt: skip
    try:
        return question(*arguments)
    except lost:  # the GPU, or all of the driver, is gone
        raise
    except nvml.NVMLError:
        return None


def read_device(nvml: Any, handle: Any) -> Device:
    """Reads the GPU, without cores and MIG instances; NVMLError when it does not answer."""
    mode = query(nvml, nvml.nvmlDeviceGetMigMode, handle)
    capability = query(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Device(
        index=0,
        kind="gpu",
        name=str(nvml.nvmlDeviceGetName(handle)),
        cores=(),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        sm_count=_sm_count(nvml, handle, capability),
        mem_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        numa_node=_numa_node(nvml, handle),
        compute_mode=_MODES.get(query(nvml, nvml.nvmlDeviceGetComputeMode, handle)),
        mig_mode=None if mode is None else bool(mode[0] == nvml.NVML_DEVICE_MIG_ENABLE),
    )


def read_cores(nvml: Any, handle: Any, numa_node: int | None) -> frozenset[int]:
    """Returns the cores on the GPU's side of the machine, or of its node; empty if not known."""
    words = (os.cpu_count() or 1) // 64 + 1
    near = frozenset(_bits(query(nvml, nvml.nvmlDeviceGetCpuAffinity, handle, words)))
    if near or numa_node is None:
        return near
    return numa_nodes().get(numa_node, near)


def numa_nodes() -> dict[int, frozenset[int]]:
    """Returns the cores of each NUMA node, as Linux lists them; empty where it lists none."""
    cores_of = {}
    for path in _NODES.glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            cores: set[int] = set()
            for part in filter(None, (path / "cpulist").read_text().strip().split(",")):
                first, _, last = part.partition("-")  # 0-3,8
                cores.update(range(int(first), int(last or first) + 1))
            cores_of[int(path.name[4:])] = frozenset(cores)
    return cores_of


def read_processes(nvml: Any, handles: list[Any]) -> tuple[GpuProcess, ...]:
    """Lists who holds a GPU, by pid. `handles`: the GPU's, and those of its MIG devices.

    Under MPS a client is in two of the driver's lists. A container may show the host's pids.
    """
    kinds: tuple[tuple[Literal["graphics", "compute", "mps"], Any], ...] = (
        ("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
        ("compute", nvml.nvmlDeviceGetComputeRunningProcesses_v3),
        ("mps", nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
    )
    found: dict[int, GpuProcess] = {}
    for kind, question in kinds:
        for handle in handles:
            for process in query(nvml, question, handle) or ():
                memory = process.usedGpuMemory
                known = None if memory is None else int(memory)
                found[int(process.pid)] = GpuProcess(int(process.pid), kind, known)
    return tuple(found[pid] for pid in sorted(found))


def _sm_count(nvml: Any, handle: Any, capability: tuple[int, int] | None) -> int | None:
    """Counts SMs, where NVML counts cores; None when it does not say."""
    cores = query(nvml, nvml.nvmlDeviceGetNumGpuCores, handle)
    if cores is None or capability is None:
        return None
    return int(cores) // (64 if tuple(capability) in _CORES_PER_SM_64 else _CORES_PER_SM)


def _numa_node(nvml: Any, handle: Any) -> int | None:
    """Returns the node of the host's memory near the GPU; None where there is no choice.

    Not nvmlDeviceGetNumaNodeId: that is the node which the GPU's own memory is on Grace.
    """
    scope, words = nvml.NVML_AFFINITY_SCOPE_NODE, _MOST_NODES // 64
    nodes = _bits(query(nvml, nvml.nvmlDeviceGetMemoryAffinity, handle, words, scope))
    if len(nodes) == 1:
        return nodes.pop()
    pci = query(nvml, nvml.nvmlDeviceGetPciInfo_v3, handle)
    if pci is None:
        return None
    domain, _, rest = bus_id(pci).lower().partition(":")  # Linux has four digits of the domain
    try:
        node = int((_PCI / f"{int(domain, 16):04x}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not say


def bus_id(pci: Any) -> str:
    """Returns a PCI address as NVML writes it ("00000000:3B:00.0"), in capitals."""
    text = pci.busId
    return (text.decode() if isinstance(text, bytes) else str(text)).upper()


def _bits(words: Any) -> set[int]:
    """Returns the places of the bits that are set in 64-bit words."""
    return {
        64 * place + bit
        for place, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    }
