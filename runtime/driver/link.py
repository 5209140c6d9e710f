"""What the driver knows of one process, and the sockets it reaches it by."""

from __future__ import annotations

import collections
import contextlib
import itertools
import pickle
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Exited, Kind

if TYPE_CHECKING:
    from gmi_drl.runtime.api.refs import Slot

    from .actor import Actor
    from .task import Task

_NOSIGNAL: Final = int(socket.MSG_NOSIGNAL)
_TOGETHER: Final = 64  # small frames in one system call
_READS_AT_ONCE: Final = 16  # then it is the other channels' turn


class Channel:
    """A non-blocking socket with what is still to be sent on it. Used by one thread only."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self.full = False  # the socket takes no more for now
        self._lock = threading.Lock()  # what is sent is sent whole, by whichever thread
        self._reader = framing.Reader()
        # (bytes, descriptors that go with the first of them, whatever keeps those open)
        self._outgoing: collections.deque[tuple[memoryview | bytes, Sequence[int], Any]] = (
            collections.deque()
        )

    def queue(self, frame: bytes, fds: Sequence[int] = (), keep: Any = None) -> None:
        """Adds a whole frame; `write` sends it."""
        self._outgoing.append((frame, fds, keep))

    def send_now(self, frame: bytes) -> bool:
        """Sends a small frame at once, from any thread; False if it had to be queued."""
        with self._lock:
            if not self._outgoing and self.open:
                # A stream socket takes so little whole, or not at all.
                with contextlib.suppress(OSError):
                    self.sock.send(frame, _NOSIGNAL)
                    return True
            self._outgoing.append((frame, (), None))
            return False

    def write(self) -> bool:
        """Sends what the socket takes now; True when nothing is left."""
        with self._lock:
            return self._write()

    def _write(self) -> bool:
        outgoing = self._outgoing
        while outgoing:
            first, fds, keep = outgoing[0]
            parts = [first]
            for data, more_fds, _ in itertools.islice(outgoing, 1, _TOGETHER):
                if more_fds:  # they must begin a message of their own
                    break
                parts.append(data)
            try:
                sent = framing.send_some(self.sock, parts, fds)
            except BlockingIOError:
                return False
            except OSError:  # nobody reads any more; its end is noticed by reading
                outgoing.clear()
                return True
            while outgoing and sent >= len(outgoing[0][0]):
                sent -= len(outgoing.popleft()[0])
            if sent:
                data, fds, keep = outgoing[0]
                # Descriptors went with the first byte; only the first entry can have had any.
                outgoing[0] = (memoryview(data)[sent:], (), keep)
        return True

    def read(self) -> tuple[list[framing.Message], bool]:
        """What has arrived, and whether the other end is still open."""
        messages: list[framing.Message] = []
        for _ in range(_READS_AT_ONCE):
            try:
                some = self._reader.read(self.sock)
            except BlockingIOError:
                return messages, True
            except OSError:
                return messages, False
            if some is None:
                return messages, False
            messages += some
            if not self._reader.more:
                break
        return messages, True

    def forget(self) -> None:
        """After a fork: closes this copy. Who held the lock just then is not in this process."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Closes the socket; what was not sent is dropped."""
        with self._lock:
            self.open = False
            self._outgoing.clear()
            self._reader.close()
            self.sock.close()


class Process:
    """One process as the driver sees it: a worker for tasks, or an actor's. One thread's alone."""

    def __init__(
        self,
        number: int,
        device: int,
        log: str,
        keep_log: bool,
        socks: tuple[socket.socket, socket.socket],
        actor: Actor | None,
    ) -> None:
        self.number = number
        self.device = device
        self.log = log
        self.keep_log = keep_log  # else it goes with the process; its end is in the error
        self.channel, self.urgent = Channel(socks[0]), Channel(socks[1])
        self.actor = actor
        self.pid: int | None = None
        self.numbers = itertools.count(1)
        self.calls: dict[int, Task] = {}  # that it was handed, in order
        self.to_send: collections.deque[Any] = collections.deque()
        self.functions: dict[bytes, int] = {}  # that it knows, and their bytes
        self.function_bytes = 0
        self.gpu_ids: tuple[int | str, ...] = ()  # a worker's, for the calls it has
        self.pins: collections.Counter[bytes] = collections.Counter()
        self.creating: set[bytes] = set()  # objects it is writing
        self.wanted: set[bytes] = set()  # that its call waits for
        self.blocked = False
        self.end_reason = ""  # why it is being ended from outside
        self.exited: Exited | None = None
        self.silent = False  # it has closed its socket
        self.never_forked = False  # the fork server died before it came to it
        self.stopping = False  # the scheduler has let go of it
        self.dead = False

    @property
    def scheduled_as(self) -> int | bytes:
        """What the scheduler calls it."""
        return self.number if self.actor is None else self.actor.id

    def send(self, kind: Kind, id: int, value: Any) -> None:
        """Queues a frame with a pickled body."""
        self.channel.queue(framing.frame(kind, id, pickle.dumps(value, 5)))

    def found(self, slot: Slot, values: bool) -> None:
        """Tells it that an object it asked for is there."""
        if self.dead:
            return
        self.wanted.discard(slot.id)
        error = slot.error_
        slot.seen = slot.seen or values
        if slot.stored:
            self.send(Kind.READY, 0, (slot.id, True))
        elif not values:
            self.send(Kind.READY, 0, (slot.id, False))
        elif error is not None:
            from .tasks import failure_of

            self.send(Kind.VALUE, 0, (slot.id, failure_of(error), True))
        else:
            self.send(Kind.VALUE, 0, (slot.id, bytes(slot.body), slot.failed))

    def bury(self) -> None:
        """It is over."""
        self.dead = True
        self.channel.close()
        self.urgent.close()

    def remove_log(self) -> None:
        """Its output is in the error by now, unless somebody wanted it kept."""
        if not self.keep_log:
            for path in (self.log, f"{self.log}.1"):
                Path(path).unlink(missing_ok=True)
