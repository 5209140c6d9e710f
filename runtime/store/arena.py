"""The memory of the object store: one anonymous shared file that every process has open.

The file is sparse, as large as the store may become, and nobody pays for bytes that were never
written. Where an object lies in it is the business of `store.Store` and of `Allocator`; an Arena
copies bytes in and lets them be seen, and never reads or writes what it was not told to.

Writing. Bytes go in through write(2) where this process has not written before, which is quicker
than page faults and says ENOMEM instead of SIGBUS; and by memmove, in two threads when large,
where it has. Behind the last byte lies a number that counts how often memory was given back: when
it has changed, a process makes sure that pages are there before it writes to them.

Seeing. Read-only views lie in one private mapping of the file, whose pages stay mapped: to look
at a block again costs no page fault. A writable view (for torch tensors) has a private mapping of
its own, which goes with it: nobody else ever sees what is written through it. Somebody may write
through a read-only view all the same (`torch.from_numpy` lets them, and warns): no other process
sees that either, and the pages are dropped with the view, before another object lies there. A
block of less than 64 KiB is copied, which takes less time than all this.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

from .allocator import PAGE, Allocator
from .copying import move
from .mappings import Mapping, Pages, Window, give_back, map_file, populate

__all__ = ["Allocator", "Arena"]

Part = bytes | bytearray | memoryview

_COPY_BELOW: Final = 64 << 10  # bytes of a view; measured: 64 KiB are copied in 3 us
_MOVE_FROM: Final = 1 << 20  # bytes of a write, from which on memmove beats write(2)
_CHUNK: Final = 2 << 20  # how finely is remembered where this process has written
_COUNT: Final = struct.Struct("<Q")
_MAX_PARTS: Final = 1024  # of one writev: IOV_MAX


class Arena:
    """`nbytes` shared bytes. `Arena(fd, nbytes)` attaches in a process that has the descriptor."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._shared: Mapping | None = None  # the one that is written to
        self._window: Window | None = None  # the one that is looked at
        self._writes = bytearray(-(-nbytes // _CHUNK))  # per chunk: 0, 1, or more (2)
        self._given_back = (
            b""  # the number behind the last byte, as it was when `_writes` was right
        )
        self._lock = threading.Lock()

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """A new arena; its descriptor is not inherited by programs that are executed."""
        if nbytes <= 0:
            raise ValueError(f"Arena: nbytes={nbytes}; it must be positive.")
        fd = os.memfd_create("gmi-drl-arena", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes + _COUNT.size)
        except (OSError, OverflowError) as error:
            os.close(fd)
            raise ValueError(
                f"Arena: nbytes={nbytes}; no file may be as large here ({error}). Give less."
            ) from error
        return cls(fd, nbytes)

    def close(self) -> None:
        """Closes the descriptor. Views stay valid; nothing may be written any more."""
        with self._lock:
            fd, self.fd = self.fd, -1
            self._shared = self._window = None  # who writes or looks just now still has it
            if fd >= 0:
                os.close(fd)

    def write(self, offset: int, parts: Sequence[Part]) -> None:
        """Copies the parts, one after the other, to `offset` on.

        Others may see them as soon as it has returned. Raises OSError when memory is exhausted;
        the block's contents are undefined then.
        """
        views = [view.cast("B") for part in parts if (view := memoryview(part)).nbytes]
        nbytes = sum(map(len, views))
        self._check(offset, nbytes)
        if nbytes < _MOVE_FROM:
            self._write_file(offset, views)
            return
        given_back = os.pread(self.fd, _COUNT.size, self.nbytes)
        if given_back != self._given_back:
            self._given_back = given_back
            self._writes = self._writes.replace(b"\x02", b"\x01")
        first, last = offset // _CHUNK, -(-(offset + nbytes) // _CHUNK)
        writes = min(self._writes[first:last])
        if writes == 0:
            self._write_file(offset, views)
        else:
            shared = self._opened_mapping()
            if writes == 1:
                populate(shared.address + offset, nbytes)
            move(shared.address + offset, views, nbytes)
        if writes < 2:
            count = bytes([writes + 1])
            self._writes[first:last] = self._writes[first:last].replace(bytes([writes]), count)

    def give_back(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Frees the memory of (offset, bytes) where nothing lies. In the driver only."""
        (count,) = _COUNT.unpack(os.pread(self.fd, _COUNT.size, self.nbytes))
        os.pwrite(self.fd, _COUNT.pack(count + 1), self.nbytes)
        for offset, nbytes in blocks:
            give_back(self.fd, offset, nbytes)

    def view(
        self, offset: int, nbytes: int, on_release: Callable[[], None], *, writable: bool = False
    ) -> memoryview:
        """The bytes of a block as they are now; nobody may write to it while the view lives.

        `on_release` is called once, when the last array, tensor or slice on the view is gone: from
        any thread, at any point of any code. What is written to a `writable` view is lost with it.
        """
        self._check(offset, nbytes)
        if nbytes < _COPY_BELOW:
            return self._copy(offset, nbytes, on_release, writable)
        if writable:
            window, skip = None, offset % PAGE
            address = map_file(self.fd, nbytes + skip, mmap.MAP_PRIVATE, offset - skip)
            if address is None:  # 65,530 mappings is all that a process may have
                return self._copy(offset, nbytes, on_release, writable)
            pages = Pages.from_address(address)
        else:
            window, skip = self._opened_window(), 0
            pages = Pages.from_address(address := window.address + offset)
        pages.window, pages.address, pages.nbytes = window, address, skip + nbytes
        pages.on_release = on_release
        # The collector runs finalizers of a cycle's objects in any order, and one of them may
        # still look at an array on these pages: they go when nothing refers to them, never before.
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(pages))
        view = memoryview(pages).cast("B")[skip : skip + nbytes]
        return view if writable else view.toreadonly()

    def _copy(
        self, offset: int, nbytes: int, on_release: Callable[[], None], writable: bool
    ) -> memoryview:
        copy = _Copy(nbytes)
        _read_file(self.fd, copy, offset)
        copy.on_release = on_release
        view = memoryview(copy)
        return view if writable else view.toreadonly()

    def _check(self, offset: int, nbytes: int) -> None:
        if self.fd < 0:
            raise ValueError("the Arena is closed. Read and write before close().")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(
                f"Arena: bytes {offset} to {offset + nbytes} asked for, it has {self.nbytes}."
            )

    def _opened_mapping(self) -> Mapping:
        with self._lock:
            if self._shared is None:
                self._shared = Mapping(self.fd, self.nbytes, mmap.MAP_SHARED)
            return self._shared

    def _opened_window(self) -> Window:
        with self._lock:
            if self._window is None:
                self._window = Window(self.fd, self.nbytes)
            return self._window

    def _write_file(self, offset: int, views: list[memoryview]) -> None:
        views = views[::-1]
        while views:
            written = os.pwritev(self.fd, views[: -_MAX_PARTS - 1 : -1], offset)
            offset += written
            while written and written >= len(views[-1]):
                written -= len(views.pop())
            if written:
                views[-1] = views[-1][written:]


class _Copy(bytearray):
    """A copy of a small block."""

    on_release: Callable[[], None]

    def __del__(self) -> None:
        self.on_release()


def _read_file(fd: int, into: bytearray, offset: int) -> None:
    rest = memoryview(into)
    while rest:
        count = os.preadv(fd, [rest], offset)
        offset += count
        rest = rest[count:]
