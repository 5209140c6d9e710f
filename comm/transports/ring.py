"""A ring is a link in memory that two processes share: packets are read where they were written.

Ring_layout.py says where everything is. Every word has one writer, so that nothing needs an atomic
read-modify-write, and is written in one store; `|` is a fence. In each stream,

    the sender    picks a free slot; payload, header, held[slot] = n + 1, order[n mod slots] = slot
                  | sent = n + 1 | rings the receiver's doorbell
    the receiver  sees sent > n | slot = order[n mod slots], header, payload
    it releases   | freed[slot] = n + 1 | rings the sender's doorbell
    a slot is free when held = freed (both 0 at first).

Why nothing is read that is being written. A slot's payload is written only while it is free, that
is after its last packet's release; it is read from the time sent passes its number until then. An
order word of n is written again with packet n + slots. Of the `slots` packets from n on at least
one was released then, else there would be no free slot; packets are received in order, so n had
been received, and its order word read. Only numbers below `sent` are looked at, and whatever
belongs to such a number was written before it.

Why either process may be killed at any point and replaced. All state of a stream is in the shared
words, and each step changes one of them.
- Sender. What is not below `sent` was never sent: its slot's held is above `sent`. The newcomer
  sets such a held to freed before it sends anything, so that the slot is free, and no later number
  finds a stale word that equals it; killed in doing so, the next one does the rest. It goes on with
  number `sent`. A packet is therefore sent whole or not at all, and none is sent twice.
- Receiver. Whatever is below `sent` and not released still has its slot, as held + 1 != freed says.
  The newcomer reads `sent`, fences, and looks at all slots: held above that `sent` is a later
  packet's, which it will find by its order word; held != freed otherwise is one that it gives
  again, by ascending number. The sender may go on meanwhile: it writes held only of slots that are
  free, and only numbers that are not below the `sent` that was read. Order words that the newcomer
  reads are those of numbers from that `sent` on, none of which its predecessor can have released.
- Opening. Sizes and schema are written before `ready`; a sender killed before that leaves nothing
  that anybody has read, and the next one writes them anew. After `ready` they stay.
- Pages are reserved before `ready`, so that neither end is hit by a full memory later.
A process takes an end over only when the one before it is gone (claim); the sender's number, its
incarnation, is counted up before it sends anything.

`close` of the sender comes after its last `sent`, with a fence between: who sees it closed, and
then nothing sent that it has not received, has received everything.
"""

from __future__ import annotations

import mmap
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from gmi_drl.runtime.store.memfd import Memfd

from .doorbell import DoorbellSpec, create_doorbell
from .protocol import LinkSpec, StreamSpec
from .ring_layout import CONTROL_BYTES, write_control

if TYPE_CHECKING:
    from .ring_receiver import RingReceiver
    from .ring_sender import RingSender

assert mmap.PAGESIZE % 4096 == 0


@dataclass(frozen=True)
class RingSpec(LinkSpec):
    """A ring in an anonymous file: nothing has a name, nothing is left behind."""

    link: int
    memfd: Memfd
    doorbell: DoorbellSpec  # of the receiving process

    def _open_sender(
        self, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta
    ) -> RingSender:
        from .ring_sender import RingSender

        return RingSender(self, schema, streams, timeout)

    def _open_receiver(self, timeout: timedelta) -> RingReceiver:
        from .ring_receiver import RingReceiver

        return RingReceiver(self, timeout)


def create_ring(source: str, target: str, doorbell: DoorbellSpec | None = None) -> RingSpec:
    """Makes a ring to `target`, whose process hears `doorbell` (its own if not given)."""
    link = secrets.randbits(32)
    memfd = Memfd.create("gmi-drl-ring", CONTROL_BYTES)
    write_control(memfd.map(), link)
    return RingSpec("ring", source, target, link, memfd, doorbell=doorbell or create_doorbell())


def schema_crc(schema: bytes) -> int:
    """Returns the checksum that headers have of the schema."""
    return zlib.crc32(schema)
