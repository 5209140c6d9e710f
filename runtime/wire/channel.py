"""Sends and receives frames on a non-blocking socket."""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

from . import framing

_NOSIGNAL: Final = int(socket.MSG_NOSIGNAL)
_FRAMES_PER_WRITE: Final = 64  # small frames in one system call
_READS_PER_ROUND: Final = 16  # then it is the other channels' turn


class ClosedLater:
    """Closes sockets when it is dropped, which is once their copies have been sent."""

    def __init__(self, *socks: socket.socket) -> None:
        self._socks = socks

    def __del__(self) -> None:
        for sock in self._socks:
            sock.close()


class SocketChannel:
    """Sends and receives on a non-blocking socket, with a queue. Used by one thread only."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self.full = False  # whether the socket's buffer is full
        self._lock = threading.Lock()  # so that frames of different threads do not mix
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
                # A stream socket takes so few bytes all at once, or none.
                with contextlib.suppress(OSError):
                    self.sock.send(frame, _NOSIGNAL)
                    return True
            self._outgoing.append((frame, (), None))
            return False

    def write(self) -> bool:
        """Sends what the socket takes now; True when nothing is left."""
        outgoing = self._outgoing
        with self._lock:
            while outgoing:
                first_data, fds, keep = outgoing[0]
                parts = [first_data]
                for data, more_fds, _ in itertools.islice(outgoing, 1, _FRAMES_PER_WRITE):
                    if more_fds:  # they must begin a message of their own
                        break
                    parts.append(data)
                try:
                    sent = framing.send_some(self.sock, parts, fds)
                except BlockingIOError:
                    return False
                except OSError:  # the other end is closed, as the next read will tell
                    outgoing.clear()
                    break
                while outgoing and sent >= len(outgoing[0][0]):
                    sent -= len(outgoing.popleft()[0])
                if sent:
                    data, fds, keep = outgoing[0]
                    # Descriptors went with the first byte, and only the first entry had any.
                    outgoing[0] = (memoryview(data)[sent:], (), keep)
        return True

    def read(self) -> tuple[list[framing.Message], bool]:
        """Returns what has arrived, and whether the other end is still open."""
        messages: list[framing.Message] = []
        for _ in range(_READS_PER_ROUND):
            try:
                arrived = self._reader.read(self.sock)
            except BlockingIOError:
                return messages, True
            except OSError:
                return messages, False
            if arrived is None:
                return messages, False
            messages += arrived
            if not self._reader.more:
                break
        return messages, True

    def forget(self) -> None:
        """Closes this copy after a fork, without the lock, which the parent's thread may hold."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Closes the socket; what was not sent is dropped."""
        with self._lock:
            self.open = False
            self._outgoing.clear()
            self._reader.close()
            self.sock.close()
