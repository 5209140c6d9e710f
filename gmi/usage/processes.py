"""Reads what processes use: memory of the host, cores, and what is left (/proc, cgroups).

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

IDLE_CORES: Final = 0.02  # a process that uses less of a core does nothing: it waits
_PROC: Final = Path("/proc")
_CGROUP: Final = Path("/sys/fs/cgroup")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Of what a cgroup has taken, what the kernel gives back before it kills: pages of files, whether
# read lately or not (what is in memory alone, of tmpfs, is in neither), and its own caches.
_RECLAIMED: Final = ("active_file", "inactive_file", "slab_reclaimable")


def with_children(pids: Iterable[int]) -> list[int]:
    """Returns these processes and all that come from them (environments may have some)."""
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
    """Returns the processes that these were forked from."""
    parents_of = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            parents_of.add(psutil.Process(pid).ppid())
    return parents_of


def memory_bytes(pids: Iterable[int], sharing: Iterable[int] = ()) -> int:
    """Returns the host memory they hold, at their peaks so far, what they share counted once.

    The pages of `sharing`, which they were forked from, count too: the kernel splits a page evenly
    among all that map it (PSS).
    """
    shares = sum(_share_bytes(pid) for pid in sharing)
    return shares + sum(_share_bytes(pid) + _above_now_bytes(pid) for pid in pids)


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the seconds of CPU they have used so far, with children that have ended."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True)
class HostMemory:
    """The memory left of the machine, or of a cgroup that this process is in if that is less."""

    free_bytes: int
    of_bytes: int  # the size of that machine, or the limit of that cgroup
    whose: str = field(default="the machine", compare=False)


def host_memory() -> HostMemory:
    """Reads it as it is now. Pages of files that the kernel would give back count as free."""
    fields = _fields(_PROC / "meminfo")
    machine = HostMemory(fields["MemAvailable"] * 1024, fields["MemTotal"] * 1024)
    return min([machine, *_cgroups()], key=lambda memory: memory.free_bytes)


def oom_kills() -> int:
    """Counts the processes killed for want of memory, in our cgroups or else on the machine."""
    counts = []
    for folder in cgroup_folders("memory"):
        for name in ("memory.events", "memory.oom_control"):  # v2, v1
            with contextlib.suppress(OSError):
                counts.append(_fields(folder / name).get("oom_kill", 0))
    if counts:
        return max(counts)  # each counts those of the ones below it
    try:
        return _fields(_PROC / "vmstat").get("oom_kill", 0)
    except OSError:
        return 0


def offer_to_oom_killer(pids: Iterable[int]) -> None:
    """Makes the kernel take these first when memory runs out, and not who measures them."""
    for pid in pids:
        with contextlib.suppress(OSError):  # gone, or not ours
            (_PROC / str(pid) / "oom_score_adj").write_text("1000")


def _share_bytes(pid: int) -> int:
    try:
        return _fields(_PROC / str(pid) / "smaps_rollup")["Pss"] * 1024
    except (OSError, KeyError):  # gone, or a kernel that does not say it: its own pages at least
        with contextlib.suppress(OSError):
            pages = (_PROC / str(pid) / "statm").read_text().split()
            return (int(pages[1]) - int(pages[2])) * _PAGE
    return 0


def _above_now_bytes(pid: int) -> int:
    try:
        fields = _fields(_PROC / str(pid) / "status")
        return max(0, fields["VmHWM"] - fields["VmRSS"]) * 1024
    except (OSError, KeyError):
        return 0


def _fields(path: Path) -> dict[str, int]:
    """Reads a file of names and numbers, one pair a line; other lines are passed over."""
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
    """Yields the cgroups this process is in, of v2 and v1's `controller`, and all above."""
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
        # In a container the name may be the host's, of which only the mount point is seen.
        while path != base:
            yield path
            path = path.parent
        yield base
