"""Trains with a candidate for some seconds, to see what return it comes to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from gmi_drl.gmi import Gang
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.placement import Config, Topology
from gmi_drl.selector.tune.candidate import Candidate, Failed
from gmi_drl.selector.tune.race import TrainingCurve

from .candidate_run import CandidateTimeout, StopRun, candidate_config, run_watched

_OVERDUE: Final = 3.0  # times the longest iteration so far: the next one may take as long
_SLACK: Final = 2.0  # times the seconds of training: what its clock leaves out
_POINTS: Final = 200  # of a curve


class RaceTrainer:
    """Trains candidates, one at a time: `racer(candidate, seconds, round)`.

    Each from its beginning, with the config's seed and schedule, by the real launcher. Blocks for
    that long, and for start and end. One that hangs, is too slow to end its seconds, or takes the
    last memory is Failed, and no other finalist is judged by it. Needs the runtime.
    """

    def __init__(self, config: Config, topology: Topology, beside: Path) -> None:
        self._config, self._topology, self._beside = config, topology, beside

    def __call__(self, candidate: Candidate, seconds: float, number: int) -> TrainingCurve | Failed:
        with Meter() as meter:
            watch = _RaceWatch(seconds, CandidateTimeout.of(self._config.tune.budget_s), meter)
            ended = run_watched(
                lambda folder: candidate_config(self._config, candidate, folder, self._topology),
                watch, self._beside,
            )  # fmt: skip
        if isinstance(ended, Failed):
            return ended
        return watch.failed or watch.trained()  # if it ended by itself, all its steps are done


class _RaceWatch:
    """Follows one run and ends it; `failed` says why it was given up, if it was."""

    def __init__(self, seconds: float, timeout: CandidateTimeout, meter: Meter) -> None:
        self.gang: Gang | None = None
        self.failed: Failed | None = None
        self._seconds, self._timeout, self._meter = seconds, timeout, meter
        self._points: list[tuple[float, float]] = []
        self._trained_s, self._longest_s = 0.0, 0.0
        self._heard_s = time.monotonic()  # or the start
        self._first_s: float | None = None  # when the first iteration had ended

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`."""
        at_s, value = record.get("time_s"), record.get("return_mean")
        if record.get("kind") != "iteration" or not isinstance(at_s, (int, float)):
            return
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        self._longest_s = max(self._longest_s, float(at_s) - self._trained_s)
        self._trained_s, self._heard_s = float(at_s), now_s
        if isinstance(value, (int, float)):
            self._points.append((float(at_s), float(value)))

    def tick(self, gang: Gang) -> None:
        """See `Watch`."""
        self.gang = gang
        if gang.asked_to_stop:
            raise KeyboardInterrupt  # there is nothing to wait for
        self._meter.look(gang)
        if self._trained_s < self._seconds:
            self.failed = self._failure(gang)
        if self._trained_s >= self._seconds or self.failed is not None:
            gang.kill()
            raise StopRun

    def _failure(self, gang: Gang) -> Failed | None:
        """Says why nothing more is to be waited for."""
        timeout, first_s = self._timeout, self._first_s
        limit_s, heard_s = timeout.first_s, 0.0
        if first_s is not None:
            limit_s, heard_s = max(timeout.next_s, _OVERDUE * self._longest_s), self._heard_s
        failed = timeout.failure(
            gang.layout, self._meter, since_s=self._heard_s, limit_s=limit_s, heard_s=heard_s,
            is_first=first_s is None,
        )  # fmt: skip
        took_s = 0.0 if first_s is None else time.monotonic() - first_s
        if failed or took_s <= _SLACK * self._seconds + timeout.next_s:
            return failed
        text = f"{self._trained_s:.1f} of {self._seconds:.1f} s of training after {took_s:.0f} s"
        return Failed("slow", text)

    def trained(self) -> TrainingCurve:
        """Returns what was seen. One that has done all its steps keeps its return until the end."""
        every = -(-len(self._points) // _POINTS) or 1
        points = tuple(self._points[::-1][::every][::-1])  # the last one is always there
        return TrainingCurve(points, max(self._trained_s, self._seconds))
