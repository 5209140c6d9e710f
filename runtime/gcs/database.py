"""Writes the SQLite file of the control store in batches; any SQL tool can read it meanwhile.

A batch is one transaction of a few long INSERTs. Python's sqlite3 releases the GIL for each
step of a statement; with one row for each step the writer would wait for a busy main thread at
every row.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from gmi_drl.errors import GmiDrlError

from . import tables
from .tables import TABLE_OF, TABLES, GcsTable, Row, TaskRow, is_final, may_be_written

AnyRow = TypeVar("AnyRow", bound=Row)

_ROWS_PER_INSERT: Final = (256, 64, 16, 4, 1)
_BUSY_S: Final = 5.0  # a reader of the file does not lock us out; another writer may
_MAX_TIME_S: Final = 253_402_300_800.0  # the year 10000
_MAX_TASKS: Final = 1 << 32  # no run has more
_TYPES: Final[dict[type[Any], dict[str, Any]]] = {
    table.row: get_type_hints(table.row) for table in TABLES
}
_PREFIXED: Final = {"tasks": "name", "actors": "name", "events": "text"}  # gets the prefix
_CHECKPOINT_PAGES: Final = 4000  # 16 MB of WAL between checkpoints
_MOUNTS: Final = Path("/proc/self/mountinfo")
_LOCAL: Final = frozenset(  # file systems that no other host has mounted
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs",
     "zfs")
)  # fmt: skip
# UnicodeDecodeError: SQLite's message of a damaged schema may have its names in it.
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


class GcsError(GmiDrlError, RuntimeError):
    """A control store cannot be opened, read or moved."""

    command_exit_code = 2


class WrongValue(GcsError):
    """A row has a value that no control store writes there."""


@dataclass(eq=False, repr=False)
class DamagedStoreError(GcsError):
    """The file is no control store, or a damaged one; `reason` says why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path}: damaged, or not a control store ({self.reason}). Give a run's "
            "gcs.sqlite, or move this one away for a new one."
        )


class Database:
    """The file, open for writing, by one thread at a time."""

    def __init__(self, path: Path) -> None:
        # The readers and writers of a write-ahead log share memory, so they must be on one host:
        # https://www.sqlite.org/wal.html
        self.path, self._journal = path, "WAL" if _is_local(path) else "DELETE"
        try:
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _cannot_open(path, error) from error
        try:
            self._prepare()
            # Numbers of written tasks that have not ended and so will be written again.
            self._unfinished = self._find_unfinished(0)
            self._written_before = self._last_number()  # by an earlier session, with any ids
        except SQLITE_ERRORS as error:
            self._connection.close()
            raise _cannot_open(path, error) from error
        except BaseException:
            self._connection.close()
            raise
        self._next = self._written_before + 1
        self._untrimmed: dict[type[Row], int] = {}  # rows since the oldest were removed

    def write(self, batch: Mapping[type[Row], Iterable[Row]]) -> None:
        """Writes all rows, or none and raises sqlite3.Error."""
        changed: list[tuple[bytes, int]] = []
        next_number = self._next
        with self._transaction():
            for row_class, rows in batch.items():
                table = TABLE_OF[row_class]
                if table.key == "number":
                    next_number = self._write_tasks(table, rows, next_number, changed)
                else:
                    self._insert(table, written := list(rows), len(table.columns))
                    untrimmed = self._untrimmed.get(row_class, 0) + len(written)
                    self._untrimmed[row_class] = untrimmed
        self._next = next_number
        for id, number in changed:
            if number:
                self._unfinished[id] = number
            else:
                self._unfinished.pop(id, None)

    def trim(self, row_class: type[Row], most: int) -> None:
        """Removes the rows with the least ids, but for `most`, or a few more; seldom does so."""
        if self._untrimmed.get(row_class, 0) <= most // 32:
            return
        name = TABLE_OF[row_class].name
        least = f"SELECT id FROM {name} ORDER BY id DESC LIMIT 1 OFFSET {most}"
        self._connection.execute(f"DELETE FROM {name} WHERE id <= ({least})")
        self._untrimmed[row_class] = 0

    def take_over(self, path: Path, prefix: str = "") -> None:
        """Copies the records of another store, which nobody writes now, into this one.

        `prefix` is put before the names of its tasks and actors and the texts of its events.
        A second copy adds nothing.
        """
        names, execute = ", ".join(TABLE_OF[TaskRow].columns), self._connection.execute
        base = self._last_number()
        execute("ATTACH ? AS old", (str(path),))
        try:
            with self._transaction():
                if base:
                    execute("DELETE FROM tasks WHERE id IN (SELECT id FROM old.tasks)")
                for table in TABLES:
                    marked = _PREFIXED.get(table.name)
                    columns = ", ".join(
                        f"? || {name}" if name == marked else name for name in table.columns
                    )
                    values = (prefix,) if marked else ()
                    if table.key == "number":
                        moved = f"SELECT number + {base}, {columns} FROM old.tasks"
                        execute(f"INSERT INTO tasks (number, {names}) {moved}", values)
                        continue
                    moved = f"SELECT {columns} FROM old.{table.name}"
                    if not table.key:
                        moved += f" EXCEPT SELECT * FROM {table.name} ORDER BY 1"
                    execute(f"INSERT OR REPLACE INTO {table.name} {moved}", values)
        finally:
            execute("DETACH old")
        self._unfinished.update(self._find_unfinished(base))
        self._next = self._last_number() + 1

    def close(self) -> None:
        """Closes it as one plain file, if no one else has it open."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # Then it can also be opened in a read-only folder.
            self._connection.execute("PRAGMA busy_timeout=0")
            self._connection.execute("PRAGMA journal_mode=DELETE")
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _prepare(self) -> None:
        execute = self._connection.execute
        (count,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        application, version = _identity(self._connection)
        if count and not _is_known(application, version):
            raise _not_a_store(self.path, application, version)
        if count:
            self._check()
        execute(f"PRAGMA journal_mode={self._journal}")
        execute("PRAGMA synchronous=NORMAL")
        execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        with self._transaction():
            execute(f"PRAGMA application_id={tables.APPLICATION_ID}")
            execute(f"PRAGMA user_version={tables.SCHEMA_VERSION}")
            for table in TABLES:
                for statement in table.creation:
                    execute(statement)

    def _check(self) -> None:
        """Raises DamagedStoreError or sqlite3.Error if the store in the file cannot be added to."""
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _damaged(self.path, verdict)
        for table in TABLES:
            names = ", ".join(table.columns)
            self._connection.execute(f"SELECT {names} FROM {table.name} LIMIT 0")
        if (last := self._last_number()) > _MAX_TASKS:  # a search would take for ever
            raise _damaged(self.path, f"a task has the number {last}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise

    def _write_tasks(
        self, table: GcsTable, rows: Iterable[Any], next_number: int,
        changed: list[tuple[bytes, int]],
    ) -> int:  # fmt: skip
        """Writes tasks under their numbers, notes which are `changed`, and returns the next."""
        numbered: list[tuple[Any, ...]] = []
        for row in rows:
            unfinished = number = self._unfinished.get(row.id, 0)
            if not number and (self._written_before or may_be_written(row)):
                number = _number_of(self._connection, row.id)
            if not number:
                number, next_number = next_number, next_number + 1
            if not is_final(row):
                if not unfinished:
                    changed.append((row.id, number))
            elif unfinished:
                changed.append((row.id, 0))
            numbered.append((number, *row))
        self._insert(table, numbered, len(table.columns) + 1)
        return next_number

    def _insert(self, table: GcsTable, rows: list[Any], width: int) -> None:
        max_rows = self._connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
        row_text = f"({','.join('?' * width)})"
        begin = 0
        for size in _ROWS_PER_INSERT:
            if size > max_rows:
                continue
            text = f"INSERT OR REPLACE INTO {table.name} VALUES {','.join([row_text] * size)}"
            while len(rows) - begin >= size:
                values = list(itertools.chain.from_iterable(rows[begin : begin + size]))
                self._connection.execute(text, values)
                begin += size

    def _last_number(self) -> int:
        (number,) = self._connection.execute("SELECT max(number) FROM tasks").fetchone()
        return number or 0

    def _find_unfinished(self, after: int) -> dict[bytes, int]:
        final = "('finished', 'failed', 'cancelled')"
        text = f"SELECT id, number FROM tasks WHERE number > ? AND state NOT IN {final}"
        return dict(self._connection.execute(text, (after,)).fetchall())


def _is_local(path: Path) -> bool:
    """Tells whether a file is on a file system that is known to be local to this host."""
    folder, longest, kind = Path(os.path.realpath(path)).parent, 0, ""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    for line in lines:
        mount, _, details = line.partition(" - ")
        root = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        depth = len(Path(root).parts)
        if depth >= longest and folder.is_relative_to(root):  # the later of two at one place counts
            longest, kind = depth, details.split(" ")[0]
    return kind in _LOCAL


def open_to_read(path: Path) -> sqlite3.Connection:
    """Opens a store, in use or over, without being able to write to it; GcsError if there is none.

    The file may be from a stranger: functions in its schema are not trusted, and its tables must be
    those that this module creates.
    """
    if not path.is_file():
        raise GcsError(
            f"{path}: no such file. A run's control store is gcs.sqlite in its folder; "
            "`gmi-drl runs` lists the folders."
        )
    for option in ("", "&immutable=1"):  # the second: in a folder that nobody may write to
        uri = f"{path.absolute().as_uri()}?mode=ro{option}"
        with contextlib.ExitStack() as on_error:
            try:
                connection = sqlite3.connect(
                    uri, timeout=_BUSY_S, uri=True, isolation_level=None, check_same_thread=False
                )
                on_error.callback(connection.close)
                application, version = _identity(connection)
                connection.execute("PRAGMA trusted_schema=OFF")
                connection.execute("PRAGMA cell_size_check=ON")
                strange = _strange_table(connection)
            except SQLITE_ERRORS as error:
                if option or os.access(path.parent, os.W_OK):
                    raise _cannot_open(path, error) from error
                continue
            if not _is_known(application, version):
                raise _not_a_store(path, application, version)
            if strange:
                raise GcsError(
                    f"{path}: {strange}, and a control store has the tables that gmi-drl makes. "
                    "Somebody has changed this one: do not use it."
                )
            on_error.pop_all()
            return connection
    raise AssertionError


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


def _is_known(application: int, version: int) -> bool:
    """Tells whether these are of a control store of this version."""
    return (application, version) == (tables.APPLICATION_ID, tables.SCHEMA_VERSION)


def _strange_table(connection: sqlite3.Connection) -> str:
    """Says which table is not as created here; a view in its place could compute for ever."""
    tables = connection.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
    for table in TABLES:
        kind, text = next((rest for name, *rest in tables if name == table.name), ("", None))
        if kind != "table" or text != table.creation[0].replace(" IF NOT EXISTS", ""):
            fault = f"is this {kind}: {str(text)[:200]!r}" if kind else "is not there"
            return f"{table.name} {fault}"
    return ""


def checked(table: str, types: Mapping[str, Any], values: Sequence[Any]) -> Sequence[Any]:
    """Returns a row's values if each has its type and times are in range; or raises WrongValue."""
    for (name, type_), value in zip(types.items(), values, strict=True):
        if not isinstance(value, int | float if type_ is float else type_):
            rule = f"must be {getattr(type_, '__name__', type_)}"
        elif name.endswith("_s") and value is not None and not abs(value) < _MAX_TIME_S:
            rule = "must be a time in seconds since 1970"
        else:
            continue
        raise WrongValue(f"{table}.{name}={repr(value)[:80]} in a row of it; {rule}")
    return values


def find(connection: sqlite3.Connection, row_class: type[AnyRow], id: bytes) -> AnyRow | None:
    """Returns the row of that id."""
    table = TABLE_OF[row_class]
    if not table.key:
        raise ValueError(f"{row_class.__name__} has no id. Use scan().")
    key = _number_of(connection, id) if table.key == "number" else id
    text = f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE {table.key} = ?"
    values = connection.execute(text, (key,)).fetchone()
    return None if values is None else _row(row_class, values)


def scan(
    connection: sqlite3.Connection, row_class: type[AnyRow], condition: str = "", *,
    last: int | None = None,
) -> Iterator[AnyRow]:  # fmt: skip
    """Yields rows in the order of their first writing; with `last`, the last ones in reverse."""
    table = TABLE_OF[row_class]
    clause = f"WHERE {condition}" if condition else ""
    order = "" if last is None else f"DESC LIMIT {last}"
    text = f"SELECT {', '.join(table.columns)} FROM {table.name} {clause} ORDER BY rowid {order}"
    for values in connection.execute(text):
        yield _row(row_class, values)


def _row(row_class: type[AnyRow], values: Sequence[Any]) -> AnyRow:
    return row_class(*checked(TABLE_OF[row_class].name, _TYPES[row_class], values))


def ids_with_prefix(
    connection: sqlite3.Connection, table: GcsTable, prefix: bytes, limit: int
) -> list[bytes]:
    """Returns at most `limit` ids that begin with `prefix`."""
    end = _next_prefix(prefix)
    bounds, values = "id >= ?", [prefix]
    if end is not None:
        bounds, values = f"{bounds} AND id < ?", [prefix, end]
    if table.key == "number":
        joined = f"({_SEGMENTS}) CROSS JOIN tasks ON {_IN_SEGMENT} AND {bounds}"
        text = f"SELECT DISTINCT id FROM {joined}"
    else:
        text = f"SELECT id FROM {table.name} WHERE {bounds}"
    return [id for (id,) in connection.execute(f"{text} LIMIT {limit}", values)]


def remove(path: Path) -> None:
    """Removes the file and SQLite's files beside it."""
    for part in _parts(path):
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def set_aside(path: Path) -> Path:
    """Renames the store to `<name>.damaged-<n>`, and returns that; GcsError if it cannot be."""
    for number in itertools.count(1):
        target = path.with_name(f"{path.name}.damaged-{number}")
        if not any(part.exists() for part in _parts(target)):
            break
    try:
        for part, new in zip(_parts(path), _parts(target), strict=True):
            with contextlib.suppress(FileNotFoundError):
                part.rename(new)
    except OSError as error:
        raise GcsError(f"{path}: cannot be renamed ({error}). Move it away.") from error
    return target


def _parts(path: Path) -> list[Path]:
    """Returns the paths of a database's file and of SQLite's files beside it."""
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]


# Searches the newest segments first, and stops at the row.
_SEGMENTS: Final = (
    "WITH RECURSIVE segments (segment) AS "
    f"(SELECT (SELECT max(number) >> {tables.SEGMENT_BITS} FROM tasks) "
    "UNION ALL SELECT segment - 1 FROM segments WHERE segment > 0) SELECT segment FROM segments"
)
_IN_SEGMENT: Final = f"number >> {tables.SEGMENT_BITS} = segment"
_NUMBER_OF: Final = (
    f"SELECT number FROM ({_SEGMENTS}) CROSS JOIN tasks ON {_IN_SEGMENT} AND id = ? LIMIT 1"
)


def _number_of(connection: sqlite3.Connection, id: bytes) -> int:
    number = connection.execute(_NUMBER_OF, (id,)).fetchone()
    return number[0] if number else 0


def _next_prefix(prefix: bytes) -> bytes | None:
    """Returns the least bytes above all that begin with `prefix`; None if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def _cannot_open(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> GcsError:
    if isinstance(error, UnicodeDecodeError):
        return _damaged(path, error.object.decode(errors="replace"))
    kind = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
    # SQLITE_ERROR: it has other tables.
    if kind in ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR") or any(
        part.is_dir() for part in _parts(path)
    ):
        return _damaged(path, str(error))
    if getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK":
        return GcsError(
            f"{path}: its writer was killed while it wrote, and half of that is in the file, "
            "beside what undoes it. To undo it: resume the run, or `sqlite3 FILE .tables`."
        )
    return GcsError(
        f"{path}: SQLite cannot open it as a control store ({error}). Give a run's gcs.sqlite; "
        "one that is written needs free space, and a file system that has locks (fcntl)."
    )


def _damaged(path: Path, reason: str) -> DamagedStoreError:
    first_line, *_ = reason.replace("*** in database main ***", "").strip().splitlines() or [""]
    return DamagedStoreError(path, first_line)


def _not_a_store(path: Path, application: int, version: int) -> GcsError:
    if application == tables.APPLICATION_ID:
        return GcsError(
            f"{path}: a control store of version {version}; this is version "
            f"{tables.SCHEMA_VERSION}. Use the gmi-drl that wrote it."
        )
    return DamagedStoreError(path, f"an SQLite file of application_id {application}")
