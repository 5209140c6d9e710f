"""Routes segments from an agent to trainers.

A segment goes whole to one trainer: of those on the agent's own device, as the paper has it (4.2),
else of all, the one with the least under way. When their links are full the agent waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gmi_drl.comm.errors import LinkEnded, LinkTimeout, WaitStopped
from gmi_drl.comm.group.group import DEFAULT_TIMEOUT
from gmi_drl.comm.transports import PacketSlot, Sender

_SLICE: Final = timedelta(milliseconds=50)  # how often a wait looks at `stop` and at other routes


@dataclass(frozen=True)
class Route:
    """A way to one trainer. The sender's streams are those of the agent's schema."""

    sender: Sender
    trainer: int  # gmi_id
    same_device: bool = False
    name: str = ""  # the trainer as errors call it: "gmi 5, GPU 1"


@dataclass(frozen=True)
class SegmentId:
    """One segment. With an agent `gmi_id` is the trainer it went to; there, the agent.

    (incarnation, sequence) grows along a link and is the same at both of its ends.
    """

    gmi_id: int
    incarnation: int
    sequence: int
    policy_version: int


class _Outlet:
    """A route, and what it holds of the sender."""

    __slots__ = ("ended", "name", "reserved", "route", "sequence")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.name = route.name or f"gmi {route.trainer}"
        self.sequence = 0  # of the next segment
        self.reserved: dict[int, PacketSlot] = {}  # by stream: not sent yet
        self.ended = False


class Migrator:
    """The senders of one agent as one. `timeout` holds for each wait for room.

    `stop` is asked while it waits; once it says True, the wait ends with WaitStopped.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        if not routes:
            raise ValueError("no routes: an agent needs a trainer to send to. Pass one or more.")
        local = [route for route in routes if route.same_device]
        self._outlets = [_Outlet(route) for route in local or routes]
        self._timeout_s = timeout.total_seconds()
        self._stop = stop
        self._current: _Outlet | None = None  # once the segment has a slot
        self._started = False  # once a packet of the segment was sent
        self.waited_s = 0.0
        self.nbytes = self.packets = 0

    def reserve(self, stream: int) -> PacketSlot:
        """Reserves room for the next packet of the segment; the first one decides where it goes.

        Waits while there is none: LinkTimeout names the trainers that take nothing, LinkEnded
        says that they have closed.
        """
        outlet = self._current or self._least_loaded()
        slot = self._room(outlet, stream, timedelta(0))
        if slot is None:
            outlet, slot = self._wait(stream)
        outlet.reserved[stream] = slot
        self._current = outlet
        return slot

    def send(self, slot: PacketSlot, nbytes: int, step: int, policy_version: int) -> None:
        """Sends a packet of the segment: the first `nbytes` of the slot; `step` is its first."""
        outlet = self._current
        assert outlet is not None
        outlet.route.sender.send(
            slot, nbytes, sequence=outlet.sequence, step=step, policy_version=policy_version
        )
        del outlet.reserved[slot.stream]
        self._started = True
        self.packets += 1
        self.nbytes += nbytes

    def end(self, policy_version: int) -> SegmentId:
        """Ends a segment that was sent whole."""
        outlet = self._current
        assert outlet is not None
        incarnation = outlet.route.sender.incarnation
        segment = SegmentId(outlet.route.trainer, incarnation, outlet.sequence, policy_version)
        self.abandon()
        return segment

    def abandon(self) -> bool:
        """Gives up the rest of this segment; returns whether any of it was sent.

        Slots that were reserved for it are kept for the next segment.
        """
        started, outlet = self._started, self._current
        if started and outlet is not None:
            outlet.sequence += 1
        self._started, self._current = False, None
        return started

    def _least_loaded(self) -> _Outlet:
        """Picks the route with the fewest segments under way, then the one least used."""
        open_ones = [outlet for outlet in self._outlets if not outlet.ended]
        if not open_ones:
            names = ", ".join(outlet.name for outlet in self._outlets)
            raise LinkEnded(f"all trainers have closed their links: {names}. Stop collecting.")
        if len(open_ones) == 1:
            return open_ones[0]
        return min(open_ones, key=lambda o: (o.route.sender.under_way(0), o.sequence))

    def _room(self, outlet: _Outlet, stream: int, wait: timedelta) -> PacketSlot | None:
        """Returns the slot reserved before, or a new one; None if there is none within `wait`."""
        try:
            return outlet.reserved.get(stream) or outlet.route.sender.reserve(stream, wait)
        except LinkTimeout:
            return None
        except LinkEnded:
            outlet.ended = True
            if self._current is not None:
                raise
            return None

    def _wait(self, stream: int) -> tuple[_Outlet, PacketSlot]:
        start_s = time.monotonic()
        try:
            while True:
                outlet = self._current or self._least_loaded()
                left_s = start_s + self._timeout_s - time.monotonic()
                if self._stop is not None and self._stop():
                    raise WaitStopped(f"waiting for room in the link to {outlet.name}: stopped")
                if left_s <= 0:
                    late = [outlet] if self._current else self._outlets
                    names = ", ".join(o.name for o in late if not o.ended)
                    raise LinkTimeout(
                        f"no room for experience within {self._timeout_s:g} s: {names} released "
                        "nothing. Look at its log; raise experience.capacity if it only pauses.",
                        names,
                    )
                # In slices, as another route may be the lightest by then.
                wait = min(_SLICE, timedelta(seconds=left_s))
                if slot := self._room(outlet, stream, wait):
                    return outlet, slot
        finally:
            self.waited_s += time.monotonic() - start_s
