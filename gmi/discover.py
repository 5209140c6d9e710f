"""Discovers the devices of this machine: GPUs by NVML, or groups of cores when there is none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gmi_drl.placement.topology import Device, Topology, share_at_least_one

from . import nvml as driver
from .backends.backend import CORE_BACKENDS, GPU_BACKENDS, this_system, unusable
from .errors import DiscoveryError


@dataclass(frozen=True)
class Machine:
    """Holds what the driver reports: the GPUs that this process may use, and their links."""

    devices: tuple[Device, ...] = ()  # without their cores
    near: tuple[frozenset[int], ...] = ()  # the cores near each
    links: driver.LinkTable = ()
    peers: driver.PeerTable = ()
    lost: tuple[str, ...] = ()  # GPUs that do not answer, each with its reason
    hidden: tuple[str, ...] = ()  # GPUs that CUDA_VISIBLE_DEVICES leaves out
    driver: str = ""  # its version; none where it does not answer
    cuda: tuple[int, int] | None = None  # the newest that the driver can run
    why_not: str = ""  # why NVML cannot be asked

    @property
    def left_out(self) -> tuple[str, ...]:
        """Returns the reasons why other GPUs are not among the devices."""
        return (*self.hidden, *self.lost, *([self.why_not] if self.why_not else []))


def discover(
    num_gpus: int | None = None, backend: str = "auto", cores: Sequence[int] | None = None,
    allow_create: bool = False, without: Collection[str] = (),
) -> Topology:  # fmt: skip
    """Finds the devices to use. `num_gpus` None: all GPUs, or one group of cores.

    `backend` auto takes GPUs if there are any, cpu never does, any other must have them.
    `cores`: those to use (None: all this process may run on). `allow_create`: a run may make MIG
    instances. `without`: UUIDs of GPUs to leave out. Takes milliseconds, and starts neither CUDA
    nor a daemon. DiscoveryError says what is missing.
    """
    allowed = _cores(cores)
    if num_gpus is not None and num_gpus < 1:
        raise DiscoveryError(f"hardware.num_gpus={num_gpus}; it must be 1 or more.")
    if backend in CORE_BACKENDS:
        return Topology.from_cores(allowed, num_gpus or 1)
    machine = look(without)
    why_not = "; ".join(machine.left_out)
    count = len(machine.devices)
    if count:
        if num_gpus is not None and num_gpus > count:
            raise DiscoveryError(
                f"hardware.num_gpus={num_gpus}; {count} can be used here"
                f"{f' ({why_not})' if why_not else ''}. Lower it, or use backend cpu."
            )
        return _topology_of(machine, num_gpus or count, allowed, allow_create)
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


def _topology_of(
    machine: Machine, num_gpus: int, cores: Sequence[int], allow_create: bool
) -> Topology:
    """Returns the first GPUs of a machine, each with its share of the cores."""
    devices = _with_cores(machine.devices[:num_gpus], machine.near, cores)
    return Topology(
        devices, tuple(row[:num_gpus] for row in machine.links[:num_gpus]),
        tuple(row[:num_gpus] for row in machine.peers[:num_gpus]),
        unusable(devices, this_system(machine.cuda), allow_create), cuda=machine.cuda,
        left_out=machine.hidden + machine.lost,
    )  # fmt: skip


def look(without: Collection[str] = ()) -> Machine:
    """Asks the driver for everything. It never raises for what is missing, which the Machine has.

    GPUs with the UUIDs of `without` count as lost.
    """
    try:
        with driver.nvml_session() as nvml:
            try:
                return _look(nvml, without)
            except nvml.NVMLError as error:
                raise DiscoveryError(f"NVML: {error}") from error
    except DiscoveryError as error:
        return Machine(why_not=str(error))


_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class _Gpu:
    """A GPU that the driver lists."""

    number: int  # as nvidia-smi counts
    handle: Any
    uuid: str
    mig: dict[str, Any]  # handles of its MIG devices by uuid


def _look(nvml: Any, without: Collection[str]) -> Machine:
    lost: list[str] = []

    def answers(numbers: Iterable[int], ask: Callable[[int], _Answer]) -> dict[int, _Answer]:
        """Calls `ask` for these GPUs; notes those as lost that do not answer."""
        results = {}
        for number in numbers:
            try:
                results[number] = ask(number)
            except nvml.NVMLError as error:
                lost.append(f"GPU {number}: {error}")
        return results

    gpus = answers(range(nvml.nvmlDeviceGetCount()), lambda number: _open(nvml, number))
    chosen = _visible(os.environ.get("CUDA_VISIBLE_DEVICES"), list(gpus.values()))
    visible = set(chosen)
    for number in [number for number in chosen if gpus[number].uuid in without]:
        del chosen[number]
        lost.append(f"GPU {number}: this run has lost it")
    reason = f"is not in CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}"
    read_gpus = answers(chosen, lambda number: _read(nvml, gpus[number], chosen[number]))
    links: driver.LinkTable = ()
    peers: driver.PeerTable = ()
    while read_gpus:  # until no GPU is lost while it is read
        try:
            links, peers = driver.read_links(nvml, [gpus[number].handle for number in read_gpus])
            break
        except nvml.NVMLError as error:
            alive = answers(read_gpus, lambda n: nvml.nvmlDeviceGetMemoryInfo(gpus[n].handle))
            if len(alive) == len(read_gpus):  # it answers again, or fails at this alone
                lost.append(f"links between GPUs: {error}")
                break
            read_gpus = {number: read_gpus[number] for number in alive}
    version = driver.query(nvml, nvml.nvmlSystemGetCudaDriverVersion)  # 13000 is CUDA 13.0
    return Machine(
        devices=tuple(
            dataclasses.replace(gpu, index=i) for i, (gpu, _) in enumerate(read_gpus.values())
        ),
        near=tuple(near for _, near in read_gpus.values()),
        links=links,
        peers=peers,
        lost=tuple(lost),
        hidden=tuple(f"GPU {number} {reason}" for number in gpus if number not in visible),
        driver=str(driver.query(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
        cuda=(version // 1000, version % 1000 // 10) if version else None,
    )


def _open(nvml: Any, number: int) -> _Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    mig = {str(nvml.nvmlDeviceGetUUID(part)): part for part in driver.mig_handles(nvml, handle)}
    nvml.nvmlDeviceGetMemoryInfo(handle)  # a lost GPU may fail at this alone
    return _Gpu(number, handle, str(nvml.nvmlDeviceGetUUID(handle)), mig)


def _visible(variable: str | None, gpus: Sequence[_Gpu]) -> dict[int, list[str] | None]:
    """Returns the GPUs that a CUDA_VISIBLE_DEVICES lets a process see, in their order.

    The value of a GPU has the uuids of its MIG devices that are named, or is None for all of them.
    CUDA reads names from the left (an index, a UUID or a unique beginning of one) and stops at the
    first that it does not know. An index here is nvidia-smi's, in the order of PCI addresses, as
    for CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID; so UUIDs are better.
    """
    if variable is None:
        return {gpu.number: None for gpu in gpus}
    chosen: dict[int, list[str] | None] = {}
    for name in map(str.strip, variable.split(",")):
        if name.startswith("GPU-"):
            matches = [gpu.number for gpu in gpus if gpu.uuid.startswith(name)]
        else:
            matches = [gpu.number for gpu in gpus if name == str(gpu.number) or name in gpu.mig]
        if len(matches) != 1:
            break
        if not name.startswith("MIG-"):
            chosen[matches[0]] = None
        elif (uuids := chosen.setdefault(matches[0], [])) is not None:
            uuids.append(name)
    return chosen


def _read(nvml: Any, gpu: _Gpu, uuids: Sequence[str] | None) -> tuple[Device, frozenset[int]]:
    """Reads a GPU with its MIG devices (all, or those of `uuids`), and the cores near it."""
    device = driver.read_device(nvml, gpu.handle)
    instances = driver.read_instances(nvml, gpu.handle, list(gpu.mig.values()), device)
    device = dataclasses.replace(
        device,
        mig=tuple(mig for mig in instances if uuids is None or mig.uuid in uuids),
        processes=driver.read_processes(nvml, [gpu.handle, *gpu.mig.values()]),
    )
    return device, driver.read_cores(nvml, gpu.handle, device.numa_node)


def _cores(cores: Sequence[int] | None) -> list[int]:
    cpus = os.sched_getaffinity(0)
    if cores is None:
        return sorted(cpus)
    missing = sorted(set(cores) - cpus)
    if missing or not cores:
        raise DiscoveryError(
            f"hardware.cores={list(cores)}; this process may use {sorted(cpus)}. Choose of those."
        )
    return sorted(set(cores))


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
        for index, device in enumerate(members):
            cores = share_at_least_one(side, len(members), index)
            result.append(dataclasses.replace(device, cores=cores))
    return tuple(sorted(result, key=lambda device: device.index))
