"""Follows the run of a candidate: takes its readings, and ends it when they are enough, or late."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import Gang, usage
from gmi_drl.gmi.meter import Meter
from gmi_drl.selector.candidate import Failed, Measured, Reason
from gmi_drl.selector.estimate import Estimate, Reading, estimate

# A candidate is ended when less of the memory is left than the smaller of these: before the machine
# swaps, or the kernel chooses whom to kill.
_RESERVE: Final = 0.02
_RESERVE_BYTES: Final = 1 << 30
# An iteration is overdue when it takes so many times the longest before it, and this.
_OVERDUE: Final = 3.0
_LATE_S: Final = 0.3  # records are fetched ten times a second
_TRAINING: Final = -1  # the stream of the GMIs that train


@dataclass(frozen=True)
class Patience:
    """How long a candidate is waited for, in seconds."""

    first_s: float = 60.0  # for the first iteration, with the start and building of environments
    next_s: float = 5.0  # for each one after it, if no more is asked for
    idle_s: float = 10.0  # with no GMI doing anything


class Over(Exception):
    """Ends a run that has shown enough, or nothing."""


@dataclass
class _Stream:
    """Iterations of GMIs that go through them together; see `Reading`."""

    readings: list[Reading] = field(default_factory=list)
    heard_s: float = 0.0  # when the last one came
    longest_s: float = 0.0  # iteration so far

    def take(self, reading: Reading) -> None:
        """One that has brought nothing is no iteration: its time counts with the next."""
        if self.readings:
            last = self.readings[-1]
            if not (reading.steps > last.steps and reading.time_s > last.time_s):
                return
            if len(reading.seconds) != len(last.seconds):
                return  # of something else
            self.longest_s = max(self.longest_s, reading.time_s - last.time_s)
        self.readings.append(reading)
        self.heard_s = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether its next one should be there: it may hang."""
        return time.monotonic() - self.heard_s > _OVERDUE * self.longest_s + _LATE_S


class ProfileWatch:
    """A `Watch` of one run. `answer` is set when it raises Over, and not before.

    It measures for `asked_s` seconds from the first iteration's end, or less when that is enough.
    """

    def __init__(self, asked_s: float, patience: Patience, meter: Meter) -> None:
        self.gang: Gang | None = None
        self.answer: Measured | Failed | None = None
        self._asked_s, self._patience, self._meter = asked_s, patience, meter
        self._streams: dict[int, _Stream] = {}  # by gmi_id in mode serving
        self._fresh = False  # readings came since the last estimate
        self._estimate: Estimate | None = None
        self._start_s = time.monotonic()
        self._first_s: float | None = None  # when every stream had its first reading

    # What the launcher calls ---------------------------------------------------------------

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`: an iteration of all that train, or what one GMI has served.

        Lines of metrics that the launcher makes of the latter are heard already.
        """
        try:
            if record.get("kind") == "served":
                number, time_s, seconds = record["gmi_id"], record["until_s"], [record["seconds"]]
            elif record.get("kind") == "iteration":
                number, time_s, seconds = _TRAINING, record["time_s"], record["gmi_seconds"]
            else:
                return
            each = tuple({str(phase): float(s) for phase, s in its.items()} for its in seconds)
            reading = Reading(int(record["steps"]), float(time_s), each)
            self._streams.setdefault(int(number), _Stream()).take(reading)
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
        self.answer = self._failed(streams) or self._measured(gang, streams)
        if self.answer is not None:
            gang.kill()
            raise Over

    def let_go(self) -> None:
        """Drop the gang, and what it said at last: with that goes what the runtime keeps of it."""
        while self.gang is not None:
            try:
                self.gang.records()
                self.gang = None
            except runtime.SerializationError:  # of one record: the others are still there
                continue

    def _split(self, gang: Gang) -> tuple[list[_Stream], list[_Stream]]:
        """The streams whose steps count, heard of or not yet, and the others."""
        layout = gang.layout
        if layout.holding("trainer"):
            return [self._streams.get(_TRAINING, _Stream())], []
        counted = {gmi.gmi_id for gmi in layout.holding("simulator")}
        others = self._streams.keys() - counted - {_TRAINING}
        return (
            [self._streams.get(number, _Stream()) for number in sorted(counted)],
            [self._streams[number] for number in sorted(others)],
        )

    # Its end -------------------------------------------------------------------------------

    def _measured(self, gang: Gang, streams: Sequence[_Stream]) -> Measured | None:
        """The answer, if enough is measured or the time is used, and nothing is late."""
        found, first_s = self._estimate, self._first_s
        if found is None or first_s is None or any(stream.is_overdue for stream in streams):
            return None
        if not found.is_enough and time.monotonic() - first_s < self._asked_s:
            return None
        used = self._meter.end(gang)
        return Measured(
            found.steps_per_s,
            found.error,
            found.iterations,
            found.seconds,
            found.phases,
            used.host_bytes,
            used.devices.mem_bytes,
            max(used.host_share, used.devices.share),
            used.cores,
            used.devices.sm_activity,
        )

    def _failed(self, streams: Sequence[_Stream]) -> Failed | None:
        """Why nothing more is to be waited for."""
        memory, now_s = usage.host_memory(), time.monotonic()
        if memory.free_bytes < min(_RESERVE * memory.of_bytes, _RESERVE_BYTES):
            left, whole = memory.free_bytes / 2**30, memory.of_bytes / 2**30
            text = f"host memory: {left:.2f} GiB are left of the {whole:.1f} GiB of {memory.whose}"
            return Failed("memory", text)
        if self._first_s is None:
            what, waited_s = "the first iteration has not ended", now_s - self._start_s
            limit_s = self._patience.first_s + self._asked_s
        else:
            what, waited_s = "an iteration has not ended", now_s - min(s.heard_s for s in streams)
            limit_s = self._next_limit_s()
        heard_s = max((stream.heard_s for stream in streams), default=0.0)
        if now_s - max(self._meter.idle_since_s, heard_s) > self._patience.idle_s:
            return Failed("hang", f"{what} after {waited_s:.0f} s, and no GMI does anything")
        if waited_s <= limit_s:
            return None
        reason: Reason = "slow" if self._meter.is_busy else "hang"
        return Failed(reason, f"{what} after {waited_s:.0f} s; {_doing(self._meter.busy)}")

    def _next_limit_s(self) -> float:
        """How long an iteration after the first may take.

        Up to twice as long where the first one took long and yet ended: it shows about how long.
        """
        limit_s, training = max(self._patience.next_s, self._asked_s), self._streams.get(_TRAINING)
        first_s = training.readings[0].time_s if training and training.readings else 0.0
        return min(max(limit_s, 2 * first_s), 2 * limit_s)


def _doing(busy: Mapping[int, float]) -> str:
    """How busy each GMI is."""
    each = [f"gmi {gmi} {cores:.2f}" for gmi, cores in sorted(busy.items())]
    return f"cores in use: {', '.join(each)}" if each else "no GMI runs"
