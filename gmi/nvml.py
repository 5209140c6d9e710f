"""Reads NVML, the driver's library, without starting CUDA: GPUs, MIG instances, links.

Values that the driver does not have are None; a lost GPU is an error of that GPU alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from gmi_drl.placement.mig import placements, profiles_of
from gmi_drl.placement.topology import Device, GpuProcess, MigInstance

from .errors import DiscoveryError

# CUDA cores per SM, by compute capability (CUDA C programming guide, "Compute Capabilities").
_CORES_PER_SM_64: Final = {(7, 0), (7, 2), (7, 5), (8, 0)}
_CORES_PER_SM: Final = 128  # 8.6, 8.7, 8.9 and everything from 9.0 on
_PCI: Final = Path("/sys/bus/pci/devices")
_NODES: Final = Path("/sys/devices/system/node")
_MOST_NODES: Final = 64  # of which NVML is asked
# Exclusive to a process, or to a thread (1), which was removed long ago.
_MODES: Final[dict[int, Literal["default", "exclusive", "prohibited"]]] = {
    0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive",
}  # fmt: skip
_UNKNOWN: Final = -1
_PROFILE: Final = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb(?:\+\S+)?)", re.IGNORECASE)
_P2P_READ: Final = 0  # nvidia-ml-py 12 and 13 have the tuple (0,) as NVML_P2P_CAPS_INDEX_READ
_ROUTES: Final = {  # nvmlGpuTopologyLevel_t
    0: "same board", 10: "PCIe switch", 20: "PCIe switches", 30: "host bridge", 40: "NUMA node",
    50: "system",
}  # fmt: skip

LinkTable = tuple[tuple[str, ...], ...]
PeerTable = tuple[tuple[bool, ...], ...]


@contextlib.contextmanager
def nvml_session() -> Iterator[Any]:
    """Opens nvidia-ml-py until the end of the block; DiscoveryError if that fails."""
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
    """Returns NVML's answer; None if it has none. Raises NVMLError when the GPU is lost."""
    lost_errors = (
        nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired, nvml.NVMLError_GpuNotFound,
        nvml.NVMLError_Uninitialized, nvml.NVMLError_DriverNotLoaded,
    )  # fmt: skip
    try:
        return question(*arguments)
    except lost_errors:  # the GPU, or the whole driver, is gone
        raise
    except nvml.NVMLError:
        return None


def read_device(nvml: Any, handle: Any) -> Device:
    """Reads the GPU, without cores and MIG instances; NVMLError when it does not answer."""
    mode = query(nvml, nvml.nvmlDeviceGetMigMode, handle)
    capability = query(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Device(
        index=0, kind="gpu", name=str(nvml.nvmlDeviceGetName(handle)), cores=(),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)), sm_count=_sm_count(nvml, handle, capability),
        mem_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        numa_node=_numa_node(nvml, handle),
        compute_mode=_MODES.get(query(nvml, nvml.nvmlDeviceGetComputeMode, handle)),
        mig_mode=None if mode is None else bool(mode[0] == nvml.NVML_DEVICE_MIG_ENABLE),
    )  # fmt: skip


def read_cores(nvml: Any, handle: Any, numa_node: int | None) -> frozenset[int]:
    """Returns the cores near the GPU, or of its NUMA node; empty if they are not known."""
    words = (os.cpu_count() or 1) // 64 + 1
    cores = frozenset(_bits(query(nvml, nvml.nvmlDeviceGetCpuAffinity, handle, words)))
    if cores or numa_node is None:
        return cores
    return numa_nodes().get(numa_node, cores)


def numa_nodes() -> dict[int, frozenset[int]]:
    """Returns the cores of each NUMA node, as Linux lists them; empty where it lists none."""
    nodes = {}
    for path in _NODES.glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            cores: set[int] = set()
            for part in filter(None, (path / "cpulist").read_text().strip().split(",")):
                first, _, last = part.partition("-")  # 0-3,8
                cores.update(range(int(first), int(last or first) + 1))
            nodes[int(path.name[4:])] = frozenset(cores)
    return nodes


def read_processes(nvml: Any, handles: list[Any]) -> tuple[GpuProcess, ...]:
    """Lists the processes on a GPU, by pid. `handles`: the GPU's, and those of its MIG devices.

    Under MPS a client is in two of the driver's lists. In a container the pids may be the host's.
    """
    kinds: tuple[tuple[Literal["graphics", "compute", "mps"], Any], ...] = (
        ("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
        ("compute", nvml.nvmlDeviceGetComputeRunningProcesses_v3),
        ("mps", nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
    )
    processes: dict[int, GpuProcess] = {}
    for kind, list_processes in kinds:
        for handle in handles:
            for process in query(nvml, list_processes, handle) or ():
                memory = process.usedGpuMemory
                nbytes = None if memory is None else int(memory)
                processes[int(process.pid)] = GpuProcess(int(process.pid), kind, nbytes)
    return tuple(processes[pid] for pid in sorted(processes))


def _sm_count(nvml: Any, handle: Any, capability: tuple[int, int] | None) -> int | None:
    """Returns the SMs, from NVML's count of cores; None if it has none."""
    cores = query(nvml, nvml.nvmlDeviceGetNumGpuCores, handle)
    if cores is None or capability is None:
        return None
    return int(cores) // (64 if tuple(capability) in _CORES_PER_SM_64 else _CORES_PER_SM)


def _numa_node(nvml: Any, handle: Any) -> int | None:
    """Returns the NUMA node near the GPU; None if it is not known.

    This is not nvmlDeviceGetNumaNodeId, which is the node of the GPU's own memory on Grace.
    """
    scope, words = nvml.NVML_AFFINITY_SCOPE_NODE, _MOST_NODES // 64
    nodes = _bits(query(nvml, nvml.nvmlDeviceGetMemoryAffinity, handle, words, scope))
    if len(nodes) == 1:
        return nodes.pop()
    pci = query(nvml, nvml.nvmlDeviceGetPciInfo_v3, handle)
    if pci is None:
        return None
    domain, _, rest = bus_id(pci).lower().partition(":")  # Linux writes four digits of the domain
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
    """Returns the indices of the bits that are set in 64-bit words."""
    return {
        64 * index + bit
        for index, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    }


# ---- MIG instances


def mig_handles(nvml: Any, handle: Any) -> list[Any]:
    """Returns handles of the MIG devices of a GPU that exist. Their numbers may have gaps."""
    numbers = range(query(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    by_index = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    devices = [query(nvml, by_index, handle, number) for number in numbers]
    return [device for device in devices if device is not None]


def read_instances(
    nvml: Any, handle: Any, handles: Sequence[Any], gpu: Device
) -> tuple[MigInstance, ...]:
    """Returns the MIG instances of `gpu` behind these handles, by their start.

    Only root is told the places of GPU instances; for other users each gets a possible place,
    disjoint from the others.
    """
    instances: list[tuple[int, MigInstance]] = []  # with the id of its GPU instance
    for device in handles:
        number = query(nvml, nvml.nvmlDeviceGetGpuInstanceId, device)
        attributes = query(nvml, nvml.nvmlDeviceGetAttributes_v2, device)
        memory = query(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
        profile = _PROFILE.search(str(nvml.nvmlDeviceGetName(device)))
        if number is None or attributes is None or profile is None:
            continue  # it was destroyed meanwhile
        start, size = _placement(nvml, handle, number) or (_UNKNOWN, 0)
        instance = MigInstance(
            uuid=str(nvml.nvmlDeviceGetUUID(device)), profile=profile[1].lower(), start=start,
            size=size,
            mem_bytes=int(attributes.memorySizeMB) << 20 if memory is None else int(memory.total),
            sm_count=int(attributes.multiprocessorCount) or None,
        )  # fmt: skip
        instances.append((int(number), instance))
    placed = [instance for _, instance in instances]
    if any(instance.start == _UNKNOWN for instance in placed):
        placed = _guess_places(instances, gpu)
    return tuple(sorted(placed, key=lambda instance: (instance.start, instance.uuid)))


def _placement(nvml: Any, handle: Any, number: int) -> tuple[int, int] | None:
    """Returns (start, size) of a GPU instance; None if the user may not know it."""
    instance = query(nvml, nvml.nvmlDeviceGetGpuInstanceById, handle, number)
    info = None if instance is None else query(nvml, nvml.nvmlGpuInstanceGetInfo, instance)
    return None if info is None else (int(info.placement.start), int(info.placement.size))


def _guess_places(instances: list[tuple[int, MigInstance]], gpu: Device) -> list[MigInstance]:
    """Gives instances possible places; places in a row if a profile is not known."""
    names = {number: instance.profile.rpartition("c.")[2] for number, instance in instances}
    profiles = {profile.name: profile for profile in profiles_of(gpu)}
    places = {number: (index, 1) for index, number in enumerate(names)}
    if profiles.keys() >= set(names.values()):
        slices = placements([profiles[name] for name in names.values()]) or ()
        for number, mig_slice in zip(names, slices, strict=False):
            places[number] = mig_slice.start, profiles[mig_slice.profile].size
    return [
        dataclasses.replace(instance, start=places[number][0], size=places[number][1])
        for number, instance in instances
    ]


# ---- links between GPUs


def read_links(nvml: Any, handles: Sequence[Any]) -> tuple[LinkTable, PeerTable]:
    """Reads `Topology.links` and `Topology.peers` of these GPUs; NVMLError when one is lost.

    Through NVSwitch every GPU reaches every other by all the links that it has.
    """
    ports = [_ports(nvml, handle) for handle in handles]
    addresses = [_address(nvml, handle) for handle in handles]
    links, peers = [], []
    for i, handle in enumerate(handles):
        row, row_peers = [], []
        for j, other in enumerate(handles):
            if i == j:
                row.append("")
                row_peers.append(True)
                continue
            direct = ports[i][1].get(addresses[j] or "", 0)
            count = direct + min(ports[i][0], ports[j][0])
            if count:
                row.append(f"NVLink x{count}")
            else:  # over PCIe: named by the nearest common ancestor
                level = query(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, handle, other)
                row.append(_ROUTES.get(level, "unknown"))
            status = query(nvml, nvml.nvmlDeviceGetP2PStatus, handle, other, _P2P_READ)
            row_peers.append(status == nvml.NVML_P2P_STATUS_OK)
        links.append(tuple(row))
        peers.append(tuple(row_peers))
    return tuple(links), tuple(peers)


def _ports(nvml: Any, handle: Any) -> tuple[int, dict[str, int]]:
    """Counts the NVLinks of a GPU that are up: to switches, and to each GPU by its PCI address."""
    to_switch, to_gpu = 0, dict[str, int]()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = query(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # there is no such link
            break
        if not state:
            continue
        kind = query(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        pci = query(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            to_switch += 1
        elif pci is not None and kind in (None, nvml.NVML_NVLINK_DEVICE_TYPE_GPU):
            address = bus_id(pci)
            to_gpu[address] = to_gpu.get(address, 0) + 1
    return to_switch, to_gpu


def _address(nvml: Any, handle: Any) -> str | None:
    pci = query(nvml, nvml.nvmlDeviceGetPciInfo_v3, handle)
    return None if pci is None else bus_id(pci)
