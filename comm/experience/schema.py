"""The schema says where in a packet each channel lies; both ends of a link know it.

A channel is one kind of tensor that an agent collects; a stream carries the channels of one group.
MCC and UCC are the paper's names (arXiv 2206.08482, 4.2): multi-channel sharing, a stream for each
channel, and single-channel sharing.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

from gmi_drl.comm.errors import SchemaError
from gmi_drl.comm.transports import StreamSpec
from gmi_drl.placement.faults import install
from gmi_drl.runtime.store.alignment import round_up

_FORMAT: Final = 1
_ALIGN: Final = 64  # a block begins in a cache line of its own
WORD: Final = 8  # before each compressed block: its length
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

    def nbytes(self, rows: int, num_env: int) -> int:
        """Returns the bytes of `rows` steps of all environments, or of one segment."""
        nbytes = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        return nbytes if self.per_segment else nbytes * rows * num_env


def check_channels(channels: Sequence[Channel], steps: int) -> None:
    """Raises ValueError unless these are channels of a segment of `steps` steps."""
    if steps < 1:
        raise ValueError(f"{steps} steps: a segment has at least 1. Raise the horizon.")
    names = [channel.name for channel in channels]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"channels {', '.join(repeated)}: each name stands for one. Rename some.")
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


@dataclass(frozen=True)
class Block:
    """One channel's part of a packet: [rows, N, *shape], or [*shape] of a per-segment channel.

    `offset` is where it begins. Compressed blocks stand behind the others, one after the other,
    each of them a word, its length, and then its bytes; their offset is that of the first.
    """

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    per_segment: bool
    compressed: bool


@dataclass(frozen=True)
class PacketLayout:
    """A packet of one stream. `nbytes` is its size, at most, where blocks are compressed."""

    blocks: tuple[Block, ...]
    nbytes: int
    fixed_bytes: int  # where compressed blocks begin, if there are any


@dataclass(frozen=True)
class Schema:
    """The way that segments of `steps` steps of `num_env` environments travel.

    `capacity`: whole segments under way on one link, at most. `lz4`: the names of uint8 channels
    that are compressed. Must be the same each time a GMI's process is replaced.
    """

    channels: tuple[Channel, ...]
    grouping: Grouping
    steps: int
    num_env: int
    capacity: int = 4
    lz4: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))
        object.__setattr__(self, "lz4", frozenset(self.lz4))
        self.grouping.check(self.channels, self.steps)
        if self.num_env < 1:
            raise ValueError(f"num_env {self.num_env}: at least 1. Raise it.")
        if self.capacity < 2:  # what a dead agent had begun holds one until the next one is seen
            raise ValueError(
                f"capacity {self.capacity}: a link needs room for 2 segments, one being sent "
                "while one is trained on. Raise experience.capacity."
            )
        for name in sorted(self.lz4):
            self._check_lz4(name)

    def _check_lz4(self, name: str) -> None:
        dtype = next((c.dtype for c in self.channels if c.name == name), None)
        if dtype is None:
            names = ", ".join(channel.name for channel in self.channels)
            raise ValueError(f"lz4 channel {name!r}: there are {names}. Name one of them.")
        if dtype != "uint8":
            raise ValueError(
                f"lz4 channel {name!r} is {dtype}; only uint8 (images) is compressed, as floats "
                f"hardly shrink. Take {name!r} out of experience.lz4."
            )
        if importlib.util.find_spec("lz4") is None:
            raise ValueError(
                f"lz4 channel {name!r}: the package lz4 is not installed. "
                f"Run {install('lz4')}, or take it out of experience.lz4."
            )

    @cached_property
    def layouts(self) -> tuple[tuple[PacketLayout, PacketLayout], ...]:
        """Returns for each stream a packet, and the last packet of a segment."""
        by_name = {channel.name: channel for channel in self.channels}
        return tuple(
            (self._layout(stream, by_name, False), self._layout(stream, by_name, True))
            for stream in self.grouping.streams
        )

    @cached_property
    def packets(self) -> tuple[int, ...]:
        """Counts the packets of each stream in a segment."""
        return tuple(self.steps // stream.rows for stream in self.grouping.streams)

    def streams(self) -> tuple[StreamSpec, ...]:
        """Returns the streams a link must have."""
        pairs = zip(self.layouts, self.packets, strict=True)
        return tuple(StreamSpec(last.nbytes, self.capacity * n) for (_, last), n in pairs)

    def _layout(self, stream: Stream, by_name: Mapping[str, Channel], last: bool) -> PacketLayout:
        channels = [by_name[name] for name in stream.channels]
        channels = [channel for channel in channels if last or not channel.per_segment]
        plain = [channel for channel in channels if channel.name not in self.lz4]
        packed = [channel for channel in channels if channel.name in self.lz4]
        blocks, offset = [], 0
        for channel in plain:
            offset = round_up(offset, _ALIGN)
            blocks.append(self._block(channel, stream.rows, offset, False))
            offset += blocks[-1].nbytes
        fixed = nbytes = round_up(offset, WORD) if packed else offset
        for channel in packed:
            blocks.append(self._block(channel, stream.rows, fixed, True))
            nbytes += WORD + round_up(blocks[-1].nbytes, WORD)
        return PacketLayout(tuple(blocks), nbytes, fixed)

    def _block(self, channel: Channel, rows: int, offset: int, compressed: bool) -> Block:
        per_segment = channel.per_segment
        shape = channel.shape if per_segment else (rows, self.num_env, *channel.shape)
        nbytes = channel.nbytes(rows, self.num_env)
        return Block(
            channel.name, offset, nbytes, shape, channel.dtype,
            per_segment=per_segment, compressed=compressed,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """Returns the schema as JSON, the same bytes for the same schema."""
        fields = asdict(self) | {"lz4": sorted(self.lz4), "format": _FORMAT}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, source: str = "the other end") -> Schema:
        """Returns the schema in these bytes; SchemaError, naming `source`, if there is none."""
        try:
            fields: dict[str, Any] = json.loads(raw)
            version = fields.pop("format")
            if version != _FORMAT:
                raise ValueError(f"format {version}, known here is {_FORMAT}")
            grouping = fields["grouping"]
            streams = tuple(
                Stream(tuple(stream["channels"]), stream["rows"]) for stream in grouping["streams"]
            )
            fields["grouping"] = Grouping(grouping["name"], streams)
            fields["channels"] = tuple(Channel(**channel) for channel in fields["channels"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SchemaError(
                f"{source} describes its experience in words not understood here: {error}. "
                "Run the same version of gmi-drl at both ends."
            ) from error


def check_same(schemas: Sequence[tuple[str, Schema]]) -> None:
    """Raises SchemaError, naming both, unless all have the same channels and steps.

    The number of environments and the grouping may differ between the agents of a batcher.
    """
    source, schema = schemas[0]
    for other, other_schema in schemas[1:]:
        if other_schema.steps != schema.steps:
            raise SchemaError(
                f"{source} sends segments of {schema.steps} steps, {other} of {other_schema.steps};"
                " those of one batch must be alike. Give all agents the same horizon."
            )
        if other_schema.channels != schema.channels:
            ours, theirs = (
                {c.name: (c.shape, c.dtype, c.per_segment) for c in s.channels}
                for s in (schema, other_schema)
            )
            names = sorted(n for n in ours.keys() | theirs if ours.get(n) != theirs.get(n))
            difference = (
                f"channel {names[0]!r} is {_channel_text(ours.get(names[0]))} from {source} and "
                f"{_channel_text(theirs.get(names[0]))} from {other}"
                if names
                else f"{source} and {other} name the same channels in another order"
            )
            raise SchemaError(
                f"{difference}; those of one batch must be alike. Give all agents the same "
                "environment and the same channels."
            )


def _channel_text(channel: tuple[tuple[int, ...], str, bool] | None) -> str:
    if channel is None:
        return "missing"
    shape, dtype, per_segment = channel
    return f"{dtype} {list(shape)}{' a segment' if per_segment else ' a step'}"
