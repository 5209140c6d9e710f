"""Checks the part of a machine's health that is not of GPUs: memory, limits, cores."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from gmi_drl.gmi.numa import nodes
from gmi_drl.gmi.usage.processes import cgroup_folders
from gmi_drl.placement.topology import Topology, format_cores

from .device_health import HealthFinding

_SHM: Final = Path("/dev/shm")
# NCCL's own buffers between GPUs that do not read each other's memory: what its troubleshooting
# guide gives to containers (--shm-size=1g).
_NCCL_SHM_BYTES: Final = 1 << 30
# Measured with 2 GMIs: 17 descriptors in the launcher, 24 in a GMI; more for each fellow.
_LEAST_FILES: Final = 256


@dataclass(frozen=True)
class Host:
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


def this_host() -> Host:
    """Asks the system; control groups of version 2 are understood."""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    quota = _limit("cpu.max")
    return Host(
        cores=tuple(sorted(os.sched_getaffinity(0))),
        quota_cores=quota,
        nodes=nodes(),
        mem_bytes=psutil.virtual_memory().total,
        mem_limit_bytes=None if (limit := _limit("memory.max")) is None else int(limit),
        shm_bytes=_shm_bytes(),
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        max_locked_bytes=None if locked == resource.RLIM_INFINITY else locked,
        memfd_error=_share_memory(),
    )


def host_findings(host: Host, topology: Topology) -> Iterator[HealthFinding]:
    """Checks cores, memory, what is shared between processes, limits. Pure."""
    gpus = [device for device in topology.devices if device.kind == "gpu"]
    yield _cores(host)
    yield _numa(host, topology)
    limit = host.mem_limit_bytes
    bounded = limit is not None and limit < host.mem_bytes
    yield HealthFinding(
        "memory", "ok", _size(limit if bounded and limit else host.mem_bytes),
        f"the control group's limit; the machine has {_size(host.mem_bytes)}" if bounded else "",
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


def _cores(host: Host) -> HealthFinding:
    value = f"{len(host.cores)} ({format_cores(host.cores)})"
    if host.quota_cores is not None and host.quota_cores < len(host.cores):
        return HealthFinding(
            "cores", "ok", value, f"the control group has time of {host.quota_cores:g} of them: "
            "threads are stopped when it is used up",
            f"Set hardware.cores to {max(1, int(host.quota_cores))} of them.",
        )  # fmt: skip
    return HealthFinding("cores", "ok", value)


def _numa(host: Host, topology: Topology) -> HealthFinding:
    count = len(host.nodes)
    if count < 2:
        return HealthFinding("NUMA", "ok", "one node")
    value = "; ".join(
        f"node {n}: cores {format_cores(sorted(c))}" for n, c in sorted(host.nodes.items())
    )
    far = [
        device
        for device in topology.devices
        if device.numa_node is not None
        and device.cores
        and not host.nodes.get(device.numa_node, frozenset(device.cores)) & set(device.cores)
    ]
    if not far:
        return HealthFinding("NUMA", "ok", value)
    first = far[0]
    return HealthFinding(
        "NUMA", "ok", value,
        f"GPU {first.index} is at node {first.numa_node}, of whose cores this process may use none",
        "Let it (taskset, cpuset), or experience goes between sockets.",
    )  # fmt: skip


def _shm(host: Host, topology: Topology, gpus: int) -> HealthFinding:
    if gpus < 2:
        value = "-" if host.shm_bytes is None else _size(host.shm_bytes)
        return HealthFinding("/dev/shm", "ok", value, "a run on this machine needs none")
    have = host.shm_bytes or 0
    all_peers = bool(topology.peers) and all(all(row) for row in topology.peers)
    if have >= _NCCL_SHM_BYTES or all_peers:
        return HealthFinding("/dev/shm", "ok", _size(have))
    return HealthFinding(
        "/dev/shm", "broken", _size(have),
        f"NCCL moves gradients through it between GPUs, and may need {_size(_NCCL_SHM_BYTES)}",
        "Enlarge it (mount -o remount,size=1g /dev/shm; docker run --shm-size=1g).",
    )  # fmt: skip


def _files(host: Host) -> HealthFinding:
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
    """Shares a page as GMIs do; why it cannot be done, or ""."""
    try:
        file = os.memfd_create("gmi-drl-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, mmap.PAGESIZE)
            mmap.mmap(file, mmap.PAGESIZE).close()
        finally:
            os.close(file)
    except OSError as error:
        return error.strerror or str(error)
    return ""
