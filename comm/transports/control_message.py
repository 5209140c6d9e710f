"""Packs what the two ends of a ZeroMQ link tell each other beside packets: one checked frame each.

Little-endian: magic, kind, stream, link, CRC-32 of the rest and the body, incarnation and session
of the sender meant, number; then the body.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from gmi_drl.comm.errors import CorruptPacket

from .protocol import MAX_STREAMS, StreamSpec

MAGIC: Final = 0x4E504D47  # "GMPN"
HELLO: Final = 1  # sender: it has come, and what it will send; `pack_hello` has the body
BYE: Final = 2  # sender: that was all; receiver: all of it has come
WELCOME: Final = 3  # receiver: go on
RELEASED: Final = 4  # receiver: packet `number` of `stream` is released
END: Final = 5  # receiver: no more
REFUSED: Final = 6  # receiver: this sender is refused; the body says why
REFUSED_SCHEMA: Final = 7  # the same, as the sender before it had another schema
_HEAD: Final = struct.Struct("<IHHII")
_REST: Final = struct.Struct("<IQQ")
_SIZES: Final = struct.Struct("<QQQ")  # nbytes, slots, first number that is not released


class ControlMessage(NamedTuple):
    """A message between the two ends of a link."""

    kind: int
    stream: int = 0
    incarnation: int = 0
    session: int = 0
    number: int = 0
    body: bytes = b""

    def pack(self, link: int) -> bytes:
        """Packs it into a frame."""
        payload = _REST.pack(self.incarnation, self.session, self.number) + self.body
        return _HEAD.pack(MAGIC, self.kind, self.stream, link, zlib.crc32(payload)) + payload


def unpack(raw: bytes, link: int, where: str) -> ControlMessage:
    """Unpacks the message in a frame; CorruptPacket names the field if it is not this link's."""
    if len(raw) < _HEAD.size + _REST.size:
        raise CorruptPacket(where, "length", f"{len(raw)} bytes", "that of a note")
    magic, kind, stream, sent_link, checksum = _HEAD.unpack_from(raw)
    for field, value, expected in (
        ("magic", magic, MAGIC),
        ("note checksum", checksum, zlib.crc32(raw[_HEAD.size :])),
        ("link", sent_link, link),
    ):
        if value != expected:
            raise CorruptPacket(where, field, f"{value:#x}", f"{expected:#x}")
    if not HELLO <= kind <= REFUSED_SCHEMA or stream >= MAX_STREAMS:
        raise CorruptPacket(where, "kind", f"{kind} of stream {stream}", "a known one")
    incarnation, session, number = _REST.unpack_from(raw, _HEAD.size)
    return ControlMessage(
        kind, stream, incarnation, session, number, body=raw[_HEAD.size + _REST.size :]
    )


def pack_hello(schema: bytes, streams: Sequence[StreamSpec], firsts: Sequence[int]) -> bytes:
    """Returns the body of HELLO; `firsts`: the first number of each stream that is not released."""
    sizes = (
        _SIZES.pack(spec.nbytes, spec.slots, first)
        for spec, first in zip(streams, firsts, strict=True)
    )
    return b"".join([struct.pack("<I", len(streams)), *sizes, schema])


def unpack_hello(body: bytes, where: str) -> tuple[bytes, list[StreamSpec], list[int]]:
    """Unpacks schema, streams and first numbers again."""
    count = struct.unpack_from("<I", body)[0] if len(body) >= 4 else 0
    if not 1 <= count <= MAX_STREAMS or len(body) < 4 + count * _SIZES.size:
        raise CorruptPacket(where, "streams", str(count), f"1 to {MAX_STREAMS}")
    end = 4 + count * _SIZES.size
    sizes = list(_SIZES.iter_unpack(body[4:end]))
    if not all(nbytes and slots for nbytes, slots, _ in sizes):
        raise CorruptPacket(where, "streams", str(sizes), "1 byte and 1 slot or more")
    return body[end:], [StreamSpec(*size[:2]) for size in sizes], [size[2] for size in sizes]
