"""A replica of one part of the control state: a process, one link of a chain.

    python -m gmi_drl.runtime.gcs.replica <descriptor of its socket> <pid of its client>

Writes reach the first of a chain from the client and each other one from the one before it; the
last acknowledges (van Renesse and Schneider, OSDI'04). A write has a version; what comes again is
passed on and not applied again, and what comes too early is left: it will come again.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import socket
import sys
from typing import Any, Final, TypeAlias

from .chain_wire import Frame, Kind, Reader, frame
from .tables import TABLES, is_final

_ROWS_PER_STATE: Final = 256
_EVENTS: Final = next(i for i, table in enumerate(TABLES) if not table.key)

_Key: TypeAlias = tuple[int, Any]


class Rows:
    """The rows of one part: those that may change yet, and those that are not in the file yet."""

    def __init__(self) -> None:
        self.version = 0
        self.flushed = 0
        self._rows: dict[_Key, tuple[int, tuple[Any, ...]]] = {}
        self._ended: collections.deque[tuple[int, _Key]] = collections.deque()

    def __len__(self) -> int:
        return len(self._rows)

    def write(self, first: int, writes: list[tuple[int, tuple[Any, ...]]]) -> bool:
        """Applies what is new of it; False if something before it is missing."""
        if first > self.version + 1:
            return False
        for table, row in writes[self.version + 1 - first :]:
            self.version += 1
            self._set(self.version, table, row)
        return True

    def get(self, table: int, id: bytes) -> tuple[Any, ...] | None:
        found = self._rows.get((table, id))
        return None if found is None else found[1]

    def forget(self, flushed: int) -> None:
        """Everything up to this version is in the file: of it, what has ended goes."""
        self.flushed = max(self.flushed, flushed)
        while self._ended and self._ended[0][0] <= self.flushed:
            version, key = self._ended.popleft()
            found = self._rows.get(key)
            if found is not None and found[0] == version:
                del self._rows[key]

    def keys(self) -> list[_Key]:
        return list(self._rows)

    def some(self, keys: list[_Key]) -> list[tuple[int, int, tuple[Any, ...]]]:
        """Version, table and row of those of these keys that are still here."""
        found = ((key, self._rows.get(key)) for key in keys)
        return [(entry[0], key[0], entry[1]) for key, entry in found if entry is not None]

    def take_over(self, rows: list[tuple[int, int, tuple[Any, ...]]]) -> None:
        """Rows of the one before; what was written here meanwhile is newer."""
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
    """The process: its rows, and its links to the client, the one before and the one after."""

    def __init__(self, control: socket.socket) -> None:
        self._rows = Rows()
        self._control = control
        self._before: socket.socket | None = None
        self._after: socket.socket | None = None
        self._readers = {control.fileno(): Reader(control)}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._acks = False
        self._acked = -1
        self._whole = False  # it has the rows of before its time
        self._to_send: list[_Key] | None = None  # of the one after, which has just joined

    def run(self) -> None:
        """Serves until the client is gone."""
        self._tell(frame(Kind.HERE))
        while True:
            events = self._poll.poll(0 if self._to_send is not None else None)
            for fd, _ in events:
                reader = self._readers.get(fd)
                if reader is None:  # its socket was changed for another just now
                    continue
                frames = reader.read()
                if frames is None:
                    if fd == self._control.fileno():
                        return
                    self._drop_before()
                    continue
                for each in frames:
                    self._handle(each)
            if self._acks and self._whole and self._rows.version != self._acked:
                self._acked = self._rows.version
                self._tell(frame(Kind.ACK, self._acked))
            if self._to_send is not None:
                self._send_state()

    def _handle(self, got: Frame) -> None:
        if got.kind == Kind.WRITE:
            if self._rows.write(got.a, got.body()):
                self._acked = -1  # said again, should the client have asked again
                self._pass_on(got.raw)
        elif got.kind == Kind.GET:
            table, id = got.body()
            self._tell(frame(Kind.GOT, got.a, 0, self._rows.get(table, id)))
        elif got.kind == Kind.FLUSHED:
            self._rows.forget(got.a)
        elif got.kind == Kind.STATE:
            self._rows.version = max(self._rows.version, got.a)
            self._rows.take_over(got.body())
            self._whole = self._whole or got.b == 1
        elif got.kind == Kind.BEFORE:
            self._drop_before()
            self._before = socket.socket(fileno=got.fd)
            self._readers[got.fd] = Reader(self._before)
            self._poll.register(self._before, select.POLLIN)
        elif got.kind == Kind.AFTER:
            self._drop_after()
            self._after = socket.socket(fileno=got.fd)
            if got.a:
                self._to_send = self._rows.keys()
                self._send_state()  # the version must come before any later write
        elif got.kind == Kind.ACKS:
            self._acks = got.a == 1
            self._acked = -1
        elif got.kind == Kind.ASK:
            self._tell(frame(Kind.HERE))

    def _send_state(self) -> None:
        """The next part of the rows as they are now, between the writes that go on."""
        assert self._to_send is not None
        part, rest = self._to_send[:_ROWS_PER_STATE], self._to_send[_ROWS_PER_STATE:]
        rows = self._rows.some(part)
        # A later part says the version of the rows in it, which the writes before have brought.
        self._pass_on(frame(Kind.STATE, self._rows.version, int(not rest), rows))
        if self._to_send is not None:
            self._to_send = rest or None

    def _pass_on(self, data: bytes) -> None:
        if self._after is not None:
            try:
                self._after.sendall(data)
            except OSError:  # it died; the client will say who comes after us now
                self._drop_after()

    def _drop_before(self) -> None:
        if self._before is not None:
            self._poll.unregister(self._before)
            del self._readers[self._before.fileno()]
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
    """Serves as a replica, and ends with its client at the latest."""
    from gmi_drl.runtime.process.child import PR_SET_PDEATHSIG, prctl

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == client_pid:
        Replica(socket.socket(fileno=control_fd)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
