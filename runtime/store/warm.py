"""Which free memory of the object store is still there, and has not been used for a while.

Memory that was written stays with the store when its object goes: to write there again is several
times as fast. What nobody has used for some seconds is given back to the system, but for the first
`_KEPT` bytes of it. A pure state machine, in chunks: `look` is called ten times a second as long as
`is_much` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_CHUNK: Final = 2 << 20
_KEPT: Final = 256 << 20  # bytes of free memory that stay
_COLD: Final = 20  # looks
_AT_ONCE: Final = 64 << 20  # bytes to give back at one look: 25 ms


class Warm:
    """Ages of all chunks of memory: 0 if nothing is there, else 1 + looks that found it free."""

    def __init__(self, nbytes: int) -> None:
        self._ages = bytearray(-(-nbytes // _CHUNK))
        self._there = 0  # chunks
        self._done_at = -1  # with so many bytes used, a look found nothing more to wait for

    def used(self, offset: int, nbytes: int) -> None:
        """These bytes are being written."""
        first, last = offset // _CHUNK, -(-(offset + nbytes) // _CHUNK)
        self._there += self._ages.count(0, first, last)
        self._ages[first:last] = b"\x01" * (last - first)
        self._done_at = -1

    def is_much(self, used_bytes: int) -> bool:
        """Whether some free memory is to go, now or in a while; `used_bytes` are not free."""
        return self._there * _CHUNK > used_bytes + _KEPT and used_bytes != self._done_at

    def look(self, holes: Iterable[tuple[int, int]], used_bytes: int) -> list[tuple[int, int]]:
        """(offset, bytes) of what is to be given back now; `holes`: (offset, end), what is free."""
        ages, kept, given, found = self._ages, 0, 0, []
        waits = False
        for start, end in sorted(holes):
            for chunk in range(-(-start // _CHUNK), end // _CHUNK):
                age = ages[chunk]
                if not age:
                    continue
                if age < _COLD:
                    ages[chunk] = age + 1
                if kept < _KEPT:
                    kept += _CHUNK
                elif age < _COLD or given == _AT_ONCE:
                    waits = True
                else:
                    given += _CHUNK
                    ages[chunk] = 0
                    self._there -= 1
                    found.append((chunk * _CHUNK, _CHUNK))
        self._done_at = -1 if waits else used_bytes
        return found
