"""Training with a candidate for some seconds, to see what return it comes to."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.placement import Config, Topology
from gmi_drl.selector.candidate import Candidate, Failed
from gmi_drl.selector.failures import classify
from gmi_drl.selector.race import Trained

from .launcher import launch
from .measured_run import measured_run

_FIRST_S: Final = 60.0  # for the first iteration, with the start
_SLACK: Final = 2.0  # times the seconds of training: what its clock leaves out


class Racer:
    """Trains candidates, one at a time: `racer(candidate, seconds, round)`.

    Each from its beginning, with the config's seed and schedule, by the real launcher; nothing is
    saved. Blocks for that long, and for start and end. Needs the runtime.
    """

    def __init__(self, config: Config, topology: Topology, beside: Path) -> None:
        self._config, self._topology, self._beside = config, topology, beside

    def __call__(self, candidate: Candidate, seconds: float, number: int) -> Trained | Failed:
        watch = _RaceWatch(seconds)
        with tempfile.TemporaryDirectory(
            prefix="race-", dir=runtime.run_directory(), ignore_cleanup_errors=True
        ) as folder:
            try:
                result = launch(
                    measured_run(self._config, candidate, Path(folder), self._topology),
                    view="none",
                    keep_gcs=False,
                    watch=watch,
                    beside=self._beside,
                )
            except _Over:
                return watch.trained()
            except Exception as error:
                failed = classify(error, None if watch.gang is None else watch.gang.layout)
                if failed is None:
                    raise
                return failed
            if result.state == "stopped":
                raise KeyboardInterrupt
            return watch.trained()  # all its steps are done


class _Over(Exception):
    """Ends a run that has trained for long enough."""


class _RaceWatch:
    """Follows one run and ends it."""

    def __init__(self, seconds: float) -> None:
        self.gang: Gang | None = None
        self._seconds, self._trained_s = seconds, 0.0
        self._points: list[tuple[float, float]] = []
        self._until_s = time.monotonic() + _FIRST_S + _SLACK * seconds

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`."""
        at_s, value = record.get("time_s"), record.get("return_mean")
        if record.get("kind") != "iteration" or not isinstance(at_s, (int, float)):
            return
        self._trained_s = float(at_s)
        if isinstance(value, (int, float)):
            self._points.append((float(at_s), float(value)))

    def tick(self, gang: Gang) -> None:
        """See `Watch`."""
        self.gang = gang
        if gang.asked_to_stop:
            raise KeyboardInterrupt  # there is nothing to wait for
        if self._trained_s >= self._seconds or time.monotonic() >= self._until_s:
            gang.kill()
            raise _Over

    def trained(self) -> Trained | Failed:
        """What was seen; a failure if not even one iteration ended."""
        if not self._trained_s:
            return Failed("slow", f"no iteration ended in {_FIRST_S:.0f} s")
        return Trained(tuple(_thinned(self._points)), self._trained_s)


def _thinned(points: list[tuple[float, float]], most: int = 200) -> list[tuple[float, float]]:
    """As many as a curve needs, the last one among them."""
    step = -(-len(points) // most) or 1
    return points[::-1][::step][::-1]
