"""Reads the memory and cores that processes use, and the memory left (/proc, cgroups).

All are read from outside: the processes are neither asked nor stopped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

IDLE_CORES: Final = 0.02  # a process that uses less of a core only waits
_PROC: Final = Path("/proc")
_CGROUP: Final = Path("/sys/fs/cgroup")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# The part of a cgroup's memory that the kernel reclaims before it kills: pages of files, active or
# not (tmpfs is in neither), and its own caches.
_RECLAIMED: Final = ("active_file", "inactive_file", "slab_reclaimable")


def with_children(pids: Iterable[int]) -> list[int]:
    """Returns these processes and all of their descendants (environments may have some)."""
    family, queue = [], list(dict.fromkeys(pids))
    while queue:
        pid = queue.pop()
        family.append(pid)
        with contextlib.suppress(OSError):
            for task in (_PROC / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    queue += map(int, (task / "children").read_text().split())
    return family


def parents(pids: Iterable[int]) -> set[int]:
    """Returns the parents of these processes."""
    parents_of = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            parents_of.add(psutil.Process(pid).ppid())
    return parents_of


def memory_bytes(pids: Iterable[int], sharing: Iterable[int] = ()) -> int:
    """Returns the peak host memory of these processes; shared pages count once.

    The pages of `sharing`, from which they were forked, count too, since the kernel splits a page
    evenly among all that map it (PSS).
    """
    shares = sum(_share_bytes(pid) for pid in sharing)
    return shares + sum(_share_bytes(pid) + _peak_excess_bytes(pid) for pid in pids)


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the CPU seconds of these processes, with children that have ended."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True)
class HostMemory:
    """The memory left of the machine, or of a cgroup of this process if that is less."""

    free_bytes: int
    of_bytes: int  # the size of that machine, or the limit of that cgroup
    whose: str = field(default="the machine", compare=False)


def host_memory() -> HostMemory:
    """Reads the memory left now. Pages of files that the kernel would reclaim count as free."""
    fields = _fields(_PROC / "meminfo")
    machine = HostMemory(fields["MemAvailable"] * 1024, fields["MemTotal"] * 1024)
    return min([machine, *_cgroups()], key=lambda memory: memory.free_bytes)


def oom_kills() -> int:
    """Counts processes killed for want of memory, in this process's cgroups or on the machine."""
    counts = []
    for folder in cgroup_folders("memory"):
        for name in ("memory.events", "memory.oom_control"):  # v2, v1
            with contextlib.suppress(OSError):
                counts.append(_fields(folder / name).get("oom_kill", 0))
    if counts:
        return max(counts)  # each count includes those of the cgroups below
    try:
        return _fields(_PROC / "vmstat").get("oom_kill", 0)
    except OSError:
        return 0


def offer_to_oom_killer(pids: Iterable[int]) -> None:
    """Has the kernel kill these processes first when memory runs out."""
    for pid in pids:
        with contextlib.suppress(OSError):  # gone, or another user's
            (_PROC / str(pid) / "oom_score_adj").write_text("1000")


def _share_bytes(pid: int) -> int:
    try:
        return _fields(_PROC / str(pid) / "smaps_rollup")["Pss"] * 1024
    except (OSError, KeyError):  # gone, or not reported: use at least its own pages
        with contextlib.suppress(OSError):
            pages = (_PROC / str(pid) / "statm").read_text().split()
            return (int(pages[1]) - int(pages[2])) * _PAGE
    return 0


def _peak_excess_bytes(pid: int) -> int:
    try:
        fields = _fields(_PROC / str(pid) / "status")
        return max(0, fields["VmHWM"] - fields["VmRSS"]) * 1024
    except (OSError, KeyError):
        return 0


def _fields(path: Path) -> dict[str, int]:
    """Reads a file with a name and a number a line; other lines are ignored."""
    numbers = {}
    for line in path.read_text().splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[1].isdigit():
            numbers[parts[0].rstrip(":")] = int(parts[1])
    return numbers


def _cgroups() -> Iterator[HostMemory]:
    for folder in cgroup_folders("memory"):
        for limit, used, prefix in (
            ("memory.max", "memory.current", ""),  # v2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # v1
        ):
            # "max", or no such file: there is no limit.
            with contextlib.suppress(OSError, ValueError):
                most = int((folder / limit).read_text())
                in_use = int((folder / used).read_text())
                with contextlib.suppress(OSError):
                    stat = _fields(folder / "memory.stat")
                    in_use -= sum(stat.get(prefix + name, 0) for name in _RECLAIMED)
                yield HostMemory(max(0, most - max(0, in_use)), most, f"cgroup {folder}")


def cgroup_folders(controller: str) -> Iterator[Path]:
    """Yields this process's cgroups, of v2 and of v1's `controller`, and all above them."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = _CGROUP / controller if controllers else _CGROUP
        path = base / name.lstrip("/")
        # In a container the name may be the host's, of which only the mount point is visible.
        while path != base:
            yield path
            path = path.parent
        yield base
