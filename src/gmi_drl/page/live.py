"""Tells viewers what has changed since their last look. All of them share the readers."""

from __future__ import annotations

import itertools
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
# Events that are of no run, which all viewers are given, and seconds between two looks at each.
_LISTS: Final = {"runs": 3.0, "trials": 5.0}
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


class Live:
    """Holds the readers of one page, and its lists."""

    def __init__(self, catalog: Catalog, *, control: bool = False) -> None:
        self.catalog, self.control = catalog, control
        self._trials = TrialsReader(catalog.with_tunes)
        self._lists: dict[str, str] = {}  # JSON that all viewers are sent, by the event's name
        self._due_s = dict.fromkeys(_LISTS, 0.0)  # when each is looked at again
        self._newest: str | None = None  # the id of a run
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
            self._look_at_lists()
            if viewer.follows:
                viewer.turn_to(self._newest)
            lists = [_text_if_new(viewer, name, text) for name, text in self._lists.items()]
            return [*itertools.chain(*lists), *self._run(viewer)]

    def _look_at_lists(self) -> None:
        """Looks at each list that was not looked at lately, for all viewers."""
        now_s = time.monotonic()
        for name, every_s in _LISTS.items():
            if now_s >= self._due_s[name]:
                self._lists[name], self._due_s[name] = as_text(self._list(name)), now_s + every_s

    def _list(self, name: str) -> Any:
        if name == "trials":
            return self._trials.as_json(self.catalog.roots())
        runs = self.catalog.as_json()
        self._newest = next((run["id"] for run in runs["runs"]), None)
        return {**runs, "control": self.control}

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
