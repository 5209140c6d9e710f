"""Defines the transports of experience: a link with a sender's end and a receiver's end.

A link has streams, each a sequence of packets of at most a fixed size, in order. A packet is under
way from `send` until `release`; a stream has a fixed number of slots for them, and a sender waits
when all are used. Either process may be killed at any time and replaced by one that opens the same
spec; docs/experience.md says what of each kind of link then arrives.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from gmi_drl.comm.errors import LinkClosed, LinkEnded, LinkError, LinkTimeout
from gmi_drl.comm.group.group import DEFAULT_TIMEOUT
from gmi_drl.runtime.process.progress import waiting

from .doorbell import Doorbell
from .packet import Packet, PacketSlot

if TYPE_CHECKING:
    import torch

_SLICE: Final = timedelta(milliseconds=1)  # of a wait for rings and sockets
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
    """An open end of a link, which a `with` block closes.

    It does not if a SystemExit ends it: that is a death of the process, and the one in its place
    is to go on with the link.
    """

    _spec: LinkSpec
    _timeout: timedelta
    _closed = False

    @abstractmethod
    def close(self) -> None:
        """Tells the other end; calling it again is fine.

        A sender tells it behind its last packet; packets that a receiver has not released are lost.
        """

    @abstractmethod
    def _peer_text(self) -> str:
        """Says what is known of the other end, for an error."""

    def pin(self, device: torch.device) -> None:  # noqa: B027 (other memory needs none)
        """Page-locks the memory of packets, where it is the host's and `device` is a GPU.

        From then on `send` and `release` wait for what the current stream of `device` was given, so
        that copies into a slot, or of a packet, need not be waited for.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, SystemExit):
            self.close()

    def _closed_here(self) -> LinkClosed:
        return LinkClosed(f"{self._spec.name} has been closed here")


class Sender(LinkEnd):
    """The sending end. Not for several threads at once.

    Every method but `close` raises LinkClosed after `close`; `reserve` and `try_reserve` raise
    LinkEnded when the receiver has closed its end.
    """

    incarnation: int  # 0; one more each time the sender's process was replaced
    _streams: Sequence[Any]  # whose `busy` are the packets under way

    def reserve(self, stream: int, timeout: timedelta | None = None) -> PacketSlot:
        """Reserves a free slot; waits while all of the stream's are under way.

        LinkTimeout names the receiver if it releases none by `timeout` (default: the sender's).
        Several may be reserved at once; `send` decides their order.
        """
        slot = self.try_reserve(stream)
        if slot is not None:
            return slot
        name, target = self._spec.name, self._spec.target
        limit_s = (self._timeout if timeout is None else timeout).total_seconds()
        deadline_s = time.monotonic() + limit_s
        while slot is None:
            busy, left_s = len(self._streams[stream].busy), deadline_s - time.monotonic()
            if not busy:
                raise LinkError(
                    f"{name}: all slots of stream {stream} are reserved here. Send one first, or "
                    "give the stream more."
                )
            if left_s <= 0:
                raise LinkTimeout(
                    f"{name}: no room for {limit_s:g} s: {target} has released none of the {busy} "
                    f"packets of stream {stream} that are under way; {self._peer_text()}",
                    target,
                )
            self._wait_for_room(stream, left_s)
            slot = self.try_reserve(stream)
        return slot

    @abstractmethod
    def try_reserve(self, stream: int) -> PacketSlot | None:
        """Reserves a free slot; None if all are under way."""

    @abstractmethod
    def _wait_for_room(self, stream: int, timeout_s: float) -> None:
        """Returns when a slot may have come free, the receiver has closed, or the time is over."""

    @abstractmethod
    def send(
        self, slot: PacketSlot, nbytes: int, *, sequence: int, step: int, policy_version: int
    ) -> None:
        """Sends the first `nbytes` of a reserved slot, which is the receiver's from then on."""

    @abstractmethod
    def under_way(self, stream: int) -> int:
        """Counts the packets of a stream that were sent and are not released."""

    def give_up(self) -> None:
        """Has `close` wait for nobody, where the receiver is lost or reads no more."""

    def _ended_there(self) -> LinkEnded:
        spec = self._spec
        return LinkEnded(f"{spec.name}: {spec.target} has closed it and receives nothing more")


class Receiver(LinkEnd):
    """The receiving end. Not for several threads at once."""

    source: str  # the sending end, as errors call it
    doorbell: Doorbell | None = None  # what it is woken by; None: by its sockets
    _schema: bytes | None = None

    @property
    def refused(self) -> int:
        """Returns how many connections of strangers were refused so far."""
        return 0

    @property
    def schema(self) -> bytes:
        """Returns what the sender said of its packets.

        Waits for the sender until the receiver's timeout; LinkTimeout names it.
        """
        if self._closed:
            raise self._closed_here()
        wait_until(self.connected, [self], self._timeout)
        if self._schema is None:
            raise LinkTimeout(
                f"{self._spec.name}: {self.source} has not come within "
                f"{self._timeout.total_seconds():g} s; {self._peer_text()}",
                self.source,
            )
        return self._schema

    @abstractmethod
    def connected(self) -> bool:
        """Tells whether a sender has come, now or before; never waits."""

    @abstractmethod
    def ready(self) -> bool:
        """Tells whether `poll` has something to say: a packet, or the end."""

    def sockets(self) -> list[Any]:
        """Returns what becomes readable when there is something to look at."""
        return []

    @abstractmethod
    def poll(self) -> Packet | None:
        """Returns the next packet of any stream, or None if none is there; never waits.

        LinkEnded when the sender has closed and all of its packets were given; CorruptPacket when
        one had to be refused, the next call goes on behind it.
        """

    @abstractmethod
    def release(self, packet: Packet) -> None:
        """Gives a packet's memory back, in any order; nothing may be read from it after that."""

    def _ended_there(self) -> LinkEnded:
        name = self._spec.name
        return LinkEnded(f"{name}: {self.source} has closed it, and all packets were received")


def wait_any(receivers: Sequence[Receiver], timeout: timedelta) -> bool:
    """Returns when `poll` of one of them has something to say; False if none has by `timeout`.

    All rings with one doorbell, or all sockets, are slept on together; of a mixture each kind is
    looked at every millisecond.
    """
    if not receivers:
        raise ValueError("no receivers: there is nothing to wait for.")
    return wait_until(lambda: any(receiver.ready() for receiver in receivers), receivers, timeout)


def wait_until(
    ready: Callable[[], bool], receivers: Sequence[Receiver], timeout: timedelta
) -> bool:
    """Returns True once `ready` is, by what comes to `receivers`; False after `timeout`."""
    doorbells = {end.doorbell.key: end.doorbell for end in receivers if end.doorbell is not None}
    sockets = [socket for end in receivers for socket in end.sockets()]
    if len(doorbells) == 1 and not sockets:
        return next(iter(doorbells.values())).wait(ready, timeout)
    deadline_s = time.monotonic() + timeout.total_seconds()
    while not ready():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        if doorbells:
            pause = min(_SLICE, timedelta(seconds=left_s))
            next(iter(doorbells.values())).wait(ready, pause)
        else:
            poll_sockets(sockets, left_s)
    return True


def poll_sockets(sockets: Sequence[Any], timeout_s: float) -> None:
    """Returns when one of them is readable, or the time is over."""
    import zmq

    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    with waiting:
        poller.poll(max(1, int(timeout_s * 1000)))


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
        self, schema: bytes, streams: Sequence[StreamSpec], timeout: timedelta = DEFAULT_TIMEOUT
    ) -> Sender:
        """Opens the sender's end; waits for nobody. `timeout` holds for each later wait.

        LinkError if there is no memory for the streams or another process is the sender already,
        SchemaDiffers if that of a replaced sender's was another.
        """
        if not 1 <= len(streams) <= MAX_STREAMS:
            raise ValueError(f"{len(streams)} streams: a link has 1 to {MAX_STREAMS}.")
        _check_timeout(timeout)
        return self._ends()[0](self, schema, streams, timeout)

    def receiver(self, timeout: timedelta = DEFAULT_TIMEOUT) -> Receiver:
        """Opens the receiver's end; waits for nobody. `timeout`: see Receiver.schema."""
        _check_timeout(timeout)
        return self._ends()[1](self, timeout)

    @abstractmethod
    def _ends(self) -> tuple[Callable[..., Sender], Callable[..., Receiver]]:
        """Imports the classes of both ends, and torch with them."""


def _check_timeout(timeout: timedelta) -> None:
    if timeout <= timedelta(0):
        raise ValueError(f"timeout {timeout}: must be more than nothing. Use e.g. 30 s.")
