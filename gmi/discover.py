"""Discovers the devices of this machine: GPUs by NVML, or groups of cores when there is none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gmi_drl.placement.topology import Device, MigInstance, Topology, share

from .backends.backend import CORE_BACKENDS, GPU_BACKENDS
from .backends.usable import this_system, unusable
from .errors import DiscoveryError
from .numa import nodes
from .nvml.links import LinkTable, PeerTable, read_links
from .nvml.mig import mig_handles, read_instances
from .nvml.nvml import nvml_session, query, read_cores, read_device, read_processes
from .visible import ListedGpu, visible


@dataclass(frozen=True)
class Machine:
    """All that the driver says: the GPUs that this process may use, and how they are joined."""

    devices: tuple[Device, ...] = ()  # without their cores
    near: tuple[frozenset[int], ...] = ()  # the cores on the side of each
    links: LinkTable = ()
    peers: PeerTable = ()
    lost: tuple[str, ...] = ()  # GPUs that do not answer, each with its reason
    hidden: tuple[str, ...] = ()  # GPUs that CUDA_VISIBLE_DEVICES leaves out
    driver: str = ""  # its version; none where it does not answer
    cuda: tuple[int, int] | None = None  # the newest that the driver can run
    why_not: str = ""  # NVML cannot be asked

    @property
    def left_out(self) -> tuple[str, ...]:
        """Says why there are not more devices."""
        return (*self.hidden, *self.lost, *([self.why_not] if self.why_not else []))


def discover(
    num_gpus: int | None = None,
    backend: str = "auto",
    cores: Sequence[int] | None = None,
    allow_create: bool = False,
) -> Topology:
    """Finds the devices to use. `num_gpus` None: all GPUs, or one group of cores.

    `backend` auto takes GPUs if there are any, cpu never does, any other must have them.
    `cores`: those to use (None: all this process may run on). `allow_create`: a run may make MIG
    instances. CUDA_VISIBLE_DEVICES is respected; an index in it counts as nvidia-smi does. A GPU
    that is lost is left out. Takes milliseconds, and starts neither CUDA nor a daemon.
    DiscoveryError says what is missing.
    """
    allowed = _cores(cores)
    if num_gpus is not None and num_gpus < 1:
        raise DiscoveryError(f"hardware.num_gpus={num_gpus}; it must be 1 or more.")
    if backend in CORE_BACKENDS:
        return Topology.from_cores(allowed, num_gpus or 1)
    machine = look()
    why_not = "; ".join(machine.left_out)
    count = len(machine.devices)
    if count:
        if num_gpus is not None and num_gpus > count:
            raise DiscoveryError(
                f"hardware.num_gpus={num_gpus}; {count} can be used here"
                f"{f' ({why_not})' if why_not else ''}. Lower it, or use backend cpu."
            )
        return topology_of(machine, num_gpus or count, allowed, allow_create)
    why_not = why_not or "the driver lists none"
    if backend != "auto":
        raise DiscoveryError(
            f"hardware.backend={backend}; no GPU can be used here ({why_not}). "
            "Use backend cpu, or auto."
        )
    return dataclasses.replace(
        Topology.from_cores(allowed, num_gpus or 1),
        unusable=tuple((name, f"no GPU can be used here ({why_not})") for name in GPU_BACKENDS),
        left_out=machine.hidden + machine.lost,
    )


def topology_of(
    machine: Machine, num_gpus: int, cores: Sequence[int], allow_create: bool = False
) -> Topology:
    """Returns the first GPUs of a machine, each with its share of the cores."""
    devices = _with_cores(machine.devices[:num_gpus], machine.near, cores)
    return Topology(
        devices,
        tuple(row[:num_gpus] for row in machine.links[:num_gpus]),
        tuple(row[:num_gpus] for row in machine.peers[:num_gpus]),
        unusable(devices, this_system(machine.cuda), allow_create),
        cuda=machine.cuda,
        left_out=machine.hidden + machine.lost,
    )


def look() -> Machine:
    """Asks the driver for everything. Never raises for what is missing: the Machine says it."""
    try:
        with nvml_session() as nvml:
            try:
                return _look(nvml)
            except nvml.NVMLError as error:
                raise DiscoveryError(f"NVML: {error}") from error
    except DiscoveryError as error:
        return Machine(why_not=str(error))


@dataclass
class _Reading:
    """One GPU while it is read."""

    number: int  # as nvidia-smi counts
    handle: Any
    uuid: str
    devices: list[Any] = field(default_factory=list)  # handles of its MIG devices
    mig: dict[str, tuple[int, int]] = field(default_factory=dict)  # uuid: ids of its instances
    device: Device | None = None
    near: frozenset[int] = frozenset()


def _look(nvml: Any) -> Machine:
    lost: list[str] = []
    readings = _alive(nvml, [_open(nvml, i, lost) for i in range(nvml.nvmlDeviceGetCount())], lost)
    chosen, hidden = visible(
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        [ListedGpu(one.number, one.uuid, tuple(one.mig.items())) for one in readings],
    )
    by_number = {one.number: one for one in readings}
    wanted: list[_Reading] = []
    for number, uuids in chosen:
        try:
            wanted.append(_read(nvml, by_number[number], uuids, len(wanted)))
        except nvml.NVMLError as error:
            lost.append(f"GPU {number}: {error}")
    links: LinkTable = ()
    peers: PeerTable = ()
    while wanted:  # until no more GPUs are lost on the way
        try:
            links, peers = read_links(nvml, [one.handle for one in wanted])
            break
        except nvml.NVMLError as error:
            left = _alive(nvml, wanted, lost)
            if len(left) == len(wanted):  # it answers again, or all does but this
                lost.append(f"links between GPUs: {error}")
                break
            wanted = left
    return Machine(
        devices=tuple(
            dataclasses.replace(one.device, index=index)
            for index, one in enumerate(wanted)
            if one.device is not None
        ),
        near=tuple(one.near for one in wanted),
        links=links,
        peers=peers,
        lost=tuple(lost),
        hidden=tuple(hidden),
        driver=str(query(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
        cuda=_cuda(query(nvml, nvml.nvmlSystemGetCudaDriverVersion)),
    )


def _open(nvml: Any, number: int, lost: list[str]) -> _Reading | None:
    """Opens a GPU with its MIG devices; None, and a line in `lost`, if it is gone."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        one = _Reading(number, handle, str(nvml.nvmlDeviceGetUUID(handle)))
        one.devices = mig_handles(nvml, handle)
        for device in one.devices:
            ids = (
                int(query(nvml, nvml.nvmlDeviceGetGpuInstanceId, device) or 0),
                int(query(nvml, nvml.nvmlDeviceGetComputeInstanceId, device) or 0),
            )
            one.mig[str(nvml.nvmlDeviceGetUUID(device))] = ids
        return one
    except nvml.NVMLError as error:
        lost.append(f"GPU {number}: {error}")
        return None


def _alive(nvml: Any, readings: Sequence[_Reading | None], lost: list[str]) -> list[_Reading]:
    """Returns those that still answer; the others are lost."""
    alive = []
    for one in readings:
        if one is None:
            continue
        try:
            nvml.nvmlDeviceGetMemoryInfo(one.handle)
            alive.append(one)
        except nvml.NVMLError as error:
            lost.append(f"GPU {one.number}: {error}")
    return alive


def _read(nvml: Any, one: _Reading, uuids: Sequence[str] | None, index: int) -> _Reading:
    """Reads everything about one GPU; of its MIG devices those with these uuids, or all."""
    device = read_device(nvml, one.handle, index)
    instances: tuple[MigInstance, ...] = ()
    if device.mig_mode:
        instances = read_instances(nvml, one.handle, one.devices, device)
    one.device = dataclasses.replace(
        device,
        mig=tuple(mig for mig in instances if uuids is None or mig.uuid in uuids),
        processes=read_processes(nvml, [one.handle, *one.devices]),
    )
    node = frozenset[int]() if device.numa_node is None else nodes().get(device.numa_node)
    one.near = frozenset(read_cores(nvml, one.handle)) or node or frozenset()
    return one


def _cuda(version: int | None) -> tuple[int, int] | None:
    """Reads 13000 as CUDA 13.0."""
    return (version // 1000, version % 1000 // 10) if version else None


def _cores(wanted: Sequence[int] | None) -> list[int]:
    here = os.sched_getaffinity(0)
    if wanted is None:
        return sorted(here)
    missing = sorted(set(wanted) - here)
    if missing or not wanted:
        raise DiscoveryError(
            f"hardware.cores={list(wanted)}; this process may use {sorted(here)}. Choose of those."
        )
    return sorted(set(wanted))


def _with_cores(
    devices: Sequence[Device], near: Sequence[frozenset[int]], allowed: Sequence[int]
) -> tuple[Device, ...]:
    """Gives each GPU its share of the cores near it; those with the same cores share evenly."""
    sides: dict[tuple[int, ...], list[Device]] = {}
    for device, near_cores in zip(devices, near, strict=False):
        side = tuple(core for core in allowed if core in near_cores) or tuple(allowed)
        sides.setdefault(side, []).append(device)
    result = []
    for side, members in sides.items():
        for place, device in enumerate(members):
            begin = place * len(side) // len(members)  # with fewer cores than GPUs some share one
            cores = share(side, len(members), place) or side[begin : begin + 1]
            result.append(dataclasses.replace(device, cores=cores))
    return tuple(sorted(result, key=lambda device: device.index))
