"""Puts together what each GMI of mode serving says that it did."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gmi_drl.placement import Layout

_WINDOW: Final = 100  # episodes a reported return is the mean of
_EVERY_S: Final = 1.0
_KEYS: Final = {
    "gmi_id", "steps", "began_s", "until_s", "seconds", "episodes", "return_sum", "length_sum"
}  # fmt: skip


class ServingMetrics:
    """Merges the records of serving GMIs, and writes a line of metrics every second or so.

    No training, so nobody meets: GMIs tell the launcher, which alone knows of all.
    """

    def __init__(
        self, layout: Layout, folder: Path, held: Callable[[], dict[str, list[int]]] = dict
    ) -> None:
        self._layout, self._path = layout, folder / "metrics.jsonl"
        self._held = held  # what each GMI has of its device; see `memory_peaks.memory_held`
        self._simulators = [gmi.gmi_id for gmi in layout.holding("simulator")]
        self._steps: dict[int, int] = {}
        self._began_s, self._until_s = float("inf"), 0.0  # over all GMIs and their processes
        self._seconds: list[dict[str, float]] = [{} for _ in layout.gmis]
        self._episodes: deque[tuple[int, float, float]] = deque()
        self._ended, self._written = 0, 0
        self._before = (0, 0.0)  # steps and seconds at the last line
        self._due_s = time.monotonic() + _EVERY_S

    def take(self, record: Any) -> dict[str, Any] | None:
        """Takes in a GMI's record; returns what to show once a second, else None."""
        if not (isinstance(record, dict) and record.get("kind") == "served"):
            return None
        if not record.keys() >= _KEYS:
            return None
        gmi_id = record["gmi_id"]
        self._steps[gmi_id] = record["steps"]
        self._began_s = min(self._began_s, record["began_s"])
        self._until_s = max(self._until_s, record["until_s"])
        seconds_of = self._seconds[gmi_id]
        for phase, seconds in record["seconds"].items():
            seconds_of[phase] = seconds_of.get(phase, 0.0) + seconds
        if record["episodes"]:
            row = (record["episodes"], record["return_sum"], record["length_sum"])
            self._episodes.append(row)
            self._ended += record["episodes"]
        while sum(row[0] for row in list(self._episodes)[1:]) >= _WINDOW:
            self._episodes.popleft()
        return self.line() if time.monotonic() >= self._due_s else None

    def line(self) -> dict[str, Any] | None:
        """Makes the next line of metrics, written down too; None if nothing has come since."""
        steps = sum(self._steps.get(gmi_id, 0) for gmi_id in self._simulators)
        if steps <= self._before[0]:
            return None
        time_s = self._until_s - self._began_s
        since = (steps - self._before[0], max(time_s - self._before[1], 1e-9))
        self._before, self._due_s = (steps, time_s), time.monotonic() + _EVERY_S
        self._written += 1
        phases = {phase for seconds in self._seconds for phase in seconds}
        means = {
            f"{phase}_s": _mean([seconds[phase] for seconds in self._seconds if phase in seconds])
            for phase in sorted(phases)
        }
        count = sum(row[0] for row in self._episodes)
        metrics: dict[str, Any] = {
            "iteration": self._written,
            "steps": steps,
            "time_s": time_s,
            "steps_per_s": since[0] / since[1],
            "return_mean": sum(row[1] for row in self._episodes) / count if count else None,
            "length_mean": sum(row[2] for row in self._episodes) / count if count else None,
            "episodes": self._ended,
            **means,
        }
        figures = self._held()
        if peaks := figures.get("mem_peak_bytes", []):
            metrics["mem_peak_bytes"] = max(peaks)
        self._ended = 0
        record = {"kind": "iteration", **metrics, "gmi_seconds": self._seconds}
        record["gmi_mem_peak_bytes"] = peaks
        record["gmi_sm_count"] = figures.get("sm_count", [])
        self._seconds = [{} for _ in self._layout.gmis]
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(metrics) + "\n")
        except OSError:  # a full disk: serving is worth more than its log
            pass
        return record


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
