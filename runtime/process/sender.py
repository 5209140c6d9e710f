"""Sends a process's messages to the driver in order: answers at once, records when it can.

References taken and dropped, and places that are no longer viewed, are noted by finalizers, which
may run anywhere. They are sent before the next frame, so that the driver learns that this process
holds an object before it learns that the call which passed it has ended.
"""

from __future__ import annotations

import collections
import pickle
import socket
import threading
from collections.abc import Sequence
from typing import Final

from gmi_drl.runtime.wire import framing
from gmi_drl.runtime.wire.protocol import Kind

RECORD_CAPACITY: Final = 16384
_FLUSH_S: Final = 2.0


class MessageSender:
    """Is the sending half of the connection to the driver, for any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._notes: collections.deque[tuple[bytes, int]] = collections.deque()  # change 0: unpin
        self._counts: collections.Counter[bytes] = collections.Counter()
        self._changed = threading.Condition()
        self._records: collections.deque[bytes] = collections.deque()
        self._dropped = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_sending(self) -> bool:
        """Returns whether a frame may be only partly sent."""
        return self._sending.locked()

    def note(self, id: bytes, change: int, soon: bool = True) -> None:
        """Notes that a reference or handle was taken (+1) or dropped (-1)."""
        self._notes.append((id, change))

    def unpin(self, id: bytes) -> None:
        """Notes that a view of this object's memory is gone."""
        self._notes.append((id, 0))

    def send(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Sends earlier notes and records, then this frame; blocks until all is taken."""
        with self._sending:
            if self._notes:
                frame = self._note_frames() + frame
            if self._records:
                self._flush()
            self._send(frame, fds)

    def send_noted(self) -> None:
        """Sends the notes, before a wait that may be long."""
        if self._notes:
            with self._sending:
                self._send(self._note_frames())

    def post(self, record: bytes) -> None:
        """Queues a record; never blocks on the socket."""
        with self._changed:
            if len(self._records) >= RECORD_CAPACITY:
                self._records.popleft()
                self._dropped += 1
            self._records.append(record)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_records, name="gmi_drl-records", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Sends what is queued, for at most two seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_FLUSH_S)

    def _send_records(self) -> None:
        while True:
            with self._changed:
                while not self._records and not self._closed:
                    self._changed.wait()
                if not self._records:
                    return
            with self._sending:
                self._flush()

    def _flush(self) -> None:
        while True:
            with self._changed:
                batch = [self._records.popleft() for _ in range(min(len(self._records), 64))]
                dropped = self._dropped
            if not batch:
                return
            self._send(b"".join(framing.frame(Kind.RECORD, dropped, record) for record in batch))

    def _note_frames(self) -> bytes:
        """Returns the frames of the notes: only changes from no reference to some, and back."""
        changes: list[tuple[bytes, int]] = []
        unpinned: list[bytes] = []
        while self._notes:
            id, change = self._notes.popleft()
            if not change:
                unpinned.append(id)
                continue
            self._counts[id] = count = self._counts[id] + change
            if not count:
                del self._counts[id]
            if count in (0, change):  # the last reference, or the first
                changes.append((id, change))
        frames = b""
        if changes:
            frames = framing.frame(Kind.COUNTS, 0, pickle.dumps(changes, 5))
        if unpinned:
            frames += framing.frame(Kind.UNPIN, 0, pickle.dumps(unpinned, 5))
        return frames

    def _send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        try:
            framing.send(self._sock, data, fds)
        except OSError:  # the driver is gone; the fork server is about to end this process
            self._records.clear()
