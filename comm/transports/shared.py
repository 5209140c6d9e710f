"""Reserves pages of a shared file, and claims its words for a process."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gmi_drl.comm.errors import LinkError
from gmi_drl.comm.shm.liveness import is_alive, start_ticks
from gmi_drl.runtime.store.memfd import Memfd

_POPULATE_WRITE: Final = 23  # Linux 5.14
_KEPT_FREE: Final = 64 << 20  # for all else on the machine
_CGROUP: Final = Path("/sys/fs/cgroup")
_FILES: Final = (  # what a cgroup may use, and uses: version 2, and version 1
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Returns the memory that can be had without the kernel ending somebody."""
    limits = [_meminfo()]
    for limit, used in _FILES:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            left = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
            limits.append(left + _page_cache((cgroup / used).with_name("memory.stat")))
    return max(0, min(limits))


def _page_cache(stat: Path) -> int:
    """Returns a cgroup's pages of files: the kernel takes them back before it ends anybody.

    Where files are read and written it fills whatever the cgroup may use.
    """
    numbers = dict(line.split() for line in stat.read_text().splitlines())
    kinds = ("inactive_file", "active_file")
    return sum(int(numbers.get(f"total_{kind}", numbers.get(kind, 0))) for kind in kinds)


def _meminfo() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62  # a kernel that does not say


def reserve_pages(
    memfd: Memfd, nbytes: int, what: str, available: Callable[[], int] = available_bytes
) -> None:
    """Makes the file at least `nbytes` long, all of it backed by memory.

    A full memory is a LinkError here, and not a SIGBUS in whoever writes there later. Pages of
    anonymous files are not bounded by any file system, and asking for more than there is ends in
    the kernel killing processes: so what is available is looked at first.
    """
    before = memfd.size
    missing = nbytes - before
    if missing <= 0:
        return
    room = max(0, available() - _KEPT_FREE)
    if missing > room:
        raise _full(what, missing, f"the machine has {room:,} bytes to spare")
    try:
        os.posix_fallocate(memfd.fd, before, missing)
    except OSError as error:
        raise _full(what, missing, os.strerror(error.errno or 0)) from error


def _full(what: str, nbytes: int, why: str) -> LinkError:
    return LinkError(
        f"{what}: {nbytes:,} bytes of shared memory asked for, and not to be had ({why}). Use "
        "fewer slots, shorter segments or fewer environments per GMI, or free memory."
    )


def words_of(memory: memoryview) -> memoryview:
    """Returns the 64-bit words of shared memory; each is read or written in one access."""
    return memory.cast("Q")


def populate(memory: memoryview) -> None:
    """Enters a mapping's pages in this process's page table, quicker than their faults would."""
    if isinstance(memory.obj, mmap.mmap):
        with contextlib.suppress(OSError):  # an older kernel: they are faulted in
            memory.obj.madvise(_POPULATE_WRITE)


def claim(words: memoryview, pid: int, link: str, end: str) -> None:
    """Makes this process the one that writes an end's words: pid at `pid`, its beginning next.

    LinkError while the process that did so before lives. Killed in here at any point, the next one
    finds a process that is gone, or nobody.
    """
    before = words[pid]
    if before and is_alive(before, words[pid + 1]):
        raise LinkError(
            f"{link}: its {end} is open already, in process {before}. A link has one {end}; a new "
            "one takes over when that process is gone."
        )
    words[pid + 1] = start_ticks(os.getpid()) or 0
    words[pid] = os.getpid()


def peer_text(words: memoryview, pid: int, who: str) -> str:
    """Says what is known of the process at the other end, for an error."""
    process = words[pid]
    if not process:
        return f"{who} has not opened its end yet; is it running?"
    if is_alive(process, words[pid + 1]):
        return f"its process {process} is running."
    return f"its process {process} has ended and was not replaced."
