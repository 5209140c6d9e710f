"""Sleeps on a word of shared memory until another process changes it; and a memory fence.

Linux futexes by ctypes, which lets other threads run. Where the call's number is not known, `wait`
is a short sleep: later, never wrong.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
import time
from typing import Final

_NUMBERS: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_NUMBER: Final = _NUMBERS.get(platform.machine(), -1)
_WAIT: Final = 0  # not the private variants: the word is shared between processes
_WAKE: Final = 1
_EVERYONE: Final = 2**31 - 1
_POLL_S: Final = 0.0002
_LOW_WORD: Final = 0 if sys.byteorder == "little" else 4  # a futex is 32 bits wide

_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
]  # fmt: skip


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """Waits and wakes on one 64-bit word of a writable buffer, at byte `offset`."""

    def __init__(self, buffer: memoryview, offset: int) -> None:
        self._word = ctypes.c_uint64.from_buffer(buffer, offset)  # keeps the memory alive
        self._address = ctypes.addressof(self._word) + _LOW_WORD
        self._timeout = _Timespec()

    def wait(self, value: int, timeout_s: float) -> None:
        """Sleeps until woken or `timeout_s` has passed; returns at once unless the word is `value`.

        It may also return for no reason: look at the word again.
        """
        if _NUMBER < 0:
            time.sleep(min(_POLL_S, timeout_s))
            return
        seconds = int(timeout_s)
        self._timeout.seconds = seconds
        self._timeout.nanoseconds = int((timeout_s - seconds) * 1e9)
        timeout = ctypes.addressof(self._timeout)
        _syscall(_NUMBER, self._address, _WAIT, value & 0xFFFFFFFF, timeout, None, 0)

    def wake(self) -> None:
        """Wakes everyone who sleeps on the word."""
        if _NUMBER >= 0:
            _syscall(_NUMBER, self._address, _WAKE, _EVERYONE, None, None, 0)


class Fence:
    """Calling it is a memory fence: no load or store of this thread moves across. One thread each.

    Releasing a lock and taking it again are atomic operations on one word, the first with release
    and the second with acquire order: nothing from before passes the first, nothing from after
    comes before the second, and the two keep their order. x86 would forgive its absence in most
    places, ARM would not.
    """

    __slots__ = ("_acquire", "_release")

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._acquire = lock.acquire
        self._release = lock.release

    def __call__(self) -> None:
        self._release()
        self._acquire()
