"""A tag says what a rank does at a meeting, in one word of memory.

3 bits of call, 1 of phase, 12 of source, 16 of bucket, 32 of count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PHASE_2: Final = 1 << 3
_CALLS: Final = (
    "barrier", "bucket", "reduce", "reduce", "gather", "broadcast", "exchange", "reform",
)  # fmt: skip
BARRIER, CREATE, SUM, MEAN, GATHER, BROADCAST, EXCHANGE, REFORM = range(8)


def make_tag(call: int, bucket: int = 0, count: int = 0, source: int = 0) -> int:
    """Makes the tag of one call: `count` numbers the calls on the bucket, or is a checksum."""
    return call | source << 4 | bucket << 16 | (count & 0xFFFFFFFF) << 32


def stage(number: int) -> int:
    """Returns what a reduction adds to its tag at a meeting between its first and its last one."""
    return number << 4


def describe(tag: int, buckets: Sequence[str] | None = None) -> str:
    """Returns a tag in words: `reduce`, or with the names of `buckets` everything that is in it."""
    call = tag & 7
    if buckets is None:
        return _CALLS[call]
    source, bucket, count = tag >> 4 & 0xFFF, tag >> 16 & 0xFFFF, tag >> 32
    text = {SUM: "reduce (sum)", MEAN: "reduce (mean)"}.get(call, _CALLS[call])
    if call == BROADCAST:
        text += f" (from rank {source})"
    if call in (SUM, MEAN, GATHER, BROADCAST):
        name = buckets[bucket] if bucket < len(buckets) else f"number {bucket}"
        return f"{text} of bucket {name}, call {count}"
    return f"{text}, call {count}"
