"""Shares memory between processes by an anonymous file, which cannot be left behind.

The kernel frees it when the last process that has it open or mapped is gone; nothing appears in
/dev/shm. It reaches another process as an open descriptor, in the arguments of an actor call.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Self

from gmi_drl.runtime.wire import packing


class Memfd:
    """One anonymous shared file; its descriptor is closed with this object, mappings are not."""

    def __init__(self, fd: int, name: str = "") -> None:
        self._fd = fd
        self.name = name

    @classmethod
    def create(cls, name: str, nbytes: int = 0) -> Self:
        """Makes a file of `nbytes` zero bytes; `name` is only seen in /proc/<pid>/fd."""
        memfd = cls(os.memfd_create(name, os.MFD_CLOEXEC), name)
        if nbytes:
            memfd.resize(nbytes)
        return memfd

    @property
    def fd(self) -> int:
        """Returns the descriptor, still owned by this object."""
        if self._fd < 0:
            raise ValueError(f"Memfd {self.name!r} is closed. Keep it open until it is mapped.")
        return self._fd

    @property
    def size(self) -> int:
        """Returns the bytes in the file now; another process may have resized it."""
        return os.fstat(self.fd).st_size

    def resize(self, nbytes: int) -> None:
        """Makes the file `nbytes` long; new bytes are zero. Never shrink below a live mapping."""
        os.ftruncate(self.fd, nbytes)

    def map(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Maps `nbytes` from `offset` on (default: the rest) as long as the view lives."""
        size = self.size
        length = size - offset if nbytes is None else nbytes
        if offset < 0 or length < 0 or offset + length > size:
            raise ValueError(
                f"Memfd {self.name!r}: bytes {offset} to {offset + length} asked for, "
                f"it has {size}. Call resize() first."
            )
        if length == 0:
            return memoryview(bytearray())
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(self.fd, offset - start + length, offset=start)
        return memoryview(mapping)[offset - start :]

    def close(self) -> None:
        """Closes the descriptor; mappings stay. Calling it again is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        packed = packing.packing()
        if packed is None:
            raise TypeError(
                f"Memfd {self.name!r} cannot be pickled: it is a descriptor of this process. "
                "Pass it in the arguments of an actor call."
            )
        if self not in packed.memfds:
            packed.memfds.append(self)
        return _received, (packed.memfds.index(self), self.name)

    def __repr__(self) -> str:
        state = "closed" if self._fd < 0 else f"fd={self._fd}, size={self.size}"
        return f"Memfd({self.name!r}, {state})"


def _received(index: int, name: str) -> Memfd:
    return Memfd(packing.received_fd(index), name)
