"""Declares what may follow a run, and the watch that holds it against the speed of tuning."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from gmi_drl.gmi import Gang
from gmi_drl.launcher.colocated_runs import other_at_work
from gmi_drl.launcher.view.view import RunView
from gmi_drl.placement import Config, Topology


class Watch(Protocol):
    """Follows a run; `launch` calls both methods in its thread, which they keep meanwhile.

    What either raises ends the run as a failure does, with nothing saved, and leaves `launch`. One
    that cannot wait for the GMIs to end calls `gang.kill()` before it raises.
    """

    def show(self, record: dict[str, Any]) -> None:
        """Takes in one record, in the order they come.

        Each that a GMI reported, and of mode serving the launcher's lines of metrics too.
        """

    def tick(self, gang: Gang) -> None:
        """Is called about ten times a second, from the start of the GMIs to their end."""
        return None  # so that it is not abstract


_LOOK_S: Final = 1.0  # between looks at who else is at work
_OFTEN: Final = 2  # iterations between checkpoints, at which the median iteration has one

TOLERANCE: Final = 0.25  # the share by which speed may differ from the promise
_PERIOD_S: Final = 20.0  # of training, that are judged together
_ITERATIONS: Final = 5  # in a period, at least
_PERIODS: Final = 4  # in a row that must all be off: a busy minute, at the start too, is fewer

# Takes why a run is to resize itself and settings of which each would do; says what becomes of it.
Propose: TypeAlias = Callable[[str, Sequence[str]], str]


@dataclass(frozen=True)
class Promise:
    """Holds what a record of tuning says that runs of a config do."""

    steps_per_s: float
    path: Path  # of the record
    # Makes the record stale; says why that failed, or "".
    expire: Callable[[float, str], str] = field(compare=False)
    # Lists what was measured and does more than this with so many steps/s, as overrides.
    better: Callable[[float], list[str]] = field(compare=False)


# The newest promise for a config on these devices; the folder is that of role modules.
PromiseOf = Callable[[Config, Topology, Path | None], Promise | None]


@dataclass(frozen=True)
class Drifted:
    """Describes a run that does other than promised."""

    promised: float  # environment steps a second
    steps_per_s: float  # of the iterations of the last period, their median

    def __str__(self) -> str:
        ratio = self.steps_per_s / self.promised - 1
        return (
            f"{self.steps_per_s:,.0f} steps/s, {abs(ratio):.0%} "
            f"{'less' if ratio < 0 else 'more'} than the {self.promised:,.0f} that tuning measured"
        )


class Drift:
    """Holds a run against a promise of `promised` environment steps a second. Pure.

    A run has drifted when all of these are off by more than a quarter, and to the same side: the
    median iteration of each of four periods in a row, of 20 s or more each, and all of the run so
    far. So neither a slow start nor a GMI that was started again counts, nor a busy minute,
    whether it is the first of a run or comes after hours that were fine.
    """

    def __init__(self, promised: float) -> None:
        assert promised > 0
        self._promised, self._reported = promised, False
        self._last: tuple[int, float] | None = None
        self._begin()

    def _begin(self) -> None:
        self._steps, self._seconds = 0, 0.0  # of the run
        self._speeds: list[float] = []  # of the iterations of the period
        self._period_s = 0.0
        self._streak = 0  # periods off one after the other: below zero those that were too slow

    def take(self, steps: int, time_s: float) -> Drifted | None:
        """Takes in an iteration's environment steps and training seconds, since any fixed start.

        Gives the drift once, when it is sure.
        """
        if self._reported:
            return None
        last, self._last = self._last, (steps, time_s)
        if last is None:  # the first iteration warms up, and what was before it is not known
            return None
        if steps <= last[0] or time_s <= last[1]:  # gone back to an earlier state of training
            self._begin()
            return None
        self._steps += steps - last[0]
        self._seconds += time_s - last[1]
        self._speeds.append((steps - last[0]) / (time_s - last[1]))
        self._period_s += time_s - last[1]
        if self._period_s < _PERIOD_S or len(self._speeds) < _ITERATIONS:
            return None
        speed = statistics.median(self._speeds)
        self._speeds, self._period_s = [], 0.0
        side = self._side(speed)
        self._streak = side if self._streak * side <= 0 else self._streak + side
        whole_run = self._side(self._steps / self._seconds)
        self._reported = abs(self._streak) >= _PERIODS and side == whole_run
        return Drifted(self._promised, speed) if self._reported else None

    def _side(self, speed: float) -> int:
        """Returns -1 for too slow, 1 for too fast, 0 for as promised."""
        deviation = speed / self._promised - 1
        return 0 if abs(deviation) <= TOLERANCE else (1 if deviation > 0 else -1)


def is_comparable(config: Config) -> bool:
    """Says whether a run can be as fast as tuning measured, without checkpoints and traces."""
    often = 0 < config.run.checkpoint_every <= _OFTEN
    return not often and not config.run.profile


class PromiseWatch:
    """Warns on `screen`, and makes the record stale, when a run has drifted.

    The record stays when another launch, tune or search of this user was at work meanwhile. The
    promise is looked up when the first iteration has ended, so that a run is not kept waiting for
    it. `propose` is for runs that resize themselves, to what the record has that is better than
    what the run does. Whatever goes wrong here, the run goes on.
    """

    def __init__(
        self, screen: RunView, look_up: Callable[[], Promise | None], propose: Propose | None = None
    ) -> None:
        self._screen, self._propose = screen, propose
        self._look_up: Callable[[], Promise | None] | None = look_up  # None: it was looked up
        self._promise: tuple[Promise, Drift] | None = None
        self._look_s, self._other = 0.0, ""  # when we looked last, and who was at work

    def show(self, record: dict[str, Any]) -> None:
        """Takes in a record; those that are no iteration say nothing of speed."""
        try:
            message = self._judge(record)
        except Exception as error:  # a damaged record, say: it is no reason to end a training
            self._promise = None
            message = f"what tuning promised of this run cannot be told ({error})"
        if message:
            self._screen.show({"kind": "warning", "message": message})

    def tick(self, gang: Gang) -> None:
        """Notes who else is at work, while a promise is held against this run."""
        now_s = time.monotonic()
        if self._promise is not None and not self._other and now_s - self._look_s > _LOOK_S:
            self._look_s, self._other = now_s, other_at_work()

    def _judge(self, record: dict[str, Any]) -> str:
        """Returns what is to be said after this record; "" if nothing."""
        steps, time_s = record.get("steps"), record.get("time_s")
        if record.get("kind") != "iteration":
            return ""
        if not (isinstance(steps, int) and isinstance(time_s, float)):
            return ""  # a role of the user's may report anything
        if self._look_up is not None:
            look_up, self._look_up = self._look_up, None
            if (promise := look_up()) is not None:
                self._promise = promise, Drift(promise.steps_per_s)
        if self._promise is None:
            return ""
        promise, drift = self._promise
        if (drifted := drift.take(steps, time_s)) is None:
            return ""
        if self._other:
            return f"{drifted}. The record stays: {self._other} was at work on this machine too."
        if trouble := promise.expire(drifted.steps_per_s, str(drifted)):
            return f"{drifted}. {trouble}."
        text = f"{drifted}. Its record is stale from now on: run gmi-drl tune again."
        if self._propose is None:
            return text
        if ways := promise.better(drifted.steps_per_s):
            return f"{text} {self._propose('drift', ways)}"
        return f"{text} The run stays as it is: nothing else that was measured is clearly better."
