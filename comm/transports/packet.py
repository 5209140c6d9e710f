"""A packet begins with a header of 64 bytes that says what it is, checked on receipt.

Little-endian: magic, version, stream, link, schema checksum, incarnation, number, sequence, step,
policy version, nbytes, and the CRC-32 of all that.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from gmi_drl.comm.errors import CorruptPacket

if TYPE_CHECKING:
    from torch import Tensor

MAGIC: Final = 0x58504D47  # "GMPX"
VERSION: Final = 1
HEADER_BYTES: Final = 64
_FIELDS: Final = struct.Struct("<IHHIIIQqqqQ")
_CHECKSUM: Final = struct.Struct("<I")
_COVERED: Final = HEADER_BYTES - _CHECKSUM.size


class PacketHeader(NamedTuple):
    """A packet's description. `number` counts its stream's packets, the rest is the sender's."""

    stream: int
    incarnation: int  # of the sender's process: 0, and one more each time it was replaced
    number: int
    sequence: int
    step: int
    policy_version: int
    nbytes: int


@dataclass(slots=True, eq=False)
class Packet:
    """One packet as received. `memory` [nbytes] uint8 is the transport's until `release`."""

    header: PacketHeader
    memory: Tensor
    place: int  # of the transport: which slot it lies in

    def take(self, link: str) -> int:
        """Returns the place, once; ValueError, naming the link, for a packet released before."""
        place, self.place = self.place, -1
        if place < 0:
            raise ValueError(
                f"{link}: packet {self.header.number} of stream {self.header.stream} was released "
                "already. Release each once."
            )
        return place


@dataclass(slots=True, eq=False)
class PacketSlot:
    """Room for one packet of `stream`, written between `reserve` and `send`.

    Bytes of `memory` [capacity] uint8 beyond what is sent do not matter.
    """

    memory: Tensor
    stream: int
    place: int  # of the transport
    reserved: bool = False

    def take(self, nbytes: int, most: int) -> None:
        """Ends the reservation; ValueError unless it is reserved and `nbytes` can be sent."""
        if not self.reserved or not 0 <= nbytes <= most:
            raise ValueError(
                f"{nbytes} bytes in slot {self.place} of stream {self.stream}: reserve the slot, "
                f"then send it once, with 0 to {most} bytes."
            )
        self.reserved = False


@dataclass(frozen=True)
class HeaderCodec:
    """The header's coding for one link: its random number, and its schema."""

    where: str  # the link, as errors call it
    link: int
    schema: int  # CRC-32

    def pack(self, header: PacketHeader) -> bytes:
        """Packs a header into 64 bytes."""
        stream, incarnation, number, sequence, step, policy_version, nbytes = header
        raw = _FIELDS.pack(
            MAGIC, VERSION, stream, self.link, self.schema, incarnation,
            number, sequence, step, policy_version, nbytes,
        )  # fmt: skip
        return raw + _CHECKSUM.pack(zlib.crc32(raw))

    def unpack(self, raw: bytes, capacities: Sequence[int]) -> PacketHeader:
        """Unpacks a header; CorruptPacket names the field if it is not one of this link.

        `capacities`: the largest nbytes of each stream.
        """
        where = self.where
        if len(raw) != HEADER_BYTES:
            raise CorruptPacket(where, "length", f"{len(raw)} bytes", f"{HEADER_BYTES} bytes")
        fields = _FIELDS.unpack_from(raw)
        magic, version, stream, link, schema = fields[:5]
        written, checksum = _CHECKSUM.unpack_from(raw, _COVERED)[0], zlib.crc32(raw[:_COVERED])
        is_ours = magic == MAGIC and version == VERSION and link == self.link
        if not is_ours or written != checksum or schema != self.schema:
            # What tells a stranger comes first, so that it is called one, and not damaged.
            for field, value, expected in (
                ("magic", magic, MAGIC),
                ("version", version, VERSION),
                ("header checksum", written, checksum),
                ("link", link, self.link),
                ("schema checksum", schema, self.schema),
            ):
                if value != expected:
                    raise CorruptPacket(where, field, f"{value:#x}", f"{expected:#x}")
        nbytes = fields[10]
        if stream >= len(capacities):
            raise CorruptPacket(where, "stream", str(stream), f"0 to {len(capacities) - 1}")
        if nbytes > capacities[stream]:
            raise CorruptPacket(where, "nbytes", str(nbytes), f"at most {capacities[stream]}")
        return PacketHeader(stream, *fields[5:])
