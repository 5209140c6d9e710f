"""Defines what the control store keeps: a row class for each table, and the SQL of its table.

Ids are bytes: 16 for a task; for its i-th result these 16 and i as four bytes, little endian. Times
are Unix times in seconds, 0 before the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

APPLICATION_ID: Final = 0x474D4943  # in the header of the file: this is a control store
SCHEMA_VERSION: Final = 2
SEGMENT_BITS: Final = 15
OBJECT_ID_BYTES: Final = 20
TASK_ID_BYTES: Final = 16


class TaskRow(NamedTuple):
    """A task, the creation of an actor, or a method call."""

    id: bytes
    kind: str  # task, actor (its creation), or method
    name: str
    parent: bytes = b""  # the task that submitted it
    actor: bytes = b""
    sequence: int = 0  # of a method: its place among the calls of its actor
    function: bytes = b""
    inputs: bytes = b""  # object ids, 20 bytes each, one after the other
    num_returns: int = 1
    spec: bytes | None = None  # all that is needed to run it again
    state: str = "waiting"  # waiting, running, finished, failed, cancelled, lost
    device: int = -1
    pid: int = 0
    submitted_s: float = 0.0
    started_s: float = 0.0
    finished_s: float = 0.0
    attempts: int = 0  # how often it has been started
    error: str = ""


class ActorRow(NamedTuple):
    """An actor."""

    id: bytes
    name: str
    class_name: str
    state: str = "starting"  # starting, alive, restarting, dead
    pid: int = 0
    device: int = -1
    restarts: int = 0
    max_restarts: int = 0
    checkpoint: int = 0  # sequence number of the last method in its last checkpoint
    created_s: float = 0.0
    died_s: float = 0.0
    reason: str = ""


class ObjectRow(NamedTuple):
    """An object in shared memory. Small ones are known by their task."""

    id: bytes
    nbytes: int
    where: str = "memory"  # memory, disk, lost, freed
    device: int = -1
    created_s: float = 0.0


class FunctionRow(NamedTuple):
    """A function or class as it was pickled."""

    id: bytes
    name: str
    body: bytes


class EventRow(NamedTuple):
    """Something that happened, to whom, in words."""

    time_s: float
    kind: str
    subject: bytes
    text: str


class BranchRow(NamedTuple):
    """A part of a training, from its start or a resumption to the next rollback."""

    id: bytes  # its number as 16 bytes, big endian
    number: int  # from 0 on, in the order in which they began
    session: str  # the launch
    generation: int  # of the group of GMIs that train, in that launch
    version: int  # the policy that it goes on from
    board: int  # the number that agents knew that policy by; -1: the same
    restored: str  # from the checkpoint of that path, from "peers", or "" at the beginning
    optimizer: str
    layout: str  # JSON: the GMIs
    began_s: float = 0.0


class PolicyRow(NamedTuple):
    """A version of the policy: the one after so many iterations."""

    id: bytes  # branch and version, 8 bytes each, big endian
    branch: int
    version: int
    updates: int  # steps of its optimizer by then
    steps: int  # of environments by then
    lag: int  # the most updates that experience was behind the policy it was used on
    experience: str  # JSON: [trainer, gmi, process, sampled with version, parts, steps] of each
    replay: str  # JSON: [trainer, rows, version of the oldest, minibatches] of each; or ""
    made_s: float = 0.0
    checkpoint: str = ""  # the path of the one that holds it


def branch_id(number: int) -> bytes:
    """Returns the id of a branch."""
    return number.to_bytes(16, "big")


def policy_id(branch: int, version: int) -> bytes:
    """Returns the id of a version; they are in the order in which they are made."""
    return branch.to_bytes(8, "big") + version.to_bytes(8, "big")


Row: TypeAlias = TaskRow | ActorRow | ObjectRow | FunctionRow | EventRow | BranchRow | PolicyRow

_FINAL_TASK: Final = frozenset({"finished", "failed", "cancelled"})


def is_final(row: Row) -> bool:
    """Returns whether a row is not expected to change any more, unless it is lost."""
    if type(row) is TaskRow:
        return row.state in _FINAL_TASK
    if type(row) is ActorRow:
        return row.state == "dead"
    if type(row) is ObjectRow:
        return row.where == "freed"
    return True


def may_be_written(task: TaskRow) -> bool:
    """Returns whether a task may have a row already, as it is lost or run again."""
    return (
        task.attempts > 1
        or task.state == "lost"
        or (task.attempts == 1 and task.state == "waiting")
    )


@dataclass(frozen=True)
class GcsTable:
    """Describes the table of one row class."""

    row: type[Row]
    name: str
    key: str  # "number", "id" or "" (rows are only added)
    columns: tuple[str, ...]

    @property
    def creation(self) -> list[str]:
        """Returns the statements that make the table, its index and its view for people."""
        names = ", ".join(self.columns)
        index = []
        if self.key == "id":
            names = ", ".join(("id BLOB PRIMARY KEY", *self.columns[1:]))
        elif self.key == "number":
            names = f"number INTEGER PRIMARY KEY, {names}"
            # Task ids are hashes: one index of all of them would be written to in as many places
            # as a batch has rows, ever more slowly as it grows. With the upper bits of the
            # number first only its last part is written to, and a search looks in each part.
            columns = f"{self.name} (number >> {SEGMENT_BITS}, id)"
            index = [f"CREATE INDEX IF NOT EXISTS {self.name}_id ON {columns}"]
        shown = [
            f"lower(hex({name})) AS {name}" if name in _ID_COLUMNS else name
            for name in self.columns
            if name not in ("spec", "body")
        ]
        view = f"CREATE VIEW IF NOT EXISTS {self.name}_text AS SELECT {', '.join(shown)}"
        table = f"CREATE TABLE IF NOT EXISTS {self.name} ({names})"
        return [table, *index, f"{view} FROM {self.name}"]


_ID_COLUMNS: Final = ("id", "parent", "actor", "function", "inputs", "subject")


def _table(row: type[Row], name: str, key: str) -> GcsTable:
    columns = tuple("place" if field == "where" else field for field in row._fields)
    return GcsTable(row, name, key, columns)  # `where` is a word of SQL


TABLES: Final = (
    _table(TaskRow, "tasks", "number"),
    _table(ActorRow, "actors", "id"),
    _table(ObjectRow, "objects", "id"),
    _table(FunctionRow, "functions", "id"),
    _table(EventRow, "events", ""),
    _table(BranchRow, "branches", "id"),
    _table(PolicyRow, "policies", "id"),
)
TABLE_OF: Final[dict[type[Any], GcsTable]] = {table.row: table for table in TABLES}
