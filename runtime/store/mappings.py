"""Parts of a file in memory: mapped by libc, whose calls keep no descriptor and no GIL."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

from .allocator import PAGE

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


class Mapping:
    """All of a file, mapped until nobody has this object any more."""

    def __init__(self, fd: int, nbytes: int, flags: int) -> None:
        address = map_file(fd, nbytes, flags)
        if address is None:
            raise _os_error(f"{nbytes} bytes of the object store cannot be mapped")
        self.address = address
        self._unmap = weakref.finalize(self, _munmap, address, nbytes)
        self._unmap.atexit = False


class Window(Mapping):
    """A private mapping to look through."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._pid = 0
        self._pagemap = -1
        self._lock = threading.RLock()  # a finalizer may run anywhere, also inside this
        super().__init__(fd, nbytes, mmap.MAP_PRIVATE)

    def __del__(self) -> None:
        self._close()

    def clean(self, address: int, nbytes: int) -> None:
        """Drops pages that were written: they would hide what is in the file then."""
        address, end = address - address % PAGE, address + nbytes
        pagemap = self._opened_pagemap()
        if pagemap >= 0:
            pages = os.pread(pagemap, -(-(end - address) // PAGE) * 8, address // PAGE * 8)
            if pages and not pages[7::8].translate(None, _UNWRITTEN):
                return
        _madvise(address, end - address, mmap.MADV_DONTNEED)

    def _opened_pagemap(self) -> int:
        with self._lock:
            if self._pid != os.getpid():  # the file shows the memory of the process that opened it
                self._close()
                with contextlib.suppress(OSError):
                    self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
                self._pid = os.getpid()
            return self._pagemap

    def _close(self) -> None:
        fd, self._pagemap = self._pagemap, -1
        if fd >= 0:
            os.close(fd)


class Pages(ctypes.c_ubyte * (1 << 46)):  # type: ignore[misc]
    """Pages of a window, or a mapping of their own that is unmapped with them.

    The length is that of no mapping: one type serves all, as making a ctypes type takes long.
    """

    window: Window | None
    address: int
    nbytes: int
    on_release: Callable[[], None]

    def __del__(self, munmap: Callable[[int, int], int] = _munmap) -> None:
        try:
            if self.window is None:
                munmap(self.address, self.nbytes)
            else:
                self.window.clean(self.address, self.nbytes)
        finally:
            self.on_release()


def map_file(fd: int, nbytes: int, flags: int, offset: int = 0) -> int | None:
    """Where these bytes of the file are mapped, to be read and written; None if they cannot be."""
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    address: int = _mmap(None, nbytes, prot, flags | _MAP_NORESERVE, fd, offset)
    return None if address == _MAP_FAILED else address


def populate(address: int, nbytes: int) -> None:
    """Makes pages present before they are written, quicker than their faults would."""
    start = address - address % PAGE
    if _madvise(start, address + nbytes - start, _MADV_POPULATE_WRITE):
        error = ctypes.get_errno()
        if error != errno.EINVAL:  # an older kernel: memmove will fault the pages in
            raise _os_error(f"no memory for {nbytes} bytes of the object store")


def give_back(fd: int, offset: int, nbytes: int) -> None:
    """Frees the memory of these bytes of the file; they are zeros then."""
    _fallocate(fd, _PUNCH_HOLE, offset, nbytes)  # where that cannot be they stay


def _os_error(what: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, f"{what}: {os.strerror(error)}. Give init(object_store_bytes=...) less.")
