"""Defines the transports of experience: a link with a sender's end and a receiver's end.

A link joins one sending process to one receiving process. It has streams, each a sequence of
packets of at most a fixed size, and keeps the order inside each. A packet is under way from `send`
until `release`; a stream has a fixed number of slots for them, and a sender waits when all are
used: nothing is ever dropped for lack of room.

Either process may be killed at any time and replaced by one that opens the same spec. A receiver is
then given again what its predecessor had received and not released. What a killed sender had sent
whole arrives, once, by memory that both share. Over a socket, what a killed process had not yet got
out is lost with it: a sender's packets, never half of one, and a receiver's last releases, whose
packets are then given again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, Self

from .packet import Packet, PacketSlot

if TYPE_CHECKING:
    import torch

DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
MAX_STREAMS: Final = 1024


@dataclass(frozen=True)
class StreamSpec:
    """One stream of a link: the most bytes of a packet, and how many may be under way."""

    nbytes: int
    slots: int

    def __post_init__(self) -> None:
        if self.nbytes < 1 or self.slots < 1:
            raise ValueError(
                f"a stream of {self.slots} slots of {self.nbytes} bytes: both are 1 or more."
            )


class LinkEnd(ABC):
    """An open end of a link, which a `with` block closes."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sender(Protocol):
    """The sending end. Not for several threads at once.

    Every method but `close` raises LinkClosed after `close`; `reserve` and `try_reserve` raise
    LinkEnded when the receiver has closed its end.
    """

    incarnation: int  # 0; one more each time the sender's process was replaced

    def pin(self, device: torch.device) -> None:
        """Page-locks the memory of packets that are copied from a GPU, where it is the host's.

        From then on `send` waits for what the current stream of `device` was given, so that copies
        into a slot need not be waited for. Nothing on a cpu device.
        """

    def reserve(self, stream: int, timeout: timedelta | None = None) -> PacketSlot:
        """Reserves a free slot; waits while all of the stream's are under way.

        LinkTimeout names the receiver if it releases none by `timeout` (default: the sender's).
        Several may be reserved at once; `send` decides their order.
        """

    def try_reserve(self, stream: int) -> PacketSlot | None:
        """Reserves a free slot; None if all are under way."""

    def send(
        self, slot: PacketSlot, nbytes: int, *, sequence: int, step: int, policy_version: int
    ) -> None:
        """Sends the first `nbytes` of a reserved slot, which is the receiver's from then on."""

    def under_way(self, stream: int) -> int:
        """Counts the packets of a stream that were sent and are not released."""

    def close(self) -> None:
        """Tells the receiver, behind the last packet. Calling it again is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Receiver(Protocol):
    """The receiving end. Not for several threads at once."""

    source: str  # the sending end, as errors call it

    def pin(self, device: torch.device) -> None:
        """Page-locks the memory of packets that are copied to a GPU, where it is the host's.

        From then on `release` waits for what the current stream of `device` was given, so that
        copies of a packet need not be waited for. Nothing on a cpu device.
        """

    @property
    def schema(self) -> bytes:
        """Returns what the sender said of its packets.

        Waits for the sender until the receiver's timeout; LinkTimeout names it.
        """

    def connected(self) -> bool:
        """Tells whether a sender has come, now or before; never waits."""

    def poll(self) -> Packet | None:
        """Returns the next packet of any stream, or None if none is there; never waits.

        LinkEnded when the sender has closed and all of its packets were given; CorruptPacket when
        one had to be refused, the next call goes on behind it.
        """

    def release(self, packet: Packet) -> None:
        """Gives a packet's memory back, in any order; nothing may be read from it after that."""

    def close(self) -> None:
        """Tells the sender. Packets that were not released are lost. Calling it again is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class LinkSpec(ABC):
    """The means to open a link; made by the launcher, before any size is known.

    It passes through the arguments of an actor call. `source` and `target` are the ends as errors
    call them: "gmi 0, GPU 0".
    """

    kind: str
    source: str
    target: str

    @property
    def name(self) -> str:
        """Returns the link as errors call it."""
        return f"link from {self.source} to {self.target}"

    def sender(
        self,
        schema: bytes,
        streams: Sequence[StreamSpec],
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> Sender:
        """Opens the sender's end; waits for nobody. `timeout` holds for each later wait.

        LinkError if there is no memory for the streams or another process is the sender already,
        SchemaDiffers if that of a replaced sender's was another.
        """
        if not 1 <= len(streams) <= MAX_STREAMS:
            raise ValueError(f"{len(streams)} streams: a link has 1 to {MAX_STREAMS}.")
        _check_timeout(timeout)
        return self._open_sender(schema, streams, timeout)

    def receiver(self, timeout: timedelta = DEFAULT_TIMEOUT) -> Receiver:
        """Opens the receiver's end; waits for nobody. `timeout`: see Receiver.schema."""
        _check_timeout(timeout)
        return self._open_receiver(timeout)

    @abstractmethod
    def _open_sender(
        self, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta
    ) -> Sender: ...

    @abstractmethod
    def _open_receiver(self, timeout: timedelta) -> Receiver: ...


def _check_timeout(timeout: timedelta) -> None:
    if timeout <= timedelta(0):
        raise ValueError(f"timeout {timeout}: must be more than nothing. Use e.g. 30 s.")
