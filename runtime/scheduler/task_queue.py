"""Queues what waits on a device: one line for each demand."""

from __future__ import annotations

from collections import deque

from .events import Submitted, Waiting
from .resources import Demand


class Line:
    """Those that want the same, in order. The first and the last are never cancelled ones."""

    __slots__ = ("demand", "entries", "length")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.entries: deque[Waiting] = deque()
        self.length = 0  # without the cancelled, which stay until they come to an end

    def trim(self) -> None:
        entries = self.entries
        while entries and entries[0].line is not self:
            entries.popleft()
        while entries and entries[-1].line is not self:
            entries.pop()


class TaskQueue:
    """The lines of one device; `active` has those in which somebody waits."""

    __slots__ = ("_lines", "active", "functions", "length")

    def __init__(self) -> None:
        self._lines: dict[Demand, Line] = {}
        self.active: dict[Demand, Line] = {}
        self.functions: dict[bytes, int] = {}  # how many tasks of each wait
        self.length = 0

    def push(self, entry: Waiting, first: bool = False) -> None:
        demand = entry.want
        line = self.active.get(demand)
        if line is None:
            line = self._lines.get(demand)
            if line is None:
                line = self._lines[demand] = Line(demand)
            self.active[demand] = line
        if first:
            line.entries.appendleft(entry)
        else:
            line.entries.append(entry)
        entry.line = line
        line.length += 1
        self.length += 1
        if isinstance(entry, Submitted):
            functions = self.functions
            functions[entry.function] = functions.get(entry.function, 0) + 1

    def pop(self, line: Line) -> Waiting:
        """Takes the first of a line."""
        entry = line.entries.popleft()
        self._left(entry, line)
        if line.length != len(line.entries):
            line.trim()
        return entry

    def pop_last(self, line: Line) -> Waiting:
        """Takes the last of a line."""
        entry = line.entries.pop()
        self._left(entry, line)
        line.trim()
        return entry

    def remove(self, entry: Waiting) -> None:
        """Takes one out of the middle."""
        line = entry.line
        assert line is not None
        self._left(entry, line)
        line.trim()

    def _left(self, entry: Waiting, line: Line) -> None:
        entry.line = None
        line.length -= 1
        self.length -= 1
        if not line.length:
            del self.active[line.demand]
        if isinstance(entry, Submitted):
            functions = self.functions
            number = functions[entry.function]
            if number == 1:
                del functions[entry.function]
            else:
                functions[entry.function] = number - 1


def head_order(line: Line) -> int:
    return line.entries[0].order
