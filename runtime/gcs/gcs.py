"""Keeps the global control store (GCS) of a run: who ran what, with which result.

`put` only notes a row; one thread writes the noted rows to SQLite about ten times a second, off the
critical path, so that memory stays the same however many tasks have run (Ray, OSDI'18, 4.2.1 and
figure 10b). A task that starts and ends between two writes is written once.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import database
from .database import AnyRow, DamagedStoreError, Database, GcsError
from .tables import EventRow, Row, is_final

if TYPE_CHECKING:
    from .chain import Chains

_Rows = dict[Any, Row]

_INTERVAL_S: Final = 0.1
_BATCH_ROWS: Final = 5_000  # so many rows are written without further delay
_RETRY_S: Final = 0.5
_PROBE_ROWS: Final = 100  # rows tried while the file fails
_MOST_WAITING: Final = 200_000  # rows kept while the file fails


class Gcs:
    """The control store of one run, in the SQLite file at `path`.

    Rows are put by one thread; everything else may be called from any. With `replicas`, the rows
    go to `shards` chains of that many processes, too, before `sync` returns. A file that cannot be
    written stops nothing: `failure` says what is wrong, and rows wait, 200,000 at most; beyond
    that the oldest that have ended are dropped, and counted in `dropped`.
    """

    def __init__(self, path: Path, *, shards: int = 4, replicas: int = 0) -> None:
        if shards < 1 or replicas < 0:
            raise ValueError(f"shards={shards}, replicas={replicas}: 1 and 0 are the least.")
        self._failure = ""
        self.dropped = 0
        self._arrived: list[Row] = []
        self._pending: dict[type[Any], _Rows] = {}
        self._writing: dict[type[Any], _Rows] = {}
        self._waiting = 0  # rows in _pending and _writing
        self._max_rows: dict[type[Row], int] = {}  # rows that the file keeps, by class
        self._num_events = 0
        self._taken = 0  # rows that have left _arrived
        self._written = 0  # how many of these are in the file
        self._state = threading.Condition()  # guards all of the above except _arrived
        self._file = threading.Lock()  # held while the file is written or changed for another
        self._wake = threading.Event()
        self._write_now = threading.Event()
        self._closing = False
        self._owner_pid = os.getpid()
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        self.chains: Chains | None = None  # the replicas, if there are any
        self._database = Database(path)
        if replicas:
            from .chain import Chains

            self.chains = Chains(shards, replicas)
        self._thread = threading.Thread(target=self._run, name="gmi-drl gcs", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Returns where the file is."""
        return self._database.path

    @property
    def failure(self) -> str:
        """Tells what is wrong with the file, or with the replicas; empty while all is well."""
        return self._failure or (self.chains.failure if self.chains is not None else "")

    @property
    def backlog(self) -> int:
        """Counts unwritten rows; 0 while the file fails, as waiting does not help then."""
        if self.failure:
            return 0
        chain_backlog = self.chains.backlog if self.chains is not None else 0
        return max(len(self._arrived) + self._waiting, chain_backlog)

    def put(self, row: Row) -> None:
        """Inserts a row, or replaces the one with its id; events are added.

        A task that is put again after it had ended must be `lost`, or have been attempted.
        """
        arrived = self._arrived
        arrived.append(row)
        number = len(arrived)
        if number == 1:
            self._wake.set()
        elif number == _BATCH_ROWS:
            self._write_now.set()
        if self.chains is not None:
            self.chains.put(row)

    def bound(self, row_class: type[Row], most: int) -> None:
        """Has the file keep `most` rows of a class, those with the greatest ids, or a few more."""
        self._max_rows[row_class] = most

    def get(self, row_class: type[AnyRow], id: bytes) -> AnyRow | None:
        """Returns the row of that id as it was last put; GcsError if the file cannot be read."""
        with self._state:
            self._sort_arrived()
            for rows in (self._pending, self._writing):
                row = rows.get(row_class, {}).get(id)
                if row is not None:
                    return row  # type: ignore[return-value]
        with self._reading:
            if self._reader is None:
                self._reader = database.open_to_read(self.path)
            try:
                return database.find(self._reader, row_class, id)
            except sqlite3.Error as error:
                raise GcsError(_reason(self.path, error)) from error

    def flush(self, timeout_s: float = 10.0) -> None:
        """Returns when all that was put is in the file; GcsError or TimeoutError if it is not."""
        deadline_s = time.monotonic() + timeout_s
        with self._state:
            self._sort_arrived()
            target = self._taken
            self._wake.set()
            self._write_now.set()
            while self._written < target:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._thread.is_alive():
                    if self._failure:
                        raise GcsError(self._failure)
                    raise TimeoutError(
                        f"{self.path}: {self._waiting:,} rows are not written after "
                        f"{timeout_s:g} s. Allow more time, or use a quicker disk."
                    )
                self._state.wait(min(left_s, _RETRY_S))

    def sync(self, timeout_s: float = 10.0) -> None:
        """Returns when all that was put is safe: with replicas acknowledged, else in the file."""
        if self.chains is None:
            self.flush(timeout_s)
        else:
            self.chains.sync(timeout_s)

    def move(self, path: Path) -> None:
        """Moves all records to another file, writes there from now on, and removes the old one.

        A store that exists there is added to. On GcsError nothing has changed.
        """
        with self._file:
            old = self._database
            if path.absolute() == old.path.absolute():
                return
            was_there = path.exists()
            new = Database(path)
            try:
                new.take_over(old.path)
            except sqlite3.Error as error:
                new.close()
                if not was_there:
                    database.remove(path)
                raise GcsError(
                    f"{path}: the records in {old.path} cannot be copied there ({error}). "
                    "Make room, or give another folder."
                ) from error
            with self._reading:
                self._close_reader()
                self._database = new
        old.close()
        database.remove(old.path)

    def merge(self, path: Path, prefix: str) -> None:
        """Merges a store that nobody writes any more; GcsError if that fails.

        It is removed if possible. `prefix` is put before the names of its tasks and actors and
        the texts of its events.
        """
        Database(path).close()  # opening it rolls back what a killed writer left
        with self._file:
            try:
                self._database.take_over(path, prefix)
            except sqlite3.Error as error:
                raise GcsError(
                    f"{path}: the records in it cannot be copied to {self.path} ({error}). "
                    "Make room; they are copied when the run is gone on with."
                ) from error
        with suppress(OSError):  # merging it again would add nothing
            database.remove(path)

    def close(self, timeout_s: float = 10.0) -> None:
        """Writes what is left and closes the file. What cannot be written counts as dropped."""
        if os.getpid() != self._owner_pid:  # a fork owns neither the thread nor the connection
            return
        self._closing = True
        self._wake.set()
        self._write_now.set()
        self._thread.join(timeout_s)
        if self.chains is not None:
            self.chains.close()
        if self._thread.is_alive():  # the disk hangs; the thread does not keep the process alive
            return
        with self._state:
            self._sort_arrived()
            self.dropped += self._waiting
            self._pending, self._waiting = {}, 0
        with self._reading:
            self._close_reader()
        with self._file:
            self._database.close()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            self._write_now.wait(_RETRY_S if self._failure else _INTERVAL_S)
            self._write_now.clear()
            self._write_batch()
            has_rows = bool(self._arrived or self._pending)
            if self._closing and (self._failure or not has_rows):
                return
            if has_rows:
                self._wake.set()
            if self._closing:
                self._write_now.set()

    def _write_batch(self) -> None:
        with self._file:
            with self._state:
                self._sort_arrived()
                covered = self._take_batch()
            try:
                if self._failure:
                    self._reopen()
                self._database.write({key: rows.values() for key, rows in self._writing.items()})
                for row_class in self._max_rows.keys() & self._writing.keys():
                    self._database.trim(row_class, self._max_rows[row_class])
            except Exception as error:  # of any kind, as submitters must not wait for ever
                with self._state:
                    self._put_back()
                    self._failure = _reason(self.path, error)
                    self._state.notify_all()
                return
            with self._state:
                self._writing = {}
                self._waiting = _count(self._pending)
                self._written = max(self._written, covered)
                self._failure = ""
                self._state.notify_all()
        if self.chains is not None:
            self.chains.flushed(covered)

    def _sort_arrived(self) -> None:
        """Sorts arrived rows into their tables; a later row replaces an earlier one of its id."""
        arrived = self._arrived
        rows = arrived[:]
        del arrived[: len(rows)]  # each of the two lines is atomic to `put`
        pending = self._pending
        for row in rows:
            row_class = type(row)
            class_rows = pending.get(row_class)
            if class_rows is None:
                class_rows = pending[row_class] = {}
            if row_class is EventRow:
                self._num_events += 1
                class_rows[self._num_events] = row
            else:
                class_rows[row[0]] = row
        self._taken += len(rows)
        self._waiting = _count(pending) + _count(self._writing)

    def _take_batch(self) -> int:
        """Makes a batch of what is pending; returns how many of the rows taken it covers."""
        if not self._failure:
            self._writing, self._pending = self._pending, {}
            return self._taken
        self._writing = {}
        room = _PROBE_ROWS
        for row_class, rows in self._pending.items():
            keys = list(itertools.islice(rows, room))
            self._writing[row_class] = {key: rows.pop(key) for key in keys}
            room -= len(keys)
        self._pending = {key: rows for key, rows in self._pending.items() if rows}
        return self._written if self._pending else self._taken

    def _put_back(self) -> None:
        """Puts a batch that could not be written before the others, within the bound."""
        for row_class, newer in self._pending.items():
            self._writing.setdefault(row_class, {}).update(newer)
        self._pending, self._writing = self._writing, {}
        too_many = _count(self._pending) - _MOST_WAITING
        if too_many > 0:
            too_many += _MOST_WAITING // 10  # so that it is not needed at every batch
            for rows in self._pending.values():
                ended = (key for key, row in rows.items() if is_final(row))
                keys = list(itertools.islice(ended, too_many))
                for key in keys:
                    del rows[key]
                too_many -= len(keys)
                self.dropped += len(keys)
        self._waiting = _count(self._pending)

    def _reopen(self) -> None:
        """Opens the file again, as a damaged, removed or read-only one may have been replaced."""
        if "SQLITE_FULL" in self._failure:
            return
        with self._reading:
            self._close_reader()
        self._database.close()  # before opening: it removes files beside it by name
        self._database = Database(self.path)


def _count(rows: dict[type[Any], _Rows]) -> int:
    return sum(map(len, rows.values()))


def _reason(path: Path, error: Exception) -> str:
    damaged = isinstance(error, DamagedStoreError)
    if isinstance(error.__cause__, sqlite3.Error):  # it could not be opened again
        error = error.__cause__
    name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT" if damaged else "SQLITE_ERROR")
    remedy = {
        "SQLITE_FULL": "Make room on that disk",
        "SQLITE_CORRUPT": "Move the file away: a new one is made at once",
        "SQLITE_NOTADB": "Move the file away: a new one is made at once",
        "SQLITE_READONLY": "Make the file and its folder writable",
        "SQLITE_BUSY": "End the other program that uses it",
    }.get("_".join(name.split("_")[:2]), "Look at the disk")
    return (
        f"{path}: the run is not recorded ({name}: {error}). Rows wait in memory, and the oldest "
        f"are dropped when more than {_MOST_WAITING:,} do. {remedy}; the run goes on meanwhile."
    )
