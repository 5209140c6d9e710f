"""Writes a run as a Chrome trace: who did what when, and who asked for it.

A process row is a device, a thread row an actor or a worker; one that does several things at once
has more rows. Arrows lead from a task to those it has submitted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.launcher.view.tables import cut
from gmi_drl.runtime.gcs.database import scan
from gmi_drl.runtime.gcs.tables import ActorRow, EventRow, TaskRow

from .run_state import opened

_MOST_NAME: Final = 200  # characters
_MOST_ERROR: Final = 4_000

_Event = dict[str, Any]


class Timeline:
    """Orders the events of one trace by time."""

    def __init__(self) -> None:
        self.cut = 0  # earlier tasks that were left out
        self._events: list[_Event] = []
        self._rows: dict[tuple[int, str], list[tuple[int, float]]] = {}  # thread, when it is free
        self._devices: set[int] = set()
        self._num_threads = 0
        self._first_row: dict[bytes, tuple[int, int]] = {}  # of an actor: process and thread
        self._spans: dict[bytes, tuple[int, int, float, float]] = {}
        self._zero_s = 0.0

    @classmethod
    def read(cls, path: Path, most_tasks: int = 200_000) -> Timeline:
        """Reads the last so many tasks of a store, with its events."""
        with opened(path) as store:
            (started,) = store.execute("SELECT count(*) FROM tasks WHERE started_s > 0").fetchone()
            rows = scan(store, TaskRow, "started_s > 0", last=most_tasks)
            tasks = [_shortened(task) for task in rows]
            actors = {row.id: row for row in scan(store, ActorRow)}
            events = list(scan(store, EventRow))
        timeline = cls()
        timeline.cut = started - len(tasks)
        timeline._fill(tasks, actors, events)
        return timeline

    @property
    def num_tasks(self) -> int:
        """Counts the tasks that are shown."""
        return len(self._spans)

    def as_text(self) -> str:
        """Returns the trace as JSON, a line for each event."""
        events = ",\n".join(map(json.dumps, self._events))
        return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{events}\n]}}\n'

    def _fill(
        self, tasks: list[TaskRow], actors: dict[bytes, ActorRow], events: list[EventRow]
    ) -> None:
        tasks.sort(key=lambda task: (task.started_s, task.id))
        times = [task.started_s for task in tasks] + [event.time_s for event in events]
        ends = [task.finished_s for task in tasks]
        self._zero_s = min(times, default=0.0)
        now_s = max(times + ends, default=0.0)  # one that runs is shown until here
        known_restarts = {row.subject for row in events if "restart" in row.kind.lower()}
        last_pid: dict[bytes, int] = {}
        for task in tasks:
            self._add_task(task, actors, now_s)
            if task.actor:
                restarted = last_pid.get(task.actor, task.pid) != task.pid
                if restarted and task.actor not in known_restarts:
                    self._instant("restarted", task.started_s, task.actor, {"pid": task.pid})
                last_pid[task.actor] = task.pid
        for task in tasks:
            self._add_arrow(task)
        for event in events:
            details = {"text": event.text, "subject": event.subject.hex()}
            self._instant(event.kind, event.time_s, event.subject, details)
        self._events.sort(key=lambda event: (event["ph"] != "M", event["ts"], event["ph"] != "X"))

    def _add_task(self, task: TaskRow, actors: dict[bytes, ActorRow], now_s: float) -> None:
        end_s = max(task.finished_s or now_s, task.started_s)
        actor = actors.get(task.actor)
        name = f"worker {task.pid}"
        if task.actor:
            name = (actor.name or actor.class_name) if actor else f"actor {task.actor.hex()[:8]}"
            name = f"{name} {task.actor.hex()[:4]}"
        process = task.device + 1  # 0: no device
        thread = self._thread(process, name, task.started_s, end_s)
        if task.actor:
            self._first_row.setdefault(task.actor, (process, thread))
        self._spans[task.id] = process, thread, task.started_s, end_s
        details = {
            "id": task.id.hex(),
            "parent": task.parent.hex(),
            "attempts": task.attempts,
            "state": task.state,
            "pid": task.pid,
            "waited_ms": max(0.0, round((task.started_s - task.submitted_s) * 1e3, 3)),
        }
        if task.error:
            details["error"] = task.error
        duration_us = round((end_s - task.started_s) * 1e6, 3)
        where = process, thread
        self._add("X", task.name, task.kind, task.started_s, where, dur=duration_us, args=details)

    def _add_arrow(self, task: TaskRow) -> None:
        if task.parent not in self._spans or task.parent == task.id:
            return
        *parent, start_s, end_s = self._spans[task.parent]
        *child, child_start_s, _ = self._spans[task.id]
        from_s = min(max(task.submitted_s, start_s), end_s, child_start_s)
        id, name = task.id.hex(), "submitted"
        self._add("s", name, name, from_s, parent, id=id)
        self._add("f", name, name, child_start_s, child, id=id, bp="e")

    def _instant(self, name: str, time_s: float, subject: bytes, about: _Event) -> None:
        process, thread = self._first_row.get(subject, (0, 0))
        if subject in self._spans:
            process, thread = self._spans[subject][:2]
        scope = "t" if thread else "g"
        self._add("i", name, "event", time_s, (process, thread), s=scope, args=about)

    def _add(
        self, phase: str, name: str, category: str, time_s: float, where: Sequence[int], **more: Any
    ) -> None:
        """Adds an event in a process and a thread, in the words of Chrome's traces."""
        event = {"ph": phase, "name": name, "cat": category, "ts": self._us(time_s)}
        self._events.append({**event, "pid": where[0], "tid": where[1], **more})

    def _thread(self, process: int, name: str, start_s: float, end_s: float) -> int:
        """Returns a row that is free then: slices of one row may not overlap."""
        rows = self._rows.setdefault((process, name), [])
        for place, (thread, free_s) in enumerate(rows):
            if free_s <= start_s:
                rows[place] = thread, end_s
                return thread
        self._num_threads += 1
        rows.append((self._num_threads, end_s))
        if process not in self._devices:
            self._devices.add(process)
            device = f"device {process - 1}" if process else "no device"
            self._name("process_name", process, 0, device)
        label = name if len(rows) == 1 else f"{name} ({len(rows)})"
        self._name("thread_name", process, self._num_threads, label)
        return self._num_threads

    def _name(self, what: str, process: int, thread: int, name: str) -> None:
        event = {"ph": "M", "name": what, "ts": 0, "pid": process, "tid": thread}
        self._events.append({**event, "args": {"name": name}})

    def _us(self, time_s: float) -> float:
        return max(0.0, round((time_s - self._zero_s) * 1e6, 3))


def _shortened(task: TaskRow) -> TaskRow:
    """Returns a task with only what is shown, as a stranger's may fill the memory."""
    name, error = cut(task.name, _MOST_NAME), cut(task.error, _MOST_ERROR)
    return task._replace(name=name, error=error, spec=None, inputs=b"")
