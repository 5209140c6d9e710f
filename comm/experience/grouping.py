"""Which channels travel together, and how many steps are joined before they do.

A stream carries the channels of one group. MCC and UCC are the paper's names (arXiv 2206.08482,
4.2): multi-channel sharing, a stream for each channel, and single-channel sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .channels import Channel, check_channels


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
        """ValueError unless this groups `channels` of segments of `steps` steps."""
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
    """The paper's single channel: everything in one stream, one packet a step."""
    return _checked("ucc", [(channels, 1)], channels, steps)


def mcc(channels: Sequence[Channel], steps: int) -> Grouping:
    """The paper's multi-channel sharing: one stream a channel, one packet a segment."""
    return _checked("mcc", [([channel], steps) for channel in channels], channels, steps)


def joined(channels: Sequence[Channel], steps: int) -> Grouping:
    """Everything in one stream, one packet a segment."""
    return _checked("joined", [(channels, steps)], channels, steps)


def _checked(
    name: str,
    groups: Sequence[tuple[Sequence[Channel], int]],
    channels: Sequence[Channel],
    steps: int,
) -> Grouping:
    streams = [Stream(tuple(c.name for c in group), rows) for group, rows in groups]
    grouping = Grouping(name, tuple(streams))
    grouping.check(channels, steps)
    return grouping
