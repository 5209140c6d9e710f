"""What `gmi-drl state` shows: a run's tasks, actors, objects and last events, from its GCS file."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime.database import GcsError, open_to_read

from .run_list import list_runs
from .tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

FILE_NAME: Final = "gcs.sqlite"
_LAST_EVENTS: Final = 20


@dataclass(frozen=True)
class State:
    """What is recorded of a run, counted."""

    path: str
    tasks: list[dict[str, Any]]
    actors: list[dict[str, Any]]
    objects: list[dict[str, Any]]
    events: list[dict[str, Any]]


def store_of(run: Path | None) -> Path:
    """The control store of a run: in its folder, the file itself, or of the newest run."""
    if run is None:
        found = [summary.path / FILE_NAME for summary in list_runs(Path("runs"))]
        there = [path for path in found if path.is_file()]
        if not there:
            raise GcsError(
                f"runs: none of its {len(found)} runs has a {FILE_NAME}. "
                "Give a run's folder; `gmi-drl launch CONFIG` makes one."
            )
        return there[-1]
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
    """The store, to read; what SQLite says of a damaged one is a GcsError."""
    connection = open_to_read(path)
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        raise GcsError(
            f"{path}: the control store is damaged ({error}). "
            "SQLite's `.recover` may still read parts of it."
        ) from error
    finally:
        connection.close()


def read_state(path: Path) -> State:
    """Counts what is recorded; a run that goes on may be read."""
    with opened(path) as store:
        store.execute("BEGIN")  # all of it as of one moment
        return State(
            str(path),
            _rows(
                store,
                "SELECT name, kind, state, count(*) AS count, avg(CASE WHEN finished_s > 0 "
                "THEN finished_s - started_s END) AS mean_s, max(CASE WHEN finished_s > 0 "
                "THEN finished_s - started_s END) AS max_s FROM tasks "
                "GROUP BY name, kind, state ORDER BY count(*) DESC, name, state",
            ),
            _rows(
                store,
                "SELECT lower(hex(id)) AS id, name, class_name, actors.state, pid, device, "
                "restarts, coalesce(calls, 0) AS calls, reason FROM actors LEFT JOIN "
                "(SELECT actor, count(*) AS calls FROM tasks WHERE kind = 'method' GROUP BY actor) "
                "ON actor = id ORDER BY created_s, name",
            ),
            _rows(
                store,
                'SELECT place AS "where", count(*) AS count, sum(nbytes) AS nbytes '
                "FROM objects GROUP BY place ORDER BY place",
            ),
            _rows(
                store,
                "SELECT time_s, kind, lower(hex(subject)) AS subject, text FROM "
                f"(SELECT rowid, * FROM events ORDER BY rowid DESC LIMIT {_LAST_EVENTS}) "
                "ORDER BY rowid",
            ),
        )


def print_state(console: Console, state: State) -> None:
    """The tables, for people."""
    console.out(state.path, highlight=False)
    _print(
        console,
        "Tasks",
        ["function", "kind", "state", "count", "mean", "longest"],
        [
            [
                row["name"],
                row["kind"],
                row["state"],
                f"{row['count']:,}",
                _duration(row["mean_s"]),
                _duration(row["max_s"]),
            ]
            for row in state.tasks
        ],
    )
    _print(
        console,
        "Actors",
        ["name", "class", "state", "pid", "device", "restarts", "calls", "id"],
        [
            [
                row["name"],
                row["class_name"],
                f"{row['state']}{': ' + row['reason'] if row['reason'] else ''}",
                str(row["pid"] or "-"),
                str(row["device"]) if row["device"] >= 0 else "-",
                str(row["restarts"]),
                f"{row['calls']:,}",
                row["id"][:12],
            ]
            for row in state.actors
        ],
    )
    _print(
        console,
        "Objects in shared memory",
        ["where", "count", "MB"],
        [
            [row["where"], f"{row['count']:,}", f"{row['nbytes'] / 1e6:,.1f}"]
            for row in state.objects
        ],
    )
    _print(
        console,
        "Last events",
        ["time", "event", "of", "text"],
        [
            [
                time.strftime("%H:%M:%S", time.localtime(row["time_s"])),
                row["kind"],
                row["subject"][:12],
                row["text"],
            ]
            for row in state.events
        ],
    )


def as_json(state: State) -> dict[str, Any]:
    """The same, for programs."""
    return asdict(state)


def _rows(store: sqlite3.Connection, text: str) -> list[dict[str, Any]]:
    cursor = store.execute(text)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _print(console: Console, title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.markup import escape

    if not rows:
        return
    if console.is_terminal:  # there brackets would be read as colours
        rows = [[escape(cell) for cell in row] for row in rows]
    print_table(console, title, columns, rows)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
