"""Measures a candidate, or trains with one for its return, by the real launcher and roles."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.placement import Config, Topology, counted
from gmi_drl.selector.tune.candidate import Ask, Candidate, Failed, Measured
from gmi_drl.selector.tune.race import TrainingCurve

from .candidate_run import CandidateTimeout, StopRun, candidate_config, run_watched
from .estimate import Reading, SpeedEstimate, estimate

_IMPORTS: Final = timedelta(seconds=120)
_TIMEOUT: Final = CandidateTimeout()
_ENDLESS: Final = 10**15  # environment steps; a linear schedule stays where it begins
# An iteration is overdue after _OVERDUE times the longest before it, plus _LATE_S.
_OVERDUE: Final = 3.0
_LATE_S: Final = 0.3  # records are fetched ten times a second
_TRAINING: Final = -1  # the stream of the GMIs that train


class Profiler:
    """Measures candidates, one at a time: `profiler(ask)` returns Measured or Failed.

    `config` is the user's, `beside` the folder where its role modules lie. Blocks for the asked
    seconds of training at most, and for start and end, each of which has a deadline. What a
    candidate does never raises; see `run_watched`.
    """

    def __init__(
        self, config: Config, beside: Path | None = None, *, timeout: CandidateTimeout = _TIMEOUT
    ) -> None:
        self._config, self._beside, self._timeout = config, beside, timeout

    def __call__(self, ask: Ask) -> Measured | Failed:
        runtime.preloaded(_IMPORTS)  # of the first candidate: it is not to be charged for that
        one = ask.candidate
        with Meter() as meter:
            watch = ProfileWatch(ask.seconds, self._timeout, meter)
            result = run_watched(
                lambda folder: candidate_config(self._config, one, folder, total_steps=_ENDLESS),
                watch, self._beside,
            )  # fmt: skip
        if result is None:
            assert watch.answer is not None
            return watch.answer
        if isinstance(result, Failed):
            return result
        count = counted(result.iteration, "iteration")
        return Failed("crash", f"the run ended by itself after {count}")


@dataclass
class _IterationStream:
    """Iterations of GMIs that go through them together; see `Reading`."""

    readings: list[Reading] = field(default_factory=list)
    heard_s: float = 0.0  # when the last one came
    longest_s: float = 0.0  # iteration so far

    def take(self, reading: Reading) -> None:
        """Adds a reading; the time of one without new steps counts with the next."""
        if self.readings:
            last = self.readings[-1]
            if not (reading.steps > last.steps and reading.time_s > last.time_s):
                return
            if len(reading.seconds) != len(last.seconds):
                return  # of something else
            self.longest_s = max(self.longest_s, reading.time_s - last.time_s)
        self.readings.append(reading)
        self.heard_s = time.monotonic()


class ProfileWatch:
    """A `Watch` of one run. `answer` is set when it raises StopRun, and not before.

    It measures for `asked_s` seconds from the first iteration's end, or less when that is enough
    and `least_s` of them are behind the answer, which leaves a warm-up out.
    """

    def __init__(
        self, asked_s: float, timeout: CandidateTimeout, meter: Meter, least_s: float = 0.0
    ) -> None:
        self.gang: Gang | None = None
        self.answer: Measured | Failed | None = None
        self._asked_s, self._least_s, self._timeout, self._meter = asked_s, least_s, timeout, meter
        self._streams: dict[int, _IterationStream] = {}  # by gmi_id in mode serving
        self._fresh = False  # readings came since the last estimate
        self._estimate: SpeedEstimate | None = None
        self._start_s = time.monotonic()
        self._first_s: float | None = None  # when every stream had its first reading

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`: an iteration of all that train, or what one GMI has served."""
        try:
            if record.get("kind") == "served":
                stream, time_s, seconds = record["gmi_id"], record["until_s"], [record["seconds"]]
            elif record.get("kind") == "iteration":
                stream, time_s, seconds = _TRAINING, record["time_s"], record["gmi_seconds"]
            else:
                return
            phases = tuple({str(phase): float(s) for phase, s in gmi.items()} for gmi in seconds)
            reading = Reading(int(record["steps"]), float(time_s), phases)
            self._streams.setdefault(int(stream), _IterationStream()).take(reading)
        except (AttributeError, KeyError, TypeError, ValueError):
            return  # a role of the user's own, that calls something else by these names
        self._fresh = True

    def tick(self, gang: Gang) -> None:
        """See `Watch`."""
        self.gang = gang
        if gang.asked_to_stop:
            raise KeyboardInterrupt  # there is nothing to wait for
        self._meter.look(gang)
        streams, others = self._split(gang)
        if self._first_s is None and all(stream.readings for stream in streams):
            self._first_s = time.monotonic()
            self._meter.begin(gang)
        if self._fresh:
            self._fresh = False
            self._estimate = estimate([s.readings for s in streams], [s.readings for s in others])
        self.answer = self._failed(gang, streams) or self._measured(gang, streams)
        if self.answer is not None:
            gang.kill()
            raise StopRun

    def _split(self, gang: Gang) -> tuple[list[_IterationStream], list[_IterationStream]]:
        """Returns the streams whose steps count, heard of or not yet, and the others."""
        layout = gang.layout
        if layout.holding("trainer"):
            return [self._streams.get(_TRAINING, _IterationStream())], []
        simulators = {gmi.gmi_id for gmi in layout.holding("simulator")}
        others = self._streams.keys() - simulators - {_TRAINING}
        return (
            [self._streams.get(number, _IterationStream()) for number in sorted(simulators)],
            [self._streams[number] for number in sorted(others)],
        )

    def _measured(self, gang: Gang, streams: Sequence[_IterationStream]) -> Measured | None:
        """Returns the answer, if enough is measured or the time is used, and nothing is late."""
        estimated, first_s, now_s = self._estimate, self._first_s, time.monotonic()
        # A stream whose next iteration is overdue may hang.
        is_late = any(now_s - s.heard_s > _OVERDUE * s.longest_s + _LATE_S for s in streams)
        if estimated is None or first_s is None or is_late:
            return None
        enough = estimated.is_enough and estimated.seconds >= self._least_s
        if not enough and time.monotonic() - first_s < self._asked_s:
            return None
        usage = self._meter.end(gang)
        return Measured(
            **vars(estimated), host_bytes=usage.host_bytes, device_bytes=usage.devices.mem_bytes,
            memory=max(usage.host_share, usage.devices.share), cores=usage.cores,
            sm_activity=usage.devices.sm_activity,
        )  # fmt: skip

    def _failed(self, gang: Gang, streams: Sequence[_IterationStream]) -> Failed | None:
        """Says why nothing more is to be waited for."""
        heard_s = max((stream.heard_s for stream in streams), default=0.0)
        timeout, is_first = self._timeout, self._first_s is None
        if is_first:
            since_s, limit_s = self._start_s, timeout.first_s + self._asked_s
        else:
            since_s = min(stream.heard_s for stream in streams)
            limit_s, training = max(timeout.next_s, self._asked_s), self._streams.get(_TRAINING)
            # Up to twice as long where the first iteration took long and yet ended.
            first_s = training.readings[0].time_s if training and training.readings else 0.0
            limit_s = min(max(limit_s, 2 * first_s), 2 * limit_s)
        return timeout.failure(
            gang.layout, self._meter, since_s=since_s, limit_s=limit_s, heard_s=heard_s,
            is_first=is_first,
        )  # fmt: skip


_SLACK: Final = 2.0  # times the seconds of training: what its clock leaves out
_POINTS: Final = 200  # of a curve


def train_for(
    seconds: float, candidate: Candidate, config: Config, topology: Topology, beside: Path
) -> TrainingCurve | Failed:
    """Trains a candidate from its beginning, with the config's seed and schedule.

    Blocks for that long, and for start and end. One that hangs, is too slow to end its seconds, or
    takes the last memory is Failed, and no other finalist is judged by it. Needs the runtime.
    """
    with Meter() as meter:
        watch = _RaceWatch(seconds, CandidateTimeout.of(config.tune.budget_s), meter)
        result = run_watched(
            lambda folder: candidate_config(config, candidate, folder, topology), watch, beside
        )
    if isinstance(result, Failed):
        return result
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
        """Returns the curve. A run that has done all its steps keeps its return until the end."""
        every = -(-len(self._points) // _POINTS) or 1
        points = tuple(self._points[::-1][::every][::-1])  # the last one is always there
        trained_s = max(self._trained_s, self._seconds)
        return TrainingCurve(points, trained_s)
