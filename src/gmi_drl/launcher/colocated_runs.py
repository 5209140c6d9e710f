"""Tells which other runs work on this machine: launches, tuners and searches of this user.

Of other programs only their load is known (`busy_cores`).

Whoever trains holds shared record locks (fcntl) on one file in the cache, on a byte for being there
and on one for each core and GPU that it uses, and the kernel tells who holds them too. They are
gone the moment their holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import platform
import struct
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

from gmi_drl.gmi.usage import processes
from gmi_drl.placement import Topology, format_cores
from gmi_drl.runtime.cache_files import cache_folder

from .folder.run_folder import lock_of

_FLOCK: Final = "hhqqi4x"  # type, whence, start, length, pid: struct flock where off_t has 64 bits
# Bytes of the file, which is empty: being at work, then cores by their number, then GPUs.
_PRESENT: Final = 0
_CORES: Final = 1
_GPUS: Final = 1 << 32


def records_folder() -> Path:
    """Returns where launches, tuners and searches of one user keep what they share."""
    return cache_folder() / "tuning"


class _Presence:
    """Holds this process's locks.

    Record locks are the process's, and go when it closes any descriptor of the file: so there is
    one, for however many that work in it at once.
    """

    file: int | None = None
    users: ClassVar[Counter[int]] = Counter()  # of each byte that is locked

    @classmethod
    def open(cls) -> None:
        """Opens the file, if it can be made and opened."""
        with suppress(OSError, RuntimeError):  # no home, or none that can be written
            path = records_folder() / f"{platform.node() or 'machine'}.running"
            path.parent.mkdir(parents=True, exist_ok=True)
            cls.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @classmethod
    def lock(cls, how: int, numbers: Collection[int]) -> None:
        """Locks or unlocks the bytes that nothing else in this process uses, where locks work."""
        for byte in numbers:
            if cls.file is not None and not cls.users[byte]:
                with suppress(OSError):
                    fcntl.lockf(cls.file, how, 1, byte)


@contextmanager
def at_work(topology: Topology | None = None) -> Iterator[None]:
    """Announces to other runs that this one works, and on which devices, while the block runs.

    Never waits, and never raises for want of a lock.
    """
    presence, locked = _Presence, [_PRESENT, *(_bytes_of(topology) if topology else ())]
    if not presence.users:
        presence.open()
    presence.lock(fcntl.LOCK_SH | fcntl.LOCK_NB, locked)
    presence.users.update(locked)
    try:
        yield
    finally:
        presence.users.subtract(locked)
        presence.lock(fcntl.LOCK_UN, locked)
        presence.users += Counter()  # drops those that nobody uses
        if not presence.users and presence.file is not None:
            file, presence.file = presence.file, None
            os.close(file)


def other_at_work() -> str:
    """Names one of the other processes that work on this machine now; "" if there is none.

    Those that keep another cache are not seen. Returns at once.
    """
    return _other_holder(0, 0)


def overlaps(topology: Topology) -> list[str]:
    """Tells who else works on these devices now, in a process that is `at_work`.

    A GPU of which the run has only a share is left out: others use the rest.
    """
    shared: dict[str, list[int]] = {}
    exclusive = [device for device in topology.devices if device.kind == "cpu" or device.share == 1]
    for byte in _bytes_of(replace(topology, devices=tuple(exclusive))):
        if holder := _other_holder(byte, 1):
            shared.setdefault(holder, []).append(byte)
    return [
        f"another run of yours ({holder}{_run_of(holder)}) is at work on "
        f"{_devices_text(topology, locked)} too, and each slows the other down. Give each its "
        "own: hardware.cores, or CUDA_VISIBLE_DEVICES."
        for holder, locked in shared.items()
    ]


def _bytes_of(topology: Topology) -> dict[int, str]:
    """Returns the byte of each core and GPU, and the name of a GPU ("" of a core)."""
    names = {_CORES + core: "" for device in topology.devices for core in device.cores}
    for device in topology.devices:
        if device.uuid is not None:
            names[_GPUS + zlib.crc32(device.uuid.encode())] = f"GPU {device.index}"
    return names


def _devices_text(topology: Topology, locked: Collection[int]) -> str:
    """Words devices: cores 0-3 and GPU 1."""
    names = _bytes_of(topology)
    cores = [byte - _CORES for byte in locked if not names[byte]]
    texts = [f"core{'s' if len(cores) > 1 else ''} {format_cores(cores)}"] if cores else []
    return " and ".join([*texts, *(names[byte] for byte in locked if names[byte])])


def _other_holder(start: int, length: int) -> str:
    """Names another process with a lock on these bytes (length 0: on any from there)."""
    if _Presence.file is None:
        return ""
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        answer = fcntl.fcntl(_Presence.file, fcntl.F_GETLK, request)
    except OSError:  # a file system without locks
        return ""
    lock_type, _, _, _, pid = struct.unpack(_FLOCK, answer)
    if lock_type == fcntl.F_UNLCK:
        return ""
    return f"process {pid}" if pid > 0 else "a process of another container"


def _run_of(who: str) -> str:
    """Names the folder of the run that a process trains, ", /runs/ant/..."; "" if not known.

    The process holds the lock of that folder, so it has the file open.
    """
    pid = who.removeprefix("process ")
    with suppress(OSError):  # it has ended, or is of another container
        for entry in Path(f"/proc/{pid}/fd").iterdir() if pid.isdigit() else ():
            with suppress(OSError):
                file = Path(os.readlink(entry))
                if file == lock_of(file.parent) and file.is_file():
                    return f", {file.parent}"
    return ""


def busy_cores(cores: Collection[int], seconds: float = 0.5) -> float:
    """Measures how many of these cores others than this process and its children keep busy.

    Blocks for `seconds`.
    """
    own_s, all_s = processes.cpu_s(processes.with_children([os.getpid()])), _busy_s(cores)
    time.sleep(seconds)
    all_s = _busy_s(cores) - all_s
    own_s = processes.cpu_s(processes.with_children([os.getpid()])) - own_s
    return max(0.0, all_s - own_s) / seconds


def _busy_s(cores: Collection[int]) -> float:
    """Returns seconds that these cores have worked since the machine's start."""
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _, _, irq, softirq = map(int, values[:7])
            ticks += user + nice + system + irq + softirq
    return ticks / os.sysconf("SC_CLK_TCK")
