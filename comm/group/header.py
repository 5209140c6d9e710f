"""The header of a group's shared memory has a record for each rank, written by that rank alone.

64-bit words; one record of 1024 bytes a rank, after one for the group:

    seq       which meeting this rank has arrived at: its generation (16 bits), its number (48)
    tag[2]    what it does there, of odd and of even meetings
    value[2]  a number it brings along
    sleep     rank + 1 of whose seq it sleeps on, 0 when awake
    left      LEFT or DONE once it will not arrive again; `text` then says why, or what came of it;
              TOLD if all ranks know why from what they found at the meeting they left together
    started   when the process that joined as this rank began, in the kernel's ticks
    pid       the number of that process
    cores     bit set of the cores it may use
    text      length and UTF-8 bytes, read by others only after a mismatch or when it has left

A rank's writer is the process that has joined as it, one at a time: a restarted process takes its
record over only when the one before it is gone.
"""

from __future__ import annotations

import os
from typing import Final

from gmi_drl.comm.errors import GroupClosed
from gmi_drl.comm.shm.liveness import is_alive, start_ticks

MAGIC: Final = 0x32474D4944524C31  # "2GMIDRL1"
MAX_SIZE: Final = 4096
RECORD_BYTES: Final = 1024
RECORD: Final = RECORD_BYTES // 8
SEQ, TAG, VALUE, SLEEP, LEAVING, STARTED, PID, CORES, TEXT = 0, 1, 3, 16, 17, 18, 19, 24, 56
TEXT_BYTES: Final = (RECORD - TEXT - 1) * 8
LEFT, DONE, TOLD = 1, 2, 3  # of LEAVING: gave up, finished, and gave up together with all
GENERATION: Final = 48  # the lowest bit of a seq's generation


def header_bytes(size: int) -> int:
    """Returns the bytes of the header of a group of `size` ranks."""
    return RECORD_BYTES * (1 + size)


def write_header(header: memoryview, size: int) -> None:
    """Marks fresh zeros as the header of a group of `size` ranks."""
    words = header.cast("Q")
    words[0], words[1] = MAGIC, size


def check_header(words: memoryview, size: int) -> None:
    """Raises GroupClosed unless these are the words of a group of `size`."""
    if words[0] != MAGIC or words[1] != size:
        raise GroupClosed(
            f"the shared memory is not that of a group of {size} (magic {words[0]:#x}, "
            f"size {words[1]}). Pass the GroupSpec on as it is."
        )


def record(rank: int) -> int:
    """Returns where a rank's record begins, in words."""
    return (1 + rank) * RECORD


def claim(words: memoryview, rank: int, member: str) -> bool:
    """Makes this process the writer of a record; whether another process was that before it.

    Killed at any point in here, the next one to claim finds a process that is gone, or a record
    that nobody has claimed.
    """
    base = record(rank)
    before = words[base + PID]
    if before and is_alive(before, words[base + STARTED]):
        raise GroupClosed(
            f"rank {rank} ({member}) of this group was joined already, by process {before}. "
            "Each rank joins once, and again when its process is gone; a new gang needs a new "
            "group."
        )
    words[base + SLEEP] = 0
    words[base + STARTED] = start_ticks(os.getpid()) or 0
    words[base + PID] = os.getpid()
    cores = [0] * (TEXT - CORES)
    for core in os.sched_getaffinity(0):
        if core < len(cores) * 64:
            cores[core // 64] |= 1 << core % 64
    for index, word in enumerate(cores):
        words[base + CORES + index] = word
    return bool(before)


def cores_suffice(words: memoryview, size: int) -> bool:
    """Tells whether every rank can have a core to itself, so that spinning takes it from nobody.

    Ranks that are threads of one process have not: Python runs one of them at a time.
    """
    if len({words[record(rank) + PID] for rank in range(size)}) < size:
        return False
    used = 0
    for word in range(CORES, TEXT):
        union = 0
        for rank in range(size):
            union |= words[record(rank) + word]
        used += union.bit_count()
    return used >= size
