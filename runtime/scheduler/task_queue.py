"""Queues what waits on a device: one line for each demand."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from .events import Submitted, Waiting
from .resources import Demand


@dataclass(slots=True, eq=False)
class DemandLine:
    """Holds entries of the same demand, in order."""

    demand: Demand
    entries: OrderedDict[int, Waiting] = field(default_factory=OrderedDict)  # by submission

    @property
    def head(self) -> Waiting:
        return next(iter(self.entries.values()))


class TaskQueue:
    """Holds the lines of one device; `active` has those that are not empty."""

    __slots__ = ("_lines", "active", "functions", "length")

    def __init__(self) -> None:
        self._lines: dict[Demand, DemandLine] = {}
        self.active: dict[Demand, DemandLine] = {}
        self.functions: dict[bytes, int] = {}  # waiting tasks by function
        self.length = 0

    def push(self, entry: Waiting, first: bool = False) -> None:
        demand = entry.want
        line = self.active.get(demand)
        if line is None:
            line = self._lines.get(demand)
            if line is None:
                line = self._lines[demand] = DemandLine(demand)
            self.active[demand] = line
        line.entries[entry.order] = entry
        if first:
            line.entries.move_to_end(entry.order, last=False)
        entry.line = line
        self.length += 1
        if isinstance(entry, Submitted):
            functions = self.functions
            functions[entry.function] = functions.get(entry.function, 0) + 1

    def pop(self, line: DemandLine) -> Waiting:
        """Removes and returns the first entry of a line."""
        entry = line.head
        self.take(entry)
        return entry

    def take(self, entry: Waiting) -> None:
        """Removes an entry from its line."""
        line = entry.line
        assert line is not None
        del line.entries[entry.order]
        entry.line = None
        self.length -= 1
        if not line.entries:
            del self.active[line.demand]
        if isinstance(entry, Submitted):
            functions = self.functions
            number = functions[entry.function]
            if number == 1:
                del functions[entry.function]
            else:
                functions[entry.function] = number - 1


def head_order(line: DemandLine) -> int:
    return next(iter(line.entries))
