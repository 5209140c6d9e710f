"""Holds the memory of the object store: one anonymous shared file that every process has open.

The file is sparse, as large as the store may become; bytes that were never written cost nothing.
`ObjectStore` and `Allocator` decide where an object lies in it.

Bytes go in through write(2) where this process has not written before, which is quicker than page
faults and says ENOMEM instead of SIGBUS; and by memmove where it has. Behind the last byte lies a
counter of how often memory was given back: when it has changed, a process makes sure that pages are
there before it writes to them.

Read-only views lie in one private mapping, whose pages stay mapped: to read a block again costs no
page fault. What is written through one all the same (`torch.from_numpy` allows that) no other
process sees, and the pages are dropped with the view. A writable view (for torch tensors) has a
private mapping of its own. A block of less than 64 KiB is copied, which takes less time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final, Self

from .allocator import LINE, PAGE

Part = bytes | bytearray | memoryview

_COPY_BELOW: Final = 64 << 10  # bytes of a view; measured: 64 KiB are copied in 3 us
_MOVE_FROM: Final = 1 << 20  # bytes of a write, from which on memmove beats write(2)
_CHUNK: Final = 2 << 20  # the unit by which a process remembers where it has written
_COUNT: Final = struct.Struct("<Q")
_MAX_PARTS: Final = 1024  # of one writev: IOV_MAX
_TWO_THREADS_FROM: Final = 16 << 20  # measured with two cores: 1.4 times as quick, 2 at 100 MB

# The last byte of entries in /proc/self/pagemap (present: 0x80, of a file: 0x20) of pages that are
# not there, or are the file's own.
_UNWRITTEN: Final = b"\x00\x01\x20\x21\xa0\xa1"
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14
_MAP_NORESERVE: Final = 0x4000
_PUNCH_HOLE: Final = 0x3  # and keep the file's size
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)  # releases the GIL during calls
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_fallocate = _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Arena:
    """Shares `nbytes` of memory. `Arena(fd, nbytes)` attaches where the descriptor is open."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd, self.nbytes = fd, nbytes
        self._shared: FileMapping | None = None  # for writes
        self._private: PrivateMapping | None = None  # for views
        self._writes = bytearray(-(-nbytes // _CHUNK))  # per chunk: 0, 1, or 2 and more
        self._given_back = b""  # the counter behind the last byte when `_writes` was reset
        self._lock = threading.Lock()

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """Makes an arena; its descriptor is not inherited by programs that are executed."""
        if nbytes < LINE:
            raise ValueError(f"object_store_bytes={nbytes}; it must be {LINE} or more.")
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
            self._shared = self._private = None  # writers and views keep their own reference
            if fd >= 0:
                os.close(fd)

    def write(self, offset: int, parts: Sequence[Part]) -> None:
        """Copies the parts, one after the other; on OSError the block is undefined."""
        views = [view.cast("B") for part in parts if (view := memoryview(part)).nbytes]
        nbytes = sum(map(len, views))
        self._check(offset, nbytes)
        if nbytes < _MOVE_FROM:
            self._write_file(offset, views)
            return
        times_given_back = os.pread(self.fd, _COUNT.size, self.nbytes)
        if times_given_back != self._given_back:
            self._given_back = times_given_back
            self._writes = self._writes.replace(b"\x02", b"\x01")
        first, last = offset // _CHUNK, -(-(offset + nbytes) // _CHUNK)
        writes = min(self._writes[first:last])
        if writes == 0:
            self._write_file(offset, views)
        else:
            shared = self._opened_shared()
            if writes == 1:
                _populate(shared.address + offset, nbytes)
            _move(shared.address + offset, views, nbytes)
        if writes < 2:
            count = bytes([writes + 1])
            self._writes[first:last] = self._writes[first:last].replace(bytes([writes]), count)

    def give_back(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Frees the memory of unused (offset, bytes). In the driver only."""
        (count,) = _COUNT.unpack(os.pread(self.fd, _COUNT.size, self.nbytes))
        os.pwrite(self.fd, _COUNT.pack(count + 1), self.nbytes)
        for offset, nbytes in blocks:
            _fallocate(self.fd, _PUNCH_HOLE, offset, nbytes)  # where that fails they stay

    def view(
        self, offset: int, nbytes: int, on_release: Callable[[], None], *, writable: bool = False
    ) -> memoryview:
        """Returns a view of a block; nobody may write to the block while the view lives.

        `on_release` is called once, from any thread, when the last array or slice on it is gone.
        """
        self._check(offset, nbytes)
        if nbytes < _COPY_BELOW:
            return self._copy(offset, nbytes, on_release, writable)
        if writable:
            mapping, padding = None, offset % PAGE
            address = _map_file(self.fd, nbytes + padding, mmap.MAP_PRIVATE, offset - padding)
            if address is None:  # a process may have 65,530 mappings
                return self._copy(offset, nbytes, on_release, writable)
            pages = Pages.from_address(address)
        else:
            mapping, padding = self._opened_private(), 0
            pages = Pages.from_address(address := mapping.address + offset)
        pages.mapping, pages.address, pages.nbytes = mapping, address, padding + nbytes
        pages.on_release = on_release
        # The collector runs finalizers of a cycle's objects in any order, and one of them may
        # still look at an array on these pages: they go when nothing refers to them, never before.
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(pages))
        view = memoryview(pages).cast("B")[padding : padding + nbytes]
        return view if writable else view.toreadonly()

    def _copy(
        self, offset: int, nbytes: int, on_release: Callable[[], None], writable: bool
    ) -> memoryview:
        copy = _Copy(nbytes)
        unread = memoryview(copy)
        while unread:
            count = os.preadv(self.fd, [unread], offset)
            offset += count
            unread = unread[count:]
        copy.on_release = on_release
        view = memoryview(copy)
        return view if writable else view.toreadonly()

    def _check(self, offset: int, nbytes: int) -> None:
        if self.fd < 0:
            raise ValueError("the Arena is closed. Read and write before close().")
        assert 0 <= offset <= offset + nbytes <= self.nbytes

    def _opened_shared(self) -> FileMapping:
        with self._lock:
            if self._shared is None:
                self._shared = FileMapping(self.fd, self.nbytes, mmap.MAP_SHARED)
            return self._shared

    def _opened_private(self) -> PrivateMapping:
        with self._lock:
            if self._private is None:
                self._private = PrivateMapping(self.fd, self.nbytes)
            return self._private

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


class FileMapping:
    """Maps a whole file by libc (without the GIL) as long as this object lives."""

    def __init__(self, fd: int, nbytes: int, flags: int) -> None:
        address = _map_file(fd, nbytes, flags)
        if address is None:
            raise _os_error(f"{nbytes} bytes of the object store cannot be mapped")
        self.address = address
        self._unmap = weakref.finalize(self, _munmap, address, nbytes)
        self._unmap.atexit = False


class PrivateMapping(FileMapping):
    """A private mapping, in which read-only views lie."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._pid = 0
        self._pagemap = -1
        self._lock = threading.RLock()  # a finalizer may run anywhere, also inside this
        super().__init__(fd, nbytes, mmap.MAP_PRIVATE)

    def __del__(self) -> None:
        self._close()

    def drop_written(self, address: int, nbytes: int) -> None:
        """Drops pages that were written, as they hide what is in the file."""
        address, end = address - address % PAGE, address + nbytes
        pagemap = self._opened_pagemap()
        if pagemap >= 0:
            pages = os.pread(pagemap, -(-(end - address) // PAGE) * 8, address // PAGE * 8)
            if pages and not pages[7::8].translate(None, _UNWRITTEN):
                return
        _madvise(address, end - address, mmap.MADV_DONTNEED)

    def _opened_pagemap(self) -> int:
        with self._lock:
            if self._pid != os.getpid():  # it shows the memory of the process that opened it
                self._close()
                with contextlib.suppress(OSError):
                    self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
                self._pid = os.getpid()
            return self._pagemap

    def _close(self) -> None:
        fd, self._pagemap = self._pagemap, -1
        if fd >= 0:
            os.close(fd)


# One type, longer than any block, serves all: making a ctypes type takes long.
class Pages(ctypes.c_ubyte * (1 << 46)):  # type: ignore[misc]
    """Holds pages of the private mapping, or a mapping of its own, unmapped at the end."""

    mapping: PrivateMapping | None
    address: int
    nbytes: int
    on_release: Callable[[], None]

    def __del__(self, munmap: Callable[[int, int], int] = _munmap) -> None:
        try:
            if self.mapping is None:
                munmap(self.address, self.nbytes)
            else:
                self.mapping.drop_written(self.address, self.nbytes)
        finally:
            self.on_release()


def _map_file(fd: int, nbytes: int, flags: int, offset: int = 0) -> int | None:
    """Maps these bytes of the file for reading and writing; None if that fails."""
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    address: int = _mmap(None, nbytes, prot, flags | _MAP_NORESERVE, fd, offset)
    return None if address == _MAP_FAILED else address


def _populate(address: int, nbytes: int) -> None:
    """Makes pages present before they are written, which is quicker than page faults."""
    start = address - address % PAGE
    if _madvise(start, address + nbytes - start, _MADV_POPULATE_WRITE):
        error = ctypes.get_errno()
        if error != errno.EINVAL:  # an older kernel: memmove will fault the pages in
            raise _os_error(f"no memory for {nbytes} bytes of the object store")


def _os_error(what: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, f"{what}: {os.strerror(error)}. Give init(object_store_bytes=...) less.")


def _move(target: int, views: list[memoryview], nbytes: int) -> None:
    """Copies the views, together `nbytes`, one after the other to an address."""
    import numpy as np  # unlike ctypes it tells the address of read-only memory

    pieces = []
    for view in views:
        source = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        pieces.append((target, source, len(view)))
        target += len(view)
    if nbytes < _TWO_THREADS_FROM or len(os.sched_getaffinity(0)) < 2:
        _move_pieces(pieces)
        return
    half, left_bytes = [], nbytes // 2
    while left_bytes:
        target, source, length = pieces.pop(0)
        taken_bytes = min(length, left_bytes)
        half.append((target, source, taken_bytes))
        if taken_bytes < length:
            pieces.insert(0, (target + taken_bytes, source + taken_bytes, length - taken_bytes))
        left_bytes -= taken_bytes
    helper = threading.Thread(target=_move_pieces, args=(half,), name="gmi-drl-copy", daemon=True)
    try:
        helper.start()
    except RuntimeError:  # no more threads, or the interpreter is ending
        _move_pieces(half)
        _move_pieces(pieces)
        return
    try:
        _move_pieces(pieces)
    finally:
        helper.join()


def _move_pieces(pieces: list[tuple[int, int, int]]) -> None:
    for target, source, length in pieces:
        ctypes.memmove(target, source, length)
