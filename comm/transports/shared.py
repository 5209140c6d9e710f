"""Reserves pages of a shared file, and claims its words for a process."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Final

from gmi_drl.comm.errors import LinkError
from gmi_drl.comm.shm.liveness import is_alive, start_ticks
from gmi_drl.gmi.usage.processes import host_memory
from gmi_drl.runtime.store.memfd import Memfd

_POPULATE_WRITE: Final = 23  # Linux 5.14
_KEPT_FREE: Final = 64 << 20  # for all else on the machine


def reserve_pages(memfd: Memfd, nbytes: int, what: str) -> None:
    """Makes the file at least `nbytes` long, all of it backed by memory.

    A full memory is a LinkError here, not a SIGBUS later. No file system bounds anonymous files, so
    what is available is looked at first: the kernel kills processes when too much is asked for.
    """
    before = memfd.size
    missing = nbytes - before
    if missing <= 0:
        return
    room = max(0, host_memory().free_bytes - _KEPT_FREE)
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

    LinkError while the process that did so before lives. It may be killed here at any point.
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
