"""What the driver knows of one actor, and the channel it reaches it by."""

from __future__ import annotations

import collections
import itertools
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from . import wire
from .errors import LOG_TAIL_LINES, ActorDiedError
from .protocol import Exited
from .refs import Slot

_TAIL_BYTES: Final = 1 << 16
_TOGETHER: Final = 64  # small frames in one system call
_READS_AT_ONCE: Final = 16  # then it is the other channels' turn
RECORDS_KEPT: Final = 100_000  # undrained records per actor


class Channel:
    """A non-blocking socket with what is still to be sent on it. Used by one thread only."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self._reader = wire.Reader()
        # (bytes, descriptors that go with the first of them, whatever keeps those open)
        self._outgoing: collections.deque[tuple[memoryview, list[int], Any]] = collections.deque()

    def queue(self, frame: bytes, fds: Sequence[int] = (), keep: Any = None) -> None:
        """Adds a whole frame; `write` sends it."""
        self._outgoing.append((memoryview(frame), list(fds), keep))

    def write(self) -> bool:
        """Sends what the socket takes now; True when nothing is left."""
        while self._outgoing:
            first, fds, keep = self._outgoing[0]
            parts = [first]
            for data, more_fds, _ in itertools.islice(self._outgoing, 1, _TOGETHER):
                if more_fds:  # they must begin a message of their own
                    break
                parts.append(data)
            try:
                sent = wire.send_some(self.sock, parts, fds)
            except BlockingIOError:
                return False
            except OSError:  # nobody reads any more; its end is noticed by reading
                self._outgoing.clear()
                return True
            while self._outgoing and sent >= len(self._outgoing[0][0]):
                sent -= len(self._outgoing.popleft()[0])
            if sent:
                data, fds, keep = self._outgoing[0]
                # Descriptors went with the first byte; only the first entry can have had any.
                self._outgoing[0] = (data[sent:], [], keep)
        return True

    def read(self) -> tuple[list[wire.Message], bool]:
        """What has arrived, and whether the other end is still open."""
        messages: list[wire.Message] = []
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
        return messages, True

    def close(self) -> None:
        """Closes the socket; what was not sent is dropped."""
        self.open = False
        self._outgoing.clear()
        self._reader.close()
        self.sock.close()


class ActorLink:
    """One actor as the driver sees it. The runtime's thread writes it; others read."""

    def __init__(
        self, number: int, name: str, log: str, keep_log: bool, sock: socket.socket
    ) -> None:
        self.number = number
        self.name = name
        self.log = log
        self._keep_log = keep_log  # else it goes when the actor dies; its end is in the error
        self.channel = Channel(sock)
        self.pid: int | None = None
        self.built = Slot(f"{name}.__init__")
        self.pending: dict[int, Slot] = {0: self.built}  # by call id; 0 is the building
        self.call_ids = itertools.count(1)
        self.records: collections.deque[wire.Message] = collections.deque(maxlen=RECORDS_KEPT)
        self.dropped = 0  # records the actor, or this side, had no room for
        self.end_reason = ""  # why it is being ended from outside
        self.exited: Exited | None = None
        self.dead = False
        self.death_slot = Slot(f"{name}: its death")  # filled with the ActorDiedError
        self._death: tuple[Any, ...] = ()

    def bury(self, death: ActorDiedError) -> None:
        """It is over: every call that was not answered, and every later one, fails with this."""
        self._death = death.fields()
        self.dead = True
        self.channel.close()
        if not self._keep_log:
            Path(self.log).unlink(missing_ok=True)
        pending, self.pending = self.pending, {}
        for slot in pending.values():
            slot.fail(self.death())
        self.death_slot.resolve(self.death())

    def death(self) -> ActorDiedError:
        """How it ended, as a fresh exception: each raise adds its traceback to its own."""
        return ActorDiedError(*self._death)

    def log_tail(self) -> str:
        """The last 40 lines of its log, as they were at its death; empty when there is none."""
        return self.death().log_tail if self._death else log_tail(self.log)


def log_tail(path: str | Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last `lines` lines of a file; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
