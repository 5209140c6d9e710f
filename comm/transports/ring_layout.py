"""The memory of a ring is laid out as a control page, then schema, tables and slots.

64-bit words; each is written by the launcher (before anybody has the file), by the sender or by
the receiver alone, and words of different writers lie in different cache lines. The control page:

    launcher  magic, version, link (a random number)
    sender    its process and when that began; how many senders there have been; closed; then what
              it says of the rest: bytes and CRC-32 of the schema, number of streams, CRC-32 of
              their sizes, and `ready` once all of it is there
    receiver  its process and when that began; closed; the sender's doorbell, whose sleeper's
              word is the sender's

Behind it the schema, the sizes (nbytes, slots) of each stream, for each stream

    sent      how many packets were sent
    order[s]  packet n lies in the slot order[n mod slots]
    held[s]   1 + the number of the last packet in the slot, or of one that was not sent
    freed[s]  1 + the number of the packet that was released last from the slot  (the receiver's)

and the slots: a packet's header, its payload.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Final

from gmi_drl.comm.errors import LinkError
from gmi_drl.comm.shm.alignment import round_up

from .doorbell import DOORBELL_BYTES
from .packet import HEADER_BYTES
from .protocol import MAX_STREAMS, StreamSpec

MAGIC: Final = 0x474E49524C4D4447  # "GDMLRING"
VERSION: Final = 1
CONTROL_BYTES: Final = 4096
LINK: Final = 2
SENDER, SENDERS, SENDER_CLOSED = 8, 10, 11
SCHEMA_BYTES, SCHEMA_CRC, STREAMS, SIZES_CRC, READY = 16, 17, 18, 19, 20
RECEIVER, RECEIVER_CLOSED = 32, 34
SENDER_DOORBELL: Final = 384  # in bytes
_LINE: Final = 64
_PAGE: Final = 4096
_MAX_BYTES: Final = 1 << 46

assert SENDER_DOORBELL >= (RECEIVER_CLOSED + 1) * 8
assert SENDER_DOORBELL + DOORBELL_BYTES <= CONTROL_BYTES


def write_control(memory: memoryview, link: int) -> None:
    """Marks fresh zeros as the control page of a ring."""
    words = memory.cast("Q")
    words[0], words[1], words[LINK] = MAGIC, VERSION, link


def check_control(words: memoryview, link: int, name: str) -> None:
    """Raises LinkError unless this is the control page of that link."""
    for index, what, expected in ((0, "magic", MAGIC), (1, "version", VERSION), (2, "link", link)):
        if words[index] != expected:
            raise LinkError(
                f"{name}: the shared memory's {what} is {words[index]:#x} instead of "
                f"{expected:#x}: it is another link's, or damaged. Pass the LinkSpec on as it is."
            )


class RingStream:
    """The places of one stream's words (by index) and slots (by byte)."""

    __slots__ = ("freed", "held", "nbytes", "order", "sent", "slots", "start", "stride")

    def __init__(self, spec: StreamSpec, word: int) -> None:
        line = _LINE // 8
        self.nbytes, self.slots = spec.nbytes, spec.slots
        self.sent = word
        self.order = word + line
        self.held = self.order + spec.slots
        self.freed = round_up(self.held + spec.slots, line)
        self.start = 0
        self.stride = round_up(HEADER_BYTES + spec.nbytes, _LINE)

    @property
    def end(self) -> int:
        """Returns the first word behind this stream's."""
        return round_up(self.freed + self.slots, _LINE // 8)

    def slot(self, place: int) -> int:
        """Returns where a slot begins, with its packet's header."""
        return self.start + place * self.stride


class RingLayout:
    """The places of everything, which follow from the sizes alone."""

    def __init__(self, schema_bytes: int, specs: Sequence[StreamSpec]) -> None:
        self.schema = CONTROL_BYTES
        self.sizes = round_up(self.schema + schema_bytes, _LINE) // 8  # the word
        self.streams: list[RingStream] = []
        word = round_up(self.sizes + 2 * len(specs), _LINE // 8)
        for spec in specs:
            self.streams.append(RingStream(spec, word))
            word = self.streams[-1].end
        self.words_end = round_up(word * 8, _LINE)
        start = round_up(self.words_end, _PAGE)
        for stream in self.streams:
            stream.start = start
            start = round_up(start + stream.slots * stream.stride, _PAGE)
        self.nbytes = start

    def check(self, nbytes: int, name: str) -> None:
        """Raises LinkError unless this fits in a file of `nbytes`."""
        if self.nbytes > nbytes:
            raise damaged(name, f"sizes that need {self.nbytes:,} bytes, of {nbytes:,}")


def sizes_crc(specs: Sequence[StreamSpec]) -> int:
    """Returns a checksum of what a sender says of its streams."""
    return zlib.crc32(repr([(spec.nbytes, spec.slots) for spec in specs]).encode())


def write_layout(memory: memoryview, words: memoryview, layout: RingLayout, schema: bytes) -> None:
    """Says what the rest of the file is; the pages are there, nobody looks at them yet."""
    specs = [StreamSpec(stream.nbytes, stream.slots) for stream in layout.streams]
    memory[layout.schema : layout.schema + len(schema)] = schema
    for index, number in enumerate(itertools.chain(*((s.nbytes, s.slots) for s in specs))):
        words[layout.sizes + index] = number
    for stream in layout.streams:  # left by one that was killed at this, of other sizes
        for index in range(stream.sent, stream.end):
            words[index] = 0
    words[SCHEMA_BYTES], words[SCHEMA_CRC] = len(schema), zlib.crc32(schema)
    words[STREAMS], words[SIZES_CRC] = len(specs), sizes_crc(specs)


def read_layout(memory: memoryview, words: memoryview, name: str) -> tuple[bytes, RingLayout]:
    """Reads the schema, and where everything is; `memory` is the whole file, ready.

    LinkError if what the sender has written of it is damaged.
    """
    nbytes = len(memory)
    schema_bytes, number = words[SCHEMA_BYTES], words[STREAMS]
    if not 1 <= number <= MAX_STREAMS:
        raise damaged(name, f"{number} streams")
    if CONTROL_BYTES + schema_bytes + 16 * number > nbytes:
        raise damaged(name, f"a schema of {schema_bytes:,} bytes, in a file of {nbytes:,}")
    schema = bytes(memory[CONTROL_BYTES : CONTROL_BYTES + schema_bytes])
    if zlib.crc32(schema) != words[SCHEMA_CRC]:
        raise damaged(name, "a schema with another checksum")
    first = RingLayout(schema_bytes, []).sizes
    pairs = [words[word] for word in range(first, first + 2 * number)]
    if not all(0 < pair < _MAX_BYTES for pair in pairs):
        raise damaged(name, f"sizes {pairs}")
    specs = [StreamSpec(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    if sizes_crc(specs) != words[SIZES_CRC]:
        raise damaged(name, "stream sizes with another checksum")
    layout = RingLayout(schema_bytes, specs)
    layout.check(nbytes, name)
    return schema, layout


def damaged(name: str, what: str) -> LinkError:
    return LinkError(
        f"{name}: its shared memory holds {what}: it is damaged. Look for another process that "
        "writes there, then start the run again."
    )
