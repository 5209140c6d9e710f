"""Traces a result back to its task, the tasks of its inputs, and so on to the roots.

A method call also comes from the call before it on its actor (the stateful edge), and the first
from the actor's creation.
"""

from __future__ import annotations

import bisect
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gmi_drl.launcher.view.tables import cut, printable
from gmi_drl.placement import counted
from gmi_drl.runtime.gcs.database import GcsError, find, ids_with_prefix
from gmi_drl.runtime.gcs.tables import (
    OBJECT_ID_BYTES,
    TABLE_OF,
    TASK_ID_BYTES,
    ActorRow,
    ObjectRow,
    TaskRow,
)

_MOST_CANDIDATES: Final = 8
_MOST_TEXT: Final = 200  # characters of a name

Edge = Literal["", "input", "state"]


@dataclass
class Node:
    """Holds one thing of a lineage, and what it was computed from."""

    key: str
    name: str
    text: str  # how it came about
    edge: Edge = ""  # how the one above depends on it
    of: Any = None  # what it stands for
    below: list[Node] = field(default_factory=list)
    again: bool = False  # it is shown elsewhere too, with its sources
    cut: int = 0  # sources that are not shown


class LineageReader:
    """Traces the lineages of one store."""

    def __init__(self, store: sqlite3.Connection) -> None:
        self._store = store
        self._calls: dict[bytes, list[tuple[int, bytes]]] = {}  # of an actor, in order

    def resolve(self, text: str) -> bytes:
        """Finds the task that an id, or the first digits of one, stands for.

        An object stands for the task that made it, an actor for its last call.
        """
        digits = text.strip().lower()
        try:
            prefix = bytes.fromhex(digits[: len(digits) // 2 * 2])
            if not digits or int(digits, 16) < 0 or len(digits) > 2 * OBJECT_ID_BYTES:
                raise ValueError
        except ValueError:
            raise GcsError(
                f"{text!r}: not the hex digits of an id. Give the first digits of a task's, an "
                "object's or an actor's; `gmi-drl state` shows some."
            ) from None
        tasks: dict[bytes, str] = {}
        for row_class in (TaskRow, ActorRow, ObjectRow):
            table = TABLE_OF[row_class]
            # Half a byte more can only be compared here: look at all that it may be.
            limit = 16 * _MOST_CANDIDATES if len(digits) % 2 == 0 else 1_000_000
            for id in ids_with_prefix(self._store, table, prefix, limit):
                if id.hex().startswith(digits):
                    if row_class is ActorRow:
                        tasks.pop(id, None)  # the task that creates it has the same id
                    tasks[self._task_of(row_class, id)] = f"{table.name[:-1]} {id.hex()}"
        if not tasks and len(digits) > 2 * TASK_ID_BYTES:  # a small object is not in the table
            id = bytes.fromhex(digits[: 2 * TASK_ID_BYTES])
            if self._find(id) is not None:
                tasks[id] = ""
        if not tasks:
            raise GcsError(
                f"{text}: no task, object or actor of this run has an id that begins so. "
                "`gmi-drl state` shows some."
            )
        if len(tasks) > 1:
            shown = list(tasks)[:_MOST_CANDIDATES]
            names = "".join(f"\n  {id.hex()} {describe(self._find(id))}" for id in shown)
            hidden = len(tasks) - _MOST_CANDIDATES
            raise GcsError(
                f"{text}: several ids begin so. Give more digits of one:{names}"
                + (f"\n  and {hidden} more" if hidden > 0 else "")
            )
        return next(iter(tasks))

    def tree(self, task_id: bytes, depth: int = 8) -> Node:
        """Finds what the task was computed from, so many steps back. A task is opened once."""

        def node(id: bytes, edge: Edge = "") -> Node:
            task = self._find(id)
            return Node(id.hex(), id.hex()[:12], describe(task), edge, of=task)

        def below(above: Node) -> list[Node]:
            return [node(id, edge) for id, edge in self.sources(above.of)]

        return expand(node(task_id), below, depth)

    def sources(self, task: TaskRow | None) -> list[tuple[bytes, Edge]]:
        """Lists tasks whose results it takes, and the call before it on its actor."""
        if task is None:
            return []
        edges: list[tuple[bytes, Edge]] = []
        if task.kind == "method":
            calls = self._calls_of(task.actor)
            if place := bisect.bisect_left(calls, (task.sequence, b"")):
                edges.append((calls[place - 1][1], "state"))
        for begin in range(0, len(task.inputs), OBJECT_ID_BYTES):
            maker = task.inputs[begin : begin + OBJECT_ID_BYTES]
            if self._find(maker[:TASK_ID_BYTES]) is not None:
                maker = maker[:TASK_ID_BYTES]
            if (maker, "input") not in edges:
                edges.append((maker, "input"))
        return edges

    def _find(self, id: bytes) -> TaskRow | None:
        return find(self._store, TaskRow, id) if len(id) == TASK_ID_BYTES else None

    def _calls_of(self, actor: bytes) -> list[tuple[int, bytes]]:
        """Returns sequence number and id of its creation (before all others) and of its calls."""
        if actor not in self._calls:
            rows = self._store.execute(
                "SELECT CASE kind WHEN 'actor' THEN -1 ELSE sequence END, id FROM tasks "
                "WHERE actor = ? OR (id = ? AND kind = 'actor')",
                (actor, actor),
            )
            self._calls[actor] = sorted(rows)
        return self._calls[actor]

    def _task_of(
        self, row_class: type[TaskRow] | type[ActorRow] | type[ObjectRow], id: bytes
    ) -> bytes:
        if row_class is ActorRow:
            calls = self._calls_of(id)
            return calls[-1][1] if calls else id
        if row_class is ObjectRow:
            return id[:TASK_ID_BYTES] if self._find(id[:TASK_ID_BYTES]) else id
        return id


def expand(root: Node, sources: Callable[[Node], list[Node]], depth: int) -> Node:
    """Puts below a node what it was computed from, so many steps back; each is opened once."""
    level, seen = [root], {root.key}
    for step in range(depth + 1):
        next_level: list[Node] = []
        for node in level:
            for below in sources(node):
                if step == depth:
                    node.cut += below.key not in seen
                    continue
                node.below.append(below)
                if below.key in seen:
                    below.again = True
                else:
                    seen.add(below.key)
                    next_level.append(below)
        level = next_level
    return root


def describe(task: TaskRow | None) -> str:
    """Says who ran a task, where, and how it went, as it may be printed."""
    if task is None:
        return "an object that was put, or whose task is not recorded"
    name = cut(task.name, _MOST_TEXT)
    parts = [f"{name} ({task.kind})" if task.kind != "task" else name, task.state]
    if task.pid:
        parts.append(f"pid {task.pid}" + (f" on device {task.device}" if task.device >= 0 else ""))
    if task.finished_s > 0 and task.started_s > 0:
        parts.append(f"{(task.finished_s - task.started_s) * 1e3:.2f} ms")
    if task.attempts > 1:
        parts.append(f"{task.attempts} attempts")
    if task.error:
        parts.append(task.error.splitlines()[0][:80])
    return printable(cut(", ".join(parts), 4 * _MOST_TEXT))


def as_text(root: Node) -> list[str]:
    """Draws the tree in lines; what a line takes as input or comes after is below it."""
    lines = []
    stack: list[tuple[Node, str, str]] = [(root, "", "")]
    num_cut = 0
    while stack:
        node, prefix, indent = stack.pop()
        relation = "after " if node.edge == "state" else ""
        text = f"{relation}{node.name} {node.text}"
        lines.append(prefix + text + (" (see its other line)" if node.again else ""))
        if node.cut:
            num_cut += node.cut
            lines.append(f"{indent}└─ ... {node.cut} more")
        for place, below in reversed(list(enumerate(node.below))):
            last = place == len(node.below) - 1
            stack.append(
                (below, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "))
            )
    if num_cut:
        lines.append(f"cut: {counted(num_cut, 'source')} and what is below; --depth shows more")
    return lines


def as_dot(root: Node) -> list[str]:
    """Draws it as a graph for Graphviz; dashed where one call comes after another."""
    lines = ["digraph lineage {", "  rankdir=BT;", "  node [shape=box];"]
    stack = [root]
    while stack:
        node = stack.pop()
        name = node.key
        if not node.again:
            label = node.text.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  "{name}" [label="{node.name}\\n{label}"];')
        if node.cut:
            lines.append(f'  "{name}-cut" [label="{node.cut} more", style=dotted];')
            lines.append(f'  "{name}-cut" -> "{name}" [style=dotted];')
        for below in node.below:
            style = " [style=dashed]" if below.edge == "state" else ""
            lines.append(f'  "{below.key}" -> "{name}"{style};')
            stack.append(below)
    return [*lines, "}"]
