"""Decides which free memory of the object store is given back to the system.

Memory that was written stays with the store when its object is freed, as writing there again is
several times as fast. Memory unused for some seconds is given back, except for the first `_KEPT`
bytes. It is a pure state machine: `trim` is called ten times a second while `is_pending`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_CHUNK: Final = 2 << 20
_KEPT: Final = 256 << 20  # bytes of free memory that stay
_COLD: Final = 20  # calls of `trim`
_AT_ONCE: Final = 64 << 20  # bytes to give back in one call: 25 ms


class MemoryTrimmer:
    """Keeps the age of each chunk: 0 without memory, else 1 + calls that found it free."""

    def __init__(self, nbytes: int) -> None:
        self._ages = bytearray(-(-nbytes // _CHUNK))
        self._resident = 0  # chunks
        self._idle_at = -1  # the used bytes at which a call found nothing to do

    def mark_used(self, offset: int, nbytes: int) -> None:
        """Notes that these bytes are being written."""
        first, last = offset // _CHUNK, -(-(offset + nbytes) // _CHUNK)
        self._resident += self._ages.count(0, first, last)
        self._ages[first:last] = b"\x01" * (last - first)
        self._idle_at = -1

    def is_pending(self, used_bytes: int) -> bool:
        """Returns whether some free memory is to go, now or later; `used_bytes` are not free."""
        return self._resident * _CHUNK > used_bytes + _KEPT and used_bytes != self._idle_at

    def trim(self, holes: Iterable[tuple[int, int]], used_bytes: int) -> list[tuple[int, int]]:
        """Returns the (offset, bytes) to be given back, of `holes` that are (offset, end)."""
        ages, kept, is_pending = self._ages, 0, False
        cold: list[tuple[int, int]] = []
        for start, end in sorted(holes):
            for chunk in range(-(-start // _CHUNK), end // _CHUNK):
                age = ages[chunk]
                if not age:
                    continue
                if age < _COLD:
                    ages[chunk] = age + 1
                if kept < _KEPT:
                    kept += _CHUNK
                elif age < _COLD or len(cold) * _CHUNK == _AT_ONCE:
                    is_pending = True
                else:
                    ages[chunk] = 0
                    cold.append((chunk * _CHUNK, _CHUNK))
        self._resident -= len(cold)
        self._idle_at = -1 if is_pending else used_bytes
        return cold
