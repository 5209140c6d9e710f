"""Runs a replica of one part of the control state, one link of a chain, as a process.

    python -m gmi_drl.runtime.gcs.replica <descriptor of its socket> <pid of its client>

Writes reach the head of a chain from the client and each other member from the one before it; the
tail acknowledges (van Renesse and Schneider, OSDI'04). A write has a version; a repeated one is
passed on and not applied again, and one that comes too early is ignored, as it will be repeated.

`marshal` reads and writes the bodies of frames: rows are plain tuples of numbers, bytes and text,
and both ends are of one Python.
"""

from __future__ import annotations

import collections
import contextlib
import marshal
import os
import select
import signal
import socket
import sys
from enum import IntEnum
from typing import Any, Final, TypeAlias

from gmi_drl.runtime.wire import framing

from .tables import TABLES, is_final

_ROWS_PER_STATE: Final = 256
_EVENTS: Final = next(i for i, table in enumerate(TABLES) if not table.key)

_Key: TypeAlias = tuple[int, Any]


class ReplicaFrame(IntEnum):
    """Kinds of frames, with the meaning of id and body."""

    WRITE = 1  # id: version of the first of the body's (table, row), the others follow
    ACK = 2  # to the client: everything up to version id is here
    ACKS = 3  # to a replica: id is 1 if it is to send ACK
    BEFORE = 4  # to a replica, with a descriptor: where its writes come from now
    AFTER = 5  # with a descriptor: where to pass them on; id is 1 if all rows are to go first
    STATE = 6  # id: version; (whether it is the last, some of the rows: (version, table, row))
    FLUSHED = 7  # to a replica: rows up to version id are in the file
    GET = 8  # to a replica: id is the request's number, the body (table, id)
    GOT = 9  # to the client: the same number, the row or None
    PING = 10  # to a replica: are you there?
    PONG = 11  # to the client: yes; also when it has started


def frame(kind: ReplicaFrame, id: int = 0, body: Any = None, num_fds: int = 0) -> bytes:
    """Returns the bytes of a frame; `num_fds` descriptors are sent with the first of them."""
    return framing.frame(kind, id, marshal.dumps(body), num_fds)


def body_of(message: framing.Message) -> Any:
    """Returns the body that `frame` was given."""
    return marshal.loads(message.body)


class Rows:
    """Holds the rows of one part that may still change, or are not in the file yet."""

    def __init__(self) -> None:
        self.version = 0
        self.flushed = 0
        self._rows: dict[_Key, tuple[int, tuple[Any, ...]]] = {}
        self._ended: collections.deque[tuple[int, _Key]] = collections.deque()

    def __len__(self) -> int:
        return len(self._rows)

    def write(self, first: int, writes: list[tuple[int, tuple[Any, ...]]]) -> bool:
        """Applies writes that are new; returns False if an earlier one is missing."""
        if first > self.version + 1:
            return False
        for table, row in writes[self.version + 1 - first :]:
            self.version += 1
            self._set(self.version, table, row)
        return True

    def get(self, table: int, id: bytes) -> tuple[Any, ...] | None:
        entry = self._rows.get((table, id))
        return None if entry is None else entry[1]

    def forget(self, flushed: int) -> None:
        """Drops final rows up to this version, as they are in the file."""
        self.flushed = max(self.flushed, flushed)
        while self._ended and self._ended[0][0] <= self.flushed:
            version, key = self._ended.popleft()
            entry = self._rows.get(key)
            if entry is not None and entry[0] == version:
                del self._rows[key]

    def keys(self) -> list[_Key]:
        return list(self._rows)

    def some(self, keys: list[_Key]) -> list[tuple[int, int, tuple[Any, ...]]]:
        """Returns version, table and row of these keys, as far as they are still held."""
        entries = ((key, self._rows.get(key)) for key in keys)
        return [(entry[0], key[0], entry[1]) for key, entry in entries if entry is not None]

    def take_over(self, rows: list[tuple[int, int, tuple[Any, ...]]]) -> None:
        """Takes rows from the member before, unless newer ones were written here meanwhile."""
        for version, table, row in rows:
            key = (table, version if table == _EVENTS else row[0])
            if key not in self._rows:
                self._set(version, table, row)

    def _set(self, version: int, table: int, row: tuple[Any, ...]) -> None:
        key = (table, version if table == _EVENTS else row[0])
        if is_final(TABLES[table].row(*row)):
            if version <= self.flushed:
                self._rows.pop(key, None)
                return
            self._ended.append((version, key))
        self._rows[key] = version, row


class Replica:
    """Serves one part: its rows, and links to the client and the members before and after."""

    def __init__(self, control: socket.socket) -> None:
        self._rows = Rows()
        self._control = control
        self._before: socket.socket | None = None
        self._after: socket.socket | None = None
        self._links = {control.fileno(): (control, framing.Reader())}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._acks = False
        self._acked = -1
        self._is_complete = False  # whether it has the rows from before it joined
        self._to_send: list[_Key] | None = None  # for the member after, which has just joined

    def run(self) -> None:
        """Serves until the client is gone."""
        self._tell(frame(ReplicaFrame.PONG))
        while True:
            events = self._poll.poll(0 if self._to_send is not None else None)
            for fd, _ in events:
                if fd not in self._links:  # its socket was replaced in this round
                    continue
                sock, reader = self._links[fd]
                try:
                    messages = reader.read(sock)
                except ConnectionResetError:
                    messages = None
                if messages is None:
                    if sock is self._control:
                        return
                    self._drop_before()
                    continue
                for message in messages:
                    self._handle(message)
            if self._acks and self._is_complete and self._rows.version != self._acked:
                self._acked = self._rows.version
                self._tell(frame(ReplicaFrame.ACK, self._acked))
            if self._to_send is not None:
                self._send_state()

    def _handle(self, message: framing.Message) -> None:
        kind, id = message.kind, message.id
        if kind == ReplicaFrame.WRITE:
            if self._rows.write(id, body_of(message)):
                self._acked = -1  # acknowledged again, as the client may have resent it
                self._pass_on(framing.frame(kind, id, message.body))
        elif kind == ReplicaFrame.GET:
            self._tell(frame(ReplicaFrame.GOT, id, self._rows.get(*body_of(message))))
        elif kind == ReplicaFrame.FLUSHED:
            self._rows.forget(id)
        elif kind == ReplicaFrame.STATE:
            is_last, rows = body_of(message)
            self._rows.version = max(self._rows.version, id)
            self._rows.take_over(rows)
            self._is_complete = self._is_complete or is_last
        elif kind == ReplicaFrame.BEFORE:
            self._drop_before()
            self._before = sock = socket.socket(fileno=message.take_fds()[0])
            self._links[sock.fileno()] = sock, framing.Reader()
            self._poll.register(sock, select.POLLIN)
        elif kind == ReplicaFrame.AFTER:
            self._drop_after()
            self._after = socket.socket(fileno=message.take_fds()[0])
            if id:
                self._to_send = self._rows.keys()
                self._send_state()  # the version must come before any later write
        elif kind == ReplicaFrame.ACKS:
            self._acks = id == 1
            self._acked = -1
        elif kind == ReplicaFrame.PING:
            self._tell(frame(ReplicaFrame.PONG))

    def _send_state(self) -> None:
        """Sends the next part of the rows in their present state, between writes."""
        assert self._to_send is not None
        part, remaining = self._to_send[:_ROWS_PER_STATE], self._to_send[_ROWS_PER_STATE:]
        rows = self._rows.some(part)
        # Each part has the version of its rows, which may include later writes.
        self._pass_on(frame(ReplicaFrame.STATE, self._rows.version, (not remaining, rows)))
        if self._to_send is not None:
            self._to_send = remaining or None

    def _pass_on(self, data: bytes) -> None:
        if self._after is not None:
            try:
                self._after.sendall(data)
            except OSError:  # it died; the client will name another one
                self._drop_after()

    def _drop_before(self) -> None:
        if self._before is not None:
            self._poll.unregister(self._before)
            del self._links[self._before.fileno()]
            self._before.close()
            self._before = None

    def _drop_after(self) -> None:
        self._to_send = None
        if self._after is not None:
            self._after.close()
            self._after = None

    def _tell(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the client is gone: the next read says so
            self._control.sendall(data)


def main(control_fd: int, client_pid: int) -> None:
    """Runs a replica, which ends with its client at the latest."""
    from gmi_drl.runtime.process.child_setup import PR_SET_PDEATHSIG, prctl

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == client_pid:
        Replica(socket.socket(fileno=control_fd)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
