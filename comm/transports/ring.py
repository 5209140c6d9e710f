"""A ring is a link in memory that two processes share: packets are read where they were written.

Every word has one writer, so that nothing needs an atomic read-modify-write, and is written in one
store; `|` is a fence. In each stream,

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

The memory consists of 64-bit words; each is written by the sender or by the receiver alone, and
words of different writers lie in different cache lines. First the control page:

    sender    its process and when that began; how many senders there have been; closed; then what
              it says of the rest: bytes of the schema, number of streams, and `ready` once all of
              it is there
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

import secrets
from dataclasses import dataclass
from typing import Final

from gmi_drl.runtime.store.memfd import Memfd

from .doorbell import DoorbellSpec, create_doorbell
from .protocol import LinkSpec, Receiver, Sender

CONTROL_BYTES: Final = 4096


@dataclass(frozen=True)
class RingSpec(LinkSpec):
    """A ring in an anonymous file: nothing has a name, nothing is left behind."""

    link: int
    memfd: Memfd
    doorbell: DoorbellSpec  # of the receiving process

    def _ends(self) -> tuple[type[Sender], type[Receiver]]:
        from .ring_ends import RingReceiver, RingSender

        return RingSender, RingReceiver


def create_ring(source: str, target: str, doorbell: DoorbellSpec | None = None) -> RingSpec:
    """Makes a ring to `target`, whose process hears `doorbell` (its own if not given)."""
    memfd = Memfd.create("gmi-drl-ring", CONTROL_BYTES)
    return RingSpec(
        "ring", source, target, secrets.randbits(32), memfd, doorbell=doorbell or create_doorbell()
    )
