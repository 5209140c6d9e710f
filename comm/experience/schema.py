"""The schema says where in a packet each channel lies; both ends of a link know it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

from gmi_drl.comm.errors import SchemaError
from gmi_drl.comm.shm.alignment import round_up
from gmi_drl.comm.transports import StreamSpec
from gmi_drl.placement.extras import install

from .channels import Channel, Grouping, Stream

_FORMAT: Final = 1
_ALIGN: Final = 64  # a block begins in a cache line of its own
WORD: Final = 8  # before each compressed block: its length


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
    fixed_bytes: int  # up to here blocks lie as they are


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
            known = ", ".join(channel.name for channel in self.channels)
            raise ValueError(f"lz4 channel {name!r}: there are {known}. Name one of them.")
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
    first, schema = schemas[0]
    for other, other_schema in schemas[1:]:
        if other_schema.steps != schema.steps:
            raise SchemaError(
                f"{first} sends segments of {schema.steps} steps, {other} of {other_schema.steps}; "
                "those of one batch must be alike. Give all agents the same horizon."
            )
        if other_schema.channels != schema.channels:
            mine, theirs = (
                {c.name: (c.shape, c.dtype, c.per_segment) for c in s.channels}
                for s in (schema, other_schema)
            )
            names = sorted(n for n in mine.keys() | theirs if mine.get(n) != theirs.get(n))
            what = (
                f"channel {names[0]!r} is {_shown(mine.get(names[0]))} from {first} and "
                f"{_shown(theirs.get(names[0]))} from {other}"
                if names
                else f"{first} and {other} name the same channels in another order"
            )
            raise SchemaError(
                f"{what}; those of one batch must be alike. Give all agents the same environment "
                "and the same channels."
            )


def _shown(channel: tuple[tuple[int, ...], str, bool] | None) -> str:
    if channel is None:
        return "missing"
    shape, dtype, per_segment = channel
    return f"{dtype} {list(shape)}{' a segment' if per_segment else ' a step'}"
