"""The launcher's side: one thread that talks to the fork server and to every actor.

That thread owns all sockets and the state of all actors. Other threads hand it commands and wait
on slots and events, so that a KeyboardInterrupt never hits half-way through a message.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from . import packing, wire
from .errors import ActorDiedError, tail_text
from .link import RECORDS_KEPT, ActorLink, Channel
from .protocol import Exited, Kind, Ready, SpawnRequest
from .refs import Slot
from .server import ServerProcess

_ORPHANS_S: Final = 2.0  # how long actors may take to follow their dead fork server


class Runtime:
    """Everything behind `init()`: the fork server, the actors, the thread that serves them."""

    def __init__(self, preload: Sequence[str]) -> None:
        self.owner_pid = os.getpid()
        self.server = ServerProcess(preload)
        self.ready = Slot("the fork server's imports")
        self._control = Channel(self.server.control)
        self._broken = ""  # why no actor can be started any more
        self._orphaned_s = 0.0
        self._links: dict[int, ActorLink] = {}  # that live, or have records nobody fetched
        self._numbers = itertools.count(1)
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._running = True
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self._woken)
        self._selector.register(self._control.sock, selectors.EVENT_READ, self._on_control)
        self._thread = threading.Thread(target=self._serve, name="gmi_drl-runtime", daemon=True)
        self._thread.start()

    # From any thread.

    def next_number(self) -> int:
        """The number of the next actor."""
        return next(self._numbers)

    def spawn(
        self,
        number: int,
        request: SpawnRequest,
        keep_log: bool,
        body: packing.Packed,
        arguments: packing.Packed,
    ) -> ActorLink:
        """Asks for a new actor; returns at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        link = ActorLink(number, request.name, request.log, keep_log, ours)
        link.channel.queue(b"".join(wire.frame(Kind.BUILD, 0, body)))
        memfds = arguments.memfds
        frame = b"".join(wire.frame(Kind.CALL, 0, arguments))
        link.channel.queue(frame, [memfd.fd for memfd in memfds], memfds)
        spawn = b"".join(wire.frame(Kind.SPAWN, link.number, packing.pack(request), 1))

        def start() -> None:
            self._links[link.number] = link
            self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_actor(link))
            if self._broken:
                self._bury(link, self._broken)
                theirs.close()
                return
            self._control.queue(spawn, [theirs.fileno()], _Closing(theirs))
            self._write(self._control, self._on_control)
            self._write(link.channel, lambda: self._on_actor(link))

        self._submit(start)
        return link

    def call(self, link: ActorLink, method: str, packed: packing.Packed) -> Slot:
        """Queues one call behind the earlier ones; returns at once."""
        slot = Slot(f"{link.name}.{method}")
        id = next(link.call_ids)
        frame = b"".join(wire.frame(Kind.CALL, id, packed))
        fds = [memfd.fd for memfd in packed.memfds]

        def send() -> None:
            if link.dead:
                slot.fail(link.death())
                return
            link.pending[id] = slot
            link.channel.queue(frame, fds, packed.memfds)
            self._write(link.channel, lambda: self._on_actor(link))

        self._submit(send)
        return slot

    def ask(self, link: ActorLink, kind: Kind, reason: str = "") -> None:
        """Sends ASK_STOP or CLOSE."""

        def send() -> None:
            if not link.dead:
                link.end_reason = link.end_reason or reason
                link.channel.queue(b"".join(wire.frame(kind, 0)))
                self._write(link.channel, lambda: self._on_actor(link))

        self._submit(send)

    def signal(self, link: ActorLink, number: int, reason: str) -> None:
        """Signals the actor's process group, unless it has ended."""

        def send() -> None:
            if not link.dead and not self._broken:
                link.end_reason = link.end_reason or reason
                frame = wire.frame(Kind.SIGNAL, link.number, packing.pack(number))
                self._control.queue(b"".join(frame))
                self._write(self._control, self._on_control)

        self._submit(send)

    def links(self) -> list[ActorLink]:
        """Every actor that lives, or whose records nobody has fetched."""
        return list(self._links.values())

    def drained(self, link: ActorLink) -> None:
        """Nobody will ask for this dead actor's records again."""
        if link.dead and not link.records:
            self._links.pop(link.number, None)

    def close(self) -> None:
        """Ends the thread and the fork server, which kills what still lives."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("shutdown() cannot be called from the runtime's own thread")

        def stop() -> None:
            self._running = False

        self._submit(stop)
        self._thread.join()
        for link in self.links():
            if not link.dead:
                link.end_reason = link.end_reason or "the runtime was shut down"
        self._selector.close()
        os.close(self._wake_fd)
        self.server.end(at_once=not self.ready.done)
        for link in self.links():
            if not link.dead:
                self._bury_now(link, "", signal.SIGKILL)
        self.ready.fail(ActorDiedError("fork server", reason="the runtime was shut down"))

    def forget(self) -> None:
        """After a fork of the launcher: closes this copy's descriptors and touches nothing else."""
        self._selector.close()
        self._control.close()
        os.close(self._wake_fd)
        for link in self._links.values():
            link.channel.close()

    def _submit(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        with contextlib.suppress(OSError):  # closed: shutdown was faster
            os.eventfd_write(self._wake_fd, 1)

    # From the runtime's thread only.

    def _serve(self) -> None:
        while self._running:
            timeout = 0.05 if self._orphaned_s else None
            for key, _ in self._selector.select(timeout):
                try:
                    key.data()
                except Exception:  # one actor's garbage must not silence the others
                    traceback.print_exc(file=sys.stderr)
            if self._orphaned_s and time.monotonic() - self._orphaned_s > _ORPHANS_S:
                self._orphaned_s = 0.0
                for link in self.links():
                    self._bury(link, self._broken)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while self._commands:
            self._commands.popleft()()

    def _write(self, channel: Channel, handler: Callable[[], None]) -> None:
        """Sends what goes now, and sees to the rest."""
        if not channel.open:
            return
        events = selectors.EVENT_READ
        if not channel.write():
            events |= selectors.EVENT_WRITE
        with contextlib.suppress(KeyError):  # its other end is closed already
            if self._selector.get_key(channel.sock).events != events:
                self._selector.modify(channel.sock, events, handler)

    def _on_control(self) -> None:
        if not self._control.open:
            return
        self._write(self._control, self._on_control)
        messages, open = self._control.read()
        for message in messages:
            if message.kind == Kind.READY:
                self._on_ready(message.load(), message)
            elif (link := self._links.get(message.id)) is None:
                continue
            elif message.kind == Kind.FORKED:
                link.pid = message.load()
            elif message.kind == Kind.NOT_FORKED:
                self._bury(link, f"it could not be forked: {message.load()}")
            elif message.kind == Kind.EXITED:
                link.exited = message.load()
                self._read_rest(link)
                self._bury(link, link.end_reason)
        if not open:
            self._on_server_gone()

    def _on_ready(self, ready: Ready, message: wire.Message) -> None:
        if ready.num_threads != 1:
            self._broken = (
                f"the fork server has {ready.num_threads} threads since it imported "
                f"{ready.threaded_by}, and cannot fork safely. Leave that module out of preload"
            )
        self.ready.fill(message)

    def _on_server_gone(self) -> None:
        """Its children die with it (PDEATHSIG); their own children are ours to kill."""
        self._selector.unregister(self._control.sock)
        self._control.open = False
        tail = self.server.log_tail()
        self._broken = "the fork server died. Call shutdown() and init() again" + (
            tail_text(tail) if tail else ""
        )
        self._orphaned_s = time.monotonic()
        self.ready.fail(ActorDiedError("fork server", self.server.process.pid, reason=self._broken))
        for link in self.links():
            if link.pid is None and not link.dead:
                self._bury(link, self._broken)
            elif link.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(link.pid, signal.SIGKILL)

    def _on_actor(self, link: ActorLink) -> None:
        if not link.channel.open:  # buried by an event of the same round
            return
        self._write(link.channel, lambda: self._on_actor(link))
        messages, open = link.channel.read()
        for message in messages:
            self._on_message(link, message)
        if not open:
            self._selector.unregister(link.channel.sock)
            if self._orphaned_s:  # nobody is left who would tell how it ended
                link.exited = Exited(None, signal.SIGKILL, time.monotonic())
                self._bury(link, self._broken)

    def _on_message(self, link: ActorLink, message: wire.Message) -> None:
        if message.kind == Kind.RECORD:
            link.dropped = message.id + max(0, len(link.records) + 1 - RECORDS_KEPT)
            link.records.append(message)
        elif slot := link.pending.pop(message.id, None):
            slot.fill(message, failed=message.kind == Kind.ERROR)

    def _read_rest(self, link: ActorLink) -> None:
        """What a dead actor had sent before its end."""
        open = link.channel.open
        while open:
            messages, open = link.channel.read()
            for message in messages:
                self._on_message(link, message)
            if not messages:
                break

    def _bury(self, link: ActorLink, reason: str) -> None:
        if link.dead:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.channel.sock)
        self._bury_now(link, reason)

    def _bury_now(self, link: ActorLink, reason: str, signal_number: int | None = None) -> None:
        exited = link.exited or Exited(None, signal_number, time.monotonic())
        cause = link.built.error() if link.built.done else None
        link.bury(
            ActorDiedError(
                link.name,
                link.pid,
                exited.exit_code,
                exited.signal,
                link.log_tail(),
                reason or link.end_reason,
                cause,
                exited.died_s,
            )
        )
        if not link.records:
            self._links.pop(link.number, None)


class _Closing:
    """Closes a socket when it is dropped, that is when its copy has been sent."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __del__(self) -> None:
        self._sock.close()
