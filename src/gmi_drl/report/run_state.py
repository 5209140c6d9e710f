"""Reads a run's tasks, actors, objects and last events from its GCS file, and prints them."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.launcher.view.tables import print_table, printable
from gmi_drl.placement import counted
from gmi_drl.runtime.gcs.database import SQLITE_ERRORS, GcsError, WrongValue, checked, open_to_read

from .run_list import list_runs

if TYPE_CHECKING:
    from rich.console import Console

FILE_NAME: Final = "gcs.sqlite"
_LAST_EVENTS: Final = 20
_MOST_TEXT: Final = 500  # characters of a cell
_READ: Final = timedelta(seconds=60)
_STEPS: Final = 10_000  # of SQLite's machine, between two looks at the clock
_LONGEST_BYTES: Final = 64 * 2**20  # of one value; the default lets a few of them fill the memory


@dataclass(frozen=True)
class RunState:
    """Counts what is recorded of a run."""

    path: str
    tasks: list[dict[str, Any]]
    actors: list[dict[str, Any]]
    objects: list[dict[str, Any]]
    events: list[dict[str, Any]]


def store_of(run: Path | None) -> Path:
    """Finds the control store of a run: in its folder, the file itself, or of the newest run."""
    if run is None:
        stores = [summary.path / FILE_NAME for summary in list_runs(Path("runs"))]
        existing = [path for path in stores if path.is_file()]
        if not existing:
            raise GcsError(
                f"runs: none of the {counted(len(stores), 'run')} in it has a {FILE_NAME}. "
                "Give a run's folder; `gmi-drl launch CONFIG` makes one."
            )
        return existing[-1]
    path = run / FILE_NAME if run.is_dir() else run
    if not path.exists():
        why = f"there is no {FILE_NAME} in it" if run.is_dir() else "no such folder or file"
        raise GcsError(
            f"{run}: {why}. Give the folder of a run that has a {FILE_NAME}; "
            "`gmi-drl runs` lists the folders."
        )
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the store as of one moment; it may be a stranger's, or of a run that goes on.

    GcsError says what is wrong with it, and when reading takes too long: a few rows that are made
    for it can keep a query busy for ever.
    """
    connection = open_to_read(path)
    deadline_s = time.monotonic() + _READ.total_seconds()
    connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_BYTES)
    try:
        connection.execute("BEGIN")
        yield connection
    except (*SQLITE_ERRORS, WrongValue) as error:
        if isinstance(error, SQLITE_ERRORS) and time.monotonic() > deadline_s:
            raise GcsError(
                f"{path}: not read after {_READ.total_seconds():g} s, the longest that it may "
                "take. It is very large, or its rows were made to keep a reader busy. Ask for "
                "what you need with an SQL tool (docs/control-store.md)."
            ) from error
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:  # Ctrl-C meanwhile
            raise KeyboardInterrupt from error
        raise GcsError(
            f"{path}: the control store is damaged ({error}). "
            "SQLite's `.recover` may still read parts of it."
        ) from error
    finally:
        connection.close()


def read_state(path: Path) -> RunState:
    """Counts what is recorded; a run that goes on may be read."""
    tasks = (
        "SELECT counted.name, counted.kind, counted.state, lower(hex(id)) AS newest, count, "
        f"mean_s, max_s FROM (SELECT {_short('name')}, {_short('kind')}, {_short('state')}, "
        "max(number) AS last, count(*) AS count, "
        "avg(CASE WHEN finished_s > 0 THEN finished_s - started_s END) AS mean_s, "
        "max(CASE WHEN finished_s > 0 THEN finished_s - started_s END) AS max_s "
        "FROM tasks GROUP BY 1, 2, 3) AS counted JOIN tasks ON number = last "
        "ORDER BY count DESC, 1, 3"
    )
    actors = (
        f"SELECT lower(hex(id)) AS id, {_short('name')}, {_short('class_name')}, "
        f"{_short('state', 'actors.state')}, pid, device, restarts, coalesce(calls, 0) AS calls, "
        f"{_short('reason')} FROM actors LEFT JOIN "
        "(SELECT actor, count(*) AS calls FROM tasks WHERE kind = 'method' GROUP BY actor) "
        "ON actor = id ORDER BY created_s, 2"
    )
    objects = (
        f"SELECT {_short('where', 'place')}, count(*) AS count, sum(nbytes) AS nbytes "
        "FROM objects GROUP BY 1 ORDER BY 1"
    )
    events = (
        f"SELECT time_s, {_short('kind')}, lower(hex(subject)) AS subject, {_short('text')} FROM "
        f"(SELECT rowid, * FROM events ORDER BY rowid DESC LIMIT {_LAST_EVENTS}) ORDER BY rowid"
    )
    integers = dict.fromkeys(("count", "nbytes", "pid", "device", "restarts", "calls"), int)
    types = integers | {"mean_s": float | None, "max_s": int | float | None, "time_s": float}
    with opened(path) as store:
        return RunState(
            str(path),
            tasks=_rows(store, "tasks", tasks, types),
            actors=_rows(store, "actors", actors, types),
            objects=_rows(store, "objects", objects, types),
            events=_rows(store, "events", events, types),
        )


def print_state(console: Console, state: RunState) -> None:
    """Prints the tables, for people."""
    console.out(printable(state.path), highlight=False)

    def table(
        title: str, columns: str, rows: Iterable[Sequence[str]], drop: Sequence[str] = ()
    ) -> None:
        if rows := list(rows):
            print_table(console, title, columns.split(", "), rows, drop)

    tasks = (
        (r["name"], r["kind"], r["state"], f"{r['count']:,}", _duration(r["mean_s"]),
         _duration(r["max_s"]), r["newest"][:12])
        for r in state.tasks
    )  # fmt: skip
    columns = "function, kind, state, count, mean, longest, newest id"
    table("Tasks", columns, tasks, ("kind", "longest", "mean"))
    actors = (
        (r["name"], r["class_name"], _how_it_is(r["state"], r["reason"]), str(r["pid"] or "-"),
         str(r["device"]) if r["device"] >= 0 else "-", str(r["restarts"]), f"{r['calls']:,}",
         r["id"][:12])
        for r in state.actors
    )  # fmt: skip
    columns = "name, class, state, pid, device, restarts, calls, id"
    table("Actors", columns, actors, ("class", "device", "pid", "calls", "restarts"))
    objects = ((r["where"], f"{r['count']:,}", f"{r['nbytes'] / 1e6:,.1f}") for r in state.objects)
    table("Objects in shared memory", "where, count, MB", objects)
    events = (
        (time.strftime("%H:%M:%S", time.localtime(r["time_s"])), r["kind"], r["subject"][:12],
         r["text"])
        for r in state.events
    )  # fmt: skip
    table("Last events", "time, event, of, text", events, ("of",))


def _short(column: str, of: str = "") -> str:
    """Returns a column of text, in SQL: no more of it than a table can show."""
    return f'substr({of or column}, 1, {_MOST_TEXT}) AS "{column}"'


def _rows(
    store: sqlite3.Connection, table: str, text: str, types: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns what a query gives; columns that are not in `types` are text."""
    cursor = store.execute(text)
    types = {column[0]: types.get(column[0], str) for column in cursor.description}
    return [dict(zip(types, checked(table, types, row), strict=True)) for row in cursor]


def _how_it_is(state: str, reason: str) -> str:
    """Returns an actor's state with its reason, or the reason alone if it ended as it should."""
    if state == "dead" and reason.startswith("ended"):
        return reason
    return f"{state}: {reason}" if reason else state


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
