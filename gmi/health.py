"""Finds what is well on this machine, what is not here, and what is broken.

Findings are about GPUs, from `look` and `discover`, about backends, which are tried, and about the
host's memory, limits and cores.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from gmi_drl.placement.topology import GpuProcess, Topology, format_cores
from gmi_drl.runtime import Memfd

from . import lease
from .backends.backend import CORE_BACKENDS, GPU_BACKENDS, backend_of
from .discover import Machine
from .errors import GmiError
from .nvml import numa_nodes
from .usage.processes import cgroup_folders

HealthState = Literal["ok", "not here", "broken"]
_NVIDIA: Final = "0x10de"
_PCI: Final = Path("/sys/bus/pci/devices")
_DRIVER: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
_LOST: Final = "Look for Xid lines in dmesg; reset the GPU (nvidia-smi -r) or restart the machine."
_SHM: Final = Path("/dev/shm")
# For NCCL's buffers between GPUs without peer access, as NCCL's troubleshooting guide has it for
# containers (--shm-size=1g).
_NCCL_SHM_BYTES: Final = 1 << 30
# Measured with 2 GMIs: 17 descriptors in the launcher, 24 in a GMI; more with each GMI.
_LEAST_FILES: Final = 256


@dataclass(frozen=True)
class HealthFinding:
    """The finding on one thing. Broken: it is here, and does not work as it should."""

    name: str
    state: HealthState
    value: str
    why: str = ""  # the reason of a bad state, or a remark on a good one
    remedy: str = ""


def gpu_findings(machine: Machine, topology: Topology) -> Iterator[HealthFinding]:
    """Checks driver, GPUs, how they reach each other, and who is on them."""
    yield _driver(machine)
    yield _gpus(machine)
    if machine.devices:
        yield _peers(topology)
        yield _processes(machine)


def backend_findings(
    topology: Topology, attempt: Callable[[str, Topology], str]
) -> Iterator[HealthFinding]:
    """Checks each backend by `attempt`, which tries it on this topology or raises GmiError."""
    unusable = dict(topology.unusable)
    on_gpu = any(device.kind == "gpu" for device in topology.devices)
    for backend in CORE_BACKENDS:
        yield HealthFinding(f"backend {backend}", "ok", backend_of(backend).summary)
    for backend in GPU_BACKENDS:
        if not on_gpu or backend in unusable:
            text = unusable[backend] if on_gpu else "there is no GPU that can be used"
            why, _, remedy = text.partition("; ")
            yield HealthFinding(f"backend {backend}", "not here", "-", why, remedy)
            continue
        try:
            yield HealthFinding(f"backend {backend}", "ok", attempt(backend, topology))
        except GmiError as error:
            yield HealthFinding(f"backend {backend}", "broken", "-", str(error))
    if on_gpu and unusable.keys() >= set(GPU_BACKENDS):
        in_mig = all(device.mig_mode for device in topology.devices)
        candidate = next(name for name in GPU_BACKENDS if backend_of(name).uses_mig == in_mig)
        why, _, remedy = unusable[candidate].partition("; ")
        yield HealthFinding("GPU backends", "broken", "none can be used", why, remedy)


def left_behind() -> HealthFinding:
    """Removes daemons and MIG instances that killed launchers have left behind."""
    swept = [outcome for outcome in lease.sweep() if outcome.undone or outcome.error]
    failed = [f"{outcome.lease.directory}: {outcome.error}" for outcome in swept if outcome.error]
    if failed:
        count = f"{len(failed)} of {len(swept)}"
        return HealthFinding("left by killed runs", "broken", count, "; ".join(failed))
    value = f"{len(swept)}, now removed" if swept else "nothing"
    return HealthFinding("left by killed runs", "ok", value)


def _driver(machine: Machine) -> HealthFinding:
    if not machine.why_not:
        cuda = ".".join(map(str, machine.cuda)) if machine.cuda else "unknown"
        value = f"{machine.driver or 'unknown'}, runs CUDA up to {cuda}"
        return HealthFinding("driver", "ok", value)
    if any(path.exists() for path in _DRIVER):
        return HealthFinding(
            "driver", "broken", "-", machine.why_not,
            "See what nvidia-smi says. After an update of the driver, restart the machine.",
        )  # fmt: skip
    count = _num_pci_gpus()
    if not count:
        return HealthFinding("driver", "not here", "-", machine.why_not)
    return HealthFinding(
        "driver", "not here", "-", f"{machine.why_not}, and there are {count} NVIDIA devices on "
        "the PCI bus", "Install NVIDIA's driver; in a container, give it the GPUs (--gpus all).",
    )  # fmt: skip


def _gpus(machine: Machine) -> HealthFinding:
    counts = Counter(device.name for device in machine.devices)
    value = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"
    if machine.lost:
        return HealthFinding("GPUs", "broken", value, "; ".join(machine.lost), _LOST)
    for device in machine.devices:
        gpu = f"GPU {device.index} ({device.name})"
        if device.compute_mode == "prohibited":
            why = f"{gpu} has compute mode prohibited: no process may use it"
            return HealthFinding("GPUs", "broken", value, why, f"nvidia-smi -i {device.uuid} -c 0")
        if device.mig_mode and not device.mig:
            return HealthFinding(
                "GPUs", "broken", value, f"{gpu} is in MIG mode and has no instance to be used by",
                "Make some (hardware.allow_create: true, or nvidia-smi mig -cgi), or turn MIG off: "
                f"nvidia-smi -i {device.uuid} -mig 0",
            )  # fmt: skip
    if not machine.devices:
        listed = "" if machine.why_not else "the driver lists none"
        why = "; ".join(machine.hidden) or listed
        return HealthFinding("GPUs", "not here", value, why)
    return HealthFinding("GPUs", "ok", value, "; ".join(machine.hidden))


def _peers(topology: Topology) -> HealthFinding:
    count = len(topology.devices)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if not pairs:
        return HealthFinding("peer access", "not here", "one GPU")
    connected = [(i, j) for i, j in pairs if topology.peers and topology.peers[i][j]]
    if len(connected) == len(pairs):
        return HealthFinding("peer access", "ok", f"all {count} GPUs read each other's memory")
    i, j = next(pair for pair in pairs if pair not in connected)
    return HealthFinding(
        "peer access", "ok" if connected else "not here", f"{len(connected)} of {len(pairs)} pairs",
        f"such as GPU {i} and GPU {j} ({topology.links[i][j] or 'unknown'}): what goes between "
        "them goes through the host" if topology.links else "the driver does not say",
    )  # fmt: skip


def _processes(machine: Machine) -> HealthFinding:
    names = [
        f"GPU {device.index}: {_process_text(process)}"
        for device in machine.devices
        for process in device.processes
    ]
    if not names:
        return HealthFinding("processes on GPUs", "ok", "none")
    computed_on = (d for d in machine.devices if any(p.kind != "graphics" for p in d.processes))
    exclusive = next((d for d in computed_on if d.compute_mode == "exclusive"), None)
    if exclusive is not None:
        return HealthFinding(
            "processes on GPUs", "broken", "; ".join(names),
            f"GPU {exclusive.index} has compute mode exclusive, and somebody has it",
            "Wait for its process, end it, or choose other GPUs (CUDA_VISIBLE_DEVICES).",
        )  # fmt: skip
    return HealthFinding(
        "processes on GPUs", "ok", "; ".join(names),
        "a run shares SMs and memory with them, and what it measures is disturbed",
    )  # fmt: skip


def _process_text(process: GpuProcess) -> str:
    """Names a process, and its user if this process can see it."""
    memory = "" if process.mem_bytes is None else f", {process.mem_bytes / 2**30:.1f} GiB"
    owner = ""
    with contextlib.suppress(psutil.Error):
        details = psutil.Process(process.pid)
        owner = f" ({details.name()} of {details.username()})"
    return f"{process.pid}{owner}, {process.kind}{memory}"


def _num_pci_gpus() -> int:
    """Counts NVIDIA's display controllers on the PCI bus, usable here or not."""
    count = 0
    for device in _PCI.glob("*"):
        with contextlib.suppress(OSError):
            vendor = (device / "vendor").read_text().strip()
            count += vendor == _NVIDIA and (device / "class").read_text().startswith("0x03")
    return count


# ---- the host


@dataclass(frozen=True)
class HostResources:
    """The part of the machine that this process may use. None: no limit, or not known."""

    cores: tuple[int, ...]
    quota_cores: float | None  # cores' worth of time that the control group has
    nodes: Mapping[int, frozenset[int]]  # NUMA nodes with their cores
    mem_bytes: int
    mem_limit_bytes: int | None  # of the control group
    shm_bytes: int | None  # /dev/shm, in all; None: not there
    max_files: int  # descriptors of a process
    max_locked_bytes: int | None
    memfd_error: str = ""  # why memory cannot be shared between processes


def this_host() -> HostResources:
    """Reads the resources of this host, with limits of control groups of version 2."""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    quota = _limit("cpu.max")
    return HostResources(
        cores=tuple(sorted(os.sched_getaffinity(0))), quota_cores=quota, nodes=numa_nodes(),
        mem_bytes=psutil.virtual_memory().total,
        mem_limit_bytes=None if (limit := _limit("memory.max")) is None else int(limit),
        shm_bytes=_shm_bytes(), max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        max_locked_bytes=None if locked == resource.RLIM_INFINITY else locked,
        memfd_error=_share_memory(),
    )  # fmt: skip


def host_findings(host: HostResources, topology: Topology) -> Iterator[HealthFinding]:
    """Checks cores, memory, what is shared between processes, limits."""
    gpus = [device for device in topology.devices if device.kind == "gpu"]
    yield _cores(host)
    yield _numa(host, topology)
    limit = host.mem_limit_bytes
    is_limited = limit is not None and limit < host.mem_bytes
    yield HealthFinding(
        "memory", "ok", _size(limit if is_limited and limit else host.mem_bytes),
        f"the control group's limit; the machine has {_size(host.mem_bytes)}" if is_limited else "",
    )  # fmt: skip
    if host.memfd_error:
        yield HealthFinding(
            "shared memory", "broken", "-", f"memfd_create: {host.memfd_error}",
            "GMIs share memory that way: let the sandbox or seccomp profile allow it.",
        )  # fmt: skip
    else:
        yield HealthFinding("shared memory", "ok", "memfd: nothing of a run lies in /dev/shm")
    yield _shm(host, topology, len(gpus))
    yield _files(host)
    locked = "unlimited" if host.max_locked_bytes is None else _size(host.max_locked_bytes)
    yield HealthFinding("locked memory", "ok", locked, "a run on one machine needs none")


def _cores(host: HostResources) -> HealthFinding:
    value = f"{len(host.cores)} ({format_cores(host.cores)})"
    if host.quota_cores is not None and host.quota_cores < len(host.cores):
        return HealthFinding(
            "cores", "ok", value, f"the control group has time of {host.quota_cores:g} of them: "
            "threads are stopped when it is used up",
            f"Set hardware.cores to {max(1, int(host.quota_cores))} of them.",
        )  # fmt: skip
    return HealthFinding("cores", "ok", value)


def _numa(host: HostResources, topology: Topology) -> HealthFinding:
    count = len(host.nodes)
    if count < 2:
        return HealthFinding("NUMA", "ok", "one node")
    value = "; ".join(
        f"node {n}: cores {format_cores(sorted(cores))}" for n, cores in sorted(host.nodes.items())
    )
    remote = [
        device
        for device in topology.devices
        if device.numa_node is not None
        and device.cores
        and not host.nodes.get(device.numa_node, frozenset(device.cores)) & set(device.cores)
    ]
    if not remote:
        return HealthFinding("NUMA", "ok", value)
    gpu = remote[0]
    return HealthFinding(
        "NUMA", "ok", value,
        f"GPU {gpu.index} is at node {gpu.numa_node}, of whose cores this process may use none",
        "Let it (taskset, cpuset), or experience goes between sockets.",
    )  # fmt: skip


def _shm(host: HostResources, topology: Topology, gpus: int) -> HealthFinding:
    if gpus < 2:
        value = "-" if host.shm_bytes is None else _size(host.shm_bytes)
        return HealthFinding("/dev/shm", "ok", value, "a run on this machine needs none")
    nbytes = host.shm_bytes or 0
    all_peers = bool(topology.peers) and all(all(row) for row in topology.peers)
    if nbytes >= _NCCL_SHM_BYTES or all_peers:
        return HealthFinding("/dev/shm", "ok", _size(nbytes))
    return HealthFinding(
        "/dev/shm", "broken", _size(nbytes),
        f"NCCL moves gradients through it between GPUs, and may need {_size(_NCCL_SHM_BYTES)}",
        "Enlarge it (mount -o remount,size=1g /dev/shm; docker run --shm-size=1g).",
    )  # fmt: skip


def _files(host: HostResources) -> HealthFinding:
    value = f"{host.max_files:,} of a process"
    if host.max_files >= _LEAST_FILES:
        return HealthFinding("open files", "ok", value)
    return HealthFinding(
        "open files", "broken", value, f"a run needs some tens, and {_LEAST_FILES} with many GMIs",
        "ulimit -n 4096",
    )  # fmt: skip


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _limit(name: str) -> float | None:
    """Returns the least that the control groups above this process allow; cpu.max in cores."""
    limits = []
    for group in cgroup_folders("memory"):
        try:
            words = (group / name).read_text().split()
        except OSError:
            continue
        if words and words[0] != "max":
            limits.append(int(words[0]) / (int(words[1]) if len(words) > 1 else 1))
    return min(limits, default=None)


def _shm_bytes() -> int | None:
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def _share_memory() -> str:
    """Shares a page as GMIs do; returns why it cannot be done, or ""."""
    try:
        with contextlib.closing(Memfd.create("gmi-drl-doctor", mmap.PAGESIZE)) as memfd:
            memfd.map()
    except OSError as error:
        return error.strerror or str(error)
    return ""
