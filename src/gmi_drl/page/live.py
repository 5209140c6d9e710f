"""Tells viewers what has changed since their last look. All of them share the readers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .catalog import Catalog
from .curves import Cursor
from .run_reader import RunReader
from .trials import TrialsReader

LOOK_S: Final = 1.0  # between two looks at a run
_LIST_S: Final = 3.0  # at all runs
_TRIALS_S: Final = 5.0
_LISTS: Final = ("runs", "trials")  # events that are of no run, which all viewers are given
_FRESH_S: Final = 0.5  # what was read so shortly ago is not read again for another viewer
_MOST_READERS: Final = 8  # of runs that are kept in memory
_NUMBER: Final = re.compile(r"[0-9]{1,6}")

Event = tuple[str, str]  # its name, and JSON


@dataclass
class Viewer:
    """Holds what a browser that looks on has asked for, and what it has been sent.

    Without a run it is given the newest one, and another when that begins.
    """

    run: str | None  # the id of a run
    gmi: int | None  # whose log is shown
    cursor: Cursor = field(default_factory=Cursor)
    sent: dict[str, str] = field(default_factory=dict)  # the last of each event

    def __post_init__(self) -> None:
        self.follows = self.run is None

    def turn_to(self, run: str | None) -> None:
        """Looks at another run, of which it has been given nothing yet.

        Where it looked at a run before, the log becomes that of GMI 0, which every run has.
        """
        if run != self.run:
            if self.run is not None and self.gmi is not None:
                self.gmi = 0
            self.run, self.cursor = run, Cursor()
            self.sent = {name: text for name, text in self.sent.items() if name in _LISTS}


@dataclass
class _Lists:
    """Holds the lists of runs and trials, as all viewers are sent them until the next look."""

    texts: dict[str, str] = field(default_factory=dict)  # JSON, by the name of the event
    due_s: dict[str, float] = field(default_factory=dict)  # when each is looked at again
    newest: str | None = None  # the id of a run


class Live:
    """Holds the readers of one page, and its lists."""

    def __init__(self, catalog: Catalog, *, control: bool = False) -> None:
        self.catalog, self.control = catalog, control
        self._trials = TrialsReader(catalog.with_tunes)
        self._listed = _Lists()
        self._readers: OrderedDict[str, tuple[RunReader, float]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, id: str) -> Path | None:
        """Returns the folder of a run; one that is new is looked for once."""
        with self._lock:
            path = self.catalog.find(id)
            if path is None:
                self.catalog.scan()
                path = self.catalog.find(id)
            return path

    def changes(self, viewer: Viewer) -> list[Event]:
        """Returns the events that a viewer lacks by now."""
        with self._lock:
            return [*self._lists(viewer), *self._run(viewer)]

    def _lists(self, viewer: Viewer) -> list[Event]:
        self._look_at_lists()
        if viewer.follows:
            viewer.turn_to(self._listed.newest)
        return [
            event
            for name in _LISTS
            for event in _text_if_new(viewer, name, self._listed.texts[name])
        ]

    def _look_at_lists(self) -> None:
        """Looks at each list that was not looked at lately, for all viewers."""
        now_s, listed = time.monotonic(), self._listed
        if now_s >= listed.due_s.get("runs", 0.0):
            runs = self.catalog.as_json()
            listed.newest = next((run["id"] for run in runs["runs"]), None)
            listed.texts["runs"] = as_text({**runs, "control": self.control})
            listed.due_s["runs"] = now_s + _LIST_S
        if now_s >= listed.due_s.get("trials", 0.0):
            listed.texts["trials"] = as_text(self._trials.as_json(self.catalog.roots()))
            listed.due_s["trials"] = now_s + _TRIALS_S

    def _run(self, viewer: Viewer) -> list[Event]:
        if viewer.run is None:
            return []
        reader = self._reader(viewer.run)
        if reader is None:
            return _if_new(viewer, "gone", viewer.run)
        events = _if_new(viewer, "layout", reader.picture())
        content = {"head": reader.head(time.time()), "gmis": reader.gmis()}
        events += _if_new(viewer, "run", content)
        change, cursor = reader.metrics.since(viewer.cursor)
        if cursor != viewer.cursor or reader.metrics.stride > 1:
            events += _if_new(viewer, "curves", change)
        viewer.cursor = cursor
        if viewer.gmi is not None:
            events += _if_new(viewer, "log", reader.log(viewer.gmi))
        return events

    def is_behind(self, viewer: Viewer) -> bool:
        """Says whether there is more of a run to read at once."""
        with self._lock:
            entry = self._readers.get(viewer.run or "")
            return entry is not None and entry[0].metrics.unread_bytes > 0

    def _reader(self, id: str) -> RunReader | None:
        path = self.catalog.find(id)
        if path is None:
            return None
        now_s = time.monotonic()
        reader, read_s = self._readers.pop(id, (None, 0.0))
        if reader is None or reader.folder != path:
            reader, read_s = RunReader(path), float("-inf")
        if now_s - read_s >= _FRESH_S or reader.metrics.unread_bytes:
            reader.poll()
            read_s = now_s
        self._readers[id] = reader, read_s
        while len(self._readers) > _MOST_READERS:
            self._readers.popitem(last=False)
        return reader


def as_text(content: Any) -> str:
    """Returns JSON, of numbers that a browser reads."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def number_in_query(text: str) -> int | None:
    """Returns a small number that a query has; None for anything else."""
    return int(text) if _NUMBER.fullmatch(text) and text.isascii() else None


def _if_new(viewer: Viewer, name: str, content: Any) -> list[Event]:
    return _text_if_new(viewer, name, as_text(content))


def _text_if_new(viewer: Viewer, name: str, text: str) -> list[Event]:
    if viewer.sent.get(name) == text:
        return []
    viewer.sent[name] = text
    return [(name, text)]
