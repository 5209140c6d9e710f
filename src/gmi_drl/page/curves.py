"""Reads metrics.jsonl as it grows, into curves of a bounded number of points."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from gmi_drl.launcher.folder.run_folder import METRICS

from .safe_files import OutsideFolder, open_inside, signature

MOST_POINTS: Final = 2000  # of a curve
RECENT: Final = 60  # iterations whose time is shown GMI by GMI
_AXES: Final = ("iteration", "steps", "time_s")  # of a point that stands for several: the last
_MOST_KEYS: Final = 64
_MOST_NAME: Final = 64  # characters of a key
_MOST_GMIS: Final = 256
_MOST_PHASES: Final = 12
_SLICE_BYTES: Final = 4 * 2**20  # that are read at once: a long file is shown as it is read
_LONGEST_LINE: Final = 2**20
_CHUNK: Final = 256 * 1024
_FEW: Final = 20  # points, or iterations, that speed and use are told by

Column = list[float | None]


@dataclass(frozen=True)
class Cursor:
    """Says what a viewer has been given; `generation` changes when points were merged or begun."""

    generation: int = -1
    points: int = 0
    recent: int = 0


class MetricsReader:
    """Follows the metrics of one run. A point is an iteration, or the mean of `stride` of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bytes_read = 0  # since this reader was made
        self._inode: int | None = None
        self.generation = 0
        self._begin()

    def _begin(self) -> None:
        self.generation += 1
        self._offset = 0
        self._torn = b""  # a line whose end has not been read
        self._skips = False  # the line is too long, and its rest is left out
        self.damaged = 0
        self.last: dict[str, Any] = {}  # the last line, as it is
        self.stride = 1
        self._columns: dict[str, Column] = {}
        self._points = 0
        self._open: dict[str, tuple[float, int]] = {}  # sums and counts of the point that grows
        self._open_lines = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._num_recent = 0  # that there ever were

    @property
    def points(self) -> int:
        """Counts the points of a curve, the one that grows among them."""
        return self._points + bool(self._open_lines)

    @property
    def unread_bytes(self) -> int:
        """Counts the bytes of the file that are not read yet."""
        current = signature(self._folder, METRICS)
        return 0 if current is None else max(0, current[1] - self._offset)

    def poll(self) -> bool:
        """Reads on, a few MiB at most; tells whether anything was there."""
        try:
            current = signature(self._folder, METRICS)
            if current is None or (current[0] == self._inode and current[1] == self._offset):
                return False
            with open_inside(self._folder, METRICS) as file:
                return self._read_on(file, *current[:2])
        except OutsideFolder:
            raise
        except OSError:  # it was replaced just now: the next look finds the new one
            return False

    def _read_on(self, file: BinaryIO, inode: int, size: int) -> bool:
        changed = False
        if inode != self._inode or size < self._offset:  # a resume has written it anew
            changed, self._inode = self._inode is not None, inode
            self._begin()
        file.seek(self._offset)
        until = self._offset + _SLICE_BYTES
        while self._offset < until and (chunk := file.read(_CHUNK)):
            self._offset += len(chunk)
            self.bytes_read += len(chunk)
            *lines, rest = (self._torn + chunk).split(b"\n")
            for line in lines:
                if self._skips:
                    self._skips = False
                else:
                    self._take(line)
            self._torn, changed = rest, True
            if len(rest) > _LONGEST_LINE or self._skips:
                self.damaged += not self._skips
                self._torn, self._skips = b"", True
        return changed

    def _take(self, line: bytes) -> None:
        try:
            metrics = json.loads(line)
        except (ValueError, RecursionError):
            metrics = None
        if not isinstance(metrics, dict):
            self.damaged += bool(line.strip())
            return
        self.last = metrics
        if seconds := seconds_of(metrics.get("gmi_seconds")):
            iteration = number_of(metrics.get("iteration"))
            self._recent.append({"iteration": iteration, "gmis": seconds})
            self._num_recent += 1
        for key, value in metrics.items():
            number = number_of(value)
            if number is None or len(key) > _MOST_NAME:
                continue
            total, count = self._open.get(key, (0.0, 0))
            if key in _AXES:
                self._open[key] = number, 1
            elif key in self._columns or len(self._columns | self._open) < _MOST_KEYS:
                self._open[key] = total + number, count + 1
        self._open_lines += 1
        if self._open_lines >= self.stride:
            self._close_point()

    def _close_point(self) -> None:
        point = self._open_point()
        for key in point.keys() - self._columns.keys():
            self._columns[key] = [None] * self._points
        for key, column in self._columns.items():
            column.append(point.get(key))
        self._points += 1
        self._open, self._open_lines = {}, 0
        if self._points >= MOST_POINTS:
            self._merge()

    def _open_point(self) -> dict[str, float]:
        return {key: total / count for key, (total, count) in self._open.items()}

    def _merge(self) -> None:
        """Merges each two points into one."""
        for key, column in self._columns.items():
            pairs = zip(column[::2], column[1::2], strict=True)
            merge = _later if key in _AXES else _mean
            self._columns[key] = [merge(*pair) for pair in pairs]
        self._points //= 2
        self.stride *= 2
        self.generation += 1

    def since(self, cursor: Cursor) -> tuple[dict[str, Any], Cursor]:
        """Returns what a viewer with this cursor lacks, as JSON's types, and its next cursor."""
        start = cursor if cursor.generation == self.generation else Cursor(self.generation)
        columns = {key: column[start.points :] for key, column in self._columns.items()}
        if self._open_lines:
            point = self._open_point()
            for key in point.keys() | columns.keys():
                values = columns.setdefault(key, [None] * (self._points - start.points))
                values.append(point.get(key))
        count = min(self._num_recent - start.recent, len(self._recent))
        recent = islice(self._recent, len(self._recent) - count, None)
        change = {
            "generation": self.generation,
            "stride": self.stride,
            "from": start.points,
            "columns": {key: list(map(_shortened, column)) for key, column in columns.items()},
            "recent": list(recent),
        }
        return change, Cursor(self.generation, self._points, self._num_recent)

    def recent_seconds(self) -> list[dict[str, float]]:
        """Returns the seconds of each phase of each GMI in the last iterations, together."""
        sums: list[dict[str, float]] = []
        for row in islice(reversed(self._recent), _FEW):
            sums += [{} for _ in row["gmis"][len(sums) :]]
            for total, phases in zip(sums, row["gmis"], strict=False):
                for name, seconds in phases.items():
                    total[name] = total.get(name, 0.0) + seconds
        return sums

    @property
    def steps_per_s(self) -> float | None:
        """Returns the speed of the last iterations; None where it is not known."""
        return self._rate("steps", "time_s")

    @property
    def seconds_per_iteration(self) -> float | None:
        """Returns how long the last iterations took; None where it is not known."""
        return self._rate("time_s", "iteration")

    def _rate(self, of: str, by: str) -> float | None:
        """Returns how much `of` rose over the last points while `by` rose by one."""
        rises = []
        for key in (of, by):
            column = self._columns.get(key, [])[-_FEW:]
            first, last = (column[0], column[-1]) if column else (None, None)
            if first is None or last is None:
                return None
            rises.append(last - first)
        return rises[0] / rises[1] if rises[1] > 0 else None


def number_of(value: Any) -> float | None:
    """Returns a number of a stranger's JSON as it is; None if it is none, or beyond all use."""
    if type(value) in (int, float) and abs(value) < 2**63:  # a NaN is less than nothing
        return float(value) if type(value) is float else int(value)
    return None


def seconds_of(value: Any) -> list[dict[str, float]]:
    """Returns the seconds of each phase of each GMI; [] where a line does not have them."""
    if not isinstance(value, list) or not all(isinstance(phases, dict) for phases in value):
        return []
    return [
        {
            name: seconds
            for name, seconds in islice(phases.items(), _MOST_PHASES)
            if len(name) <= _MOST_NAME and type(seconds) in (int, float) and 0 <= seconds < 1e9
        }
        for phases in value[:_MOST_GMIS]
    ]


def _later(one: float | None, other: float | None) -> float | None:
    return one if other is None else other


def _mean(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return one / 2 + other / 2


def _shortened(value: float | None) -> float | None:
    if value is None or type(value) is int:
        return value
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.6g}")
