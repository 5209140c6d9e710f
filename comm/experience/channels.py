"""Groups channels, one for each kind of tensor an agent collects, into streams.

A stream carries the channels of one group. MCC and UCC are the paper's names (arXiv 2206.08482,
4.2): multi-channel sharing, a stream for each channel, and single-channel sharing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ITEM_BYTES: Final = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Channel:
    """One kind of tensor, of N environments.

    Each step has one of [N, *shape]; with `per_segment`, each segment has one of [*shape].
    """

    name: str
    shape: tuple[int, ...]
    dtype: str  # as torch calls it: "float32"
    per_segment: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a channel without a name: it is known by it. Name it.")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(
                f"channel {self.name!r}: dtype {self.dtype!r} is none of {', '.join(ITEM_BYTES)}. "
                "Convert it before it is put."
            )
        object.__setattr__(self, "shape", tuple(int(width) for width in self.shape))
        if any(width < 1 for width in self.shape):
            raise ValueError(
                f"channel {self.name!r}: shape {self.shape}; every width is at least 1. "
                "Leave a channel without content out."
            )

    @property
    def item_bytes(self) -> int:
        """Returns the bytes of one number."""
        return ITEM_BYTES[self.dtype]

    def nbytes(self, rows: int, num_env: int) -> int:
        """Returns the bytes of `rows` steps of all environments, or of one segment."""
        each = math.prod(self.shape) * self.item_bytes
        return each if self.per_segment else each * rows * num_env


def check_channels(channels: Sequence[Channel], steps: int) -> None:
    """Raises ValueError unless these are channels of a segment of `steps` steps."""
    if steps < 1:
        raise ValueError(f"{steps} steps: a segment has at least 1. Raise the horizon.")
    names = [channel.name for channel in channels]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"channels {', '.join(twice)}: each name stands for one. Rename some.")
    if all(channel.per_segment for channel in channels):
        raise ValueError(
            f"channels {', '.join(names) or '(none)'}: a segment needs one that has a tensor each "
            "step. Add one, e.g. the observation."
        )


@dataclass(frozen=True)
class Stream:
    """Channels that share packets, each of `rows` steps.

    Per-segment channels are in the last packet of a segment.
    """

    channels: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class Grouping:
    """The streams of a link. Each channel is in one of them; `rows` divides the steps."""

    name: str
    streams: tuple[Stream, ...]

    def check(self, channels: Sequence[Channel], steps: int) -> None:
        """Raises ValueError unless this groups `channels` of segments of `steps` steps."""
        check_channels(channels, steps)
        grouped = [name for stream in self.streams for name in stream.channels]
        if sorted(grouped) != sorted(channel.name for channel in channels):
            raise ValueError(
                f"grouping {self.name!r} has channels {', '.join(sorted(grouped))}, the schema has "
                f"{', '.join(sorted(c.name for c in channels))}; each must be in one stream. "
                "Group the channels of this schema."
            )
        for stream in self.streams:
            if not stream.channels or stream.rows < 1 or steps % stream.rows:
                raise ValueError(
                    f"grouping {self.name!r}: {stream.rows} steps a packet of "
                    f"{', '.join(stream.channels) or 'no channel'}; the {steps} steps of a segment "
                    "must be a whole number of packets. Take a divisor."
                )


def ucc(channels: Sequence[Channel], steps: int) -> Grouping:
    """Groups as the paper's single channel: everything in one stream, one packet a step."""
    return _grouping("ucc", [channels], 1)


def mcc(channels: Sequence[Channel], steps: int) -> Grouping:
    """Groups as the paper's multi-channel sharing: one stream a channel, one packet a segment."""
    return _grouping("mcc", [[channel] for channel in channels], steps)


def joined(channels: Sequence[Channel], steps: int) -> Grouping:
    """Groups everything in one stream, one packet a segment."""
    return _grouping("joined", [channels], steps)


def _grouping(name: str, groups: Sequence[Sequence[Channel]], rows: int) -> Grouping:
    streams = (Stream(tuple(channel.name for channel in group), rows) for group in groups)
    return Grouping(name, tuple(streams))
