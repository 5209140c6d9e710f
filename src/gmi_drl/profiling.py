"""One candidate measured: all its GMIs together, by the real launcher and the real roles.

The caller keeps a runtime warm (`runtime.init(PRELOAD)`, once), so that a candidate costs processes
and work, and no import of torch. A run that is measured is killed when it has shown enough: it
saves nothing, and its folder lies in the runtime's own and goes at once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import Gang, usage
from gmi_drl.gmi.meter import Meter, Used
from gmi_drl.placement import Config
from gmi_drl.selector.candidate import Ask, Candidate, Failed, Measured, Reason
from gmi_drl.selector.estimate import Estimate, Reading, estimate
from gmi_drl.selector.failures import classify
from gmi_drl.selector.space import config_of, layout_text

from .launcher import launch
from .planning import find_devices

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

_ENDLESS: Final = 10**15  # environment steps; a linear schedule stays where it begins
# Memory that is left, of all there is, at which a candidate is ended: before the machine swaps, or
# the kernel chooses whom to kill.
_RESERVE: Final = 0.02
# An iteration is overdue when it takes so many times the longest before it, and this.
_OVERDUE: Final = 3.0
_LATE_S: Final = 0.3  # records are fetched ten times a second
_TRAINING: Final = -1  # the stream of the GMIs that train


@dataclass(frozen=True)
class Patience:
    """How long a candidate is waited for, in seconds; see `Profiler`."""

    first_s: float = 60.0  # for the first iteration, with the start and building of environments
    next_s: float = 5.0  # for each one after it, if no more is asked for
    idle_s: float = 10.0  # with no GMI doing anything


class Profiler:
    """Measures candidates, one at a time: `profiler(ask)` returns Measured or Failed.

    `config` is the user's, `beside` the folder where its role modules lie, `roles` classes in place
    of the config's. Blocks for the asked seconds of training at most, and for start and end, each
    of which has a deadline: nothing of a candidate keeps the caller. What a candidate does never
    raises; KeyboardInterrupt does, when everything is ended, and what is wrong with the runtime or
    the disk. Afterwards no process, file or memory of the candidate is left.
    """

    def __init__(
        self,
        config: Config,
        beside: Path | None = None,
        *,
        roles: Mapping[str, type[DRL_role]] | None = None,
        patience: Patience = Patience(),
    ) -> None:
        self._config, self._beside, self._roles = config, beside, roles
        self._patience = patience

    def _config_of(self, candidate: Candidate, folder: Path) -> Config:
        layout_file = None
        if candidate.row.percents is not None:
            layout_file = folder / "layout.yaml"
            text = layout_text(self._config, candidate, find_devices(self._config))
            layout_file.write_text(text, encoding="utf-8")
        return _endless(config_of(self._config, candidate, layout_file), folder)

    def __call__(self, ask: Ask) -> Measured | Failed:
        kills = usage.oom_kills()
        with (
            tempfile.TemporaryDirectory(
                prefix="profile-", dir=runtime.run_directory(), ignore_cleanup_errors=True
            ) as folder,
            Meter() as meter,
        ):
            watch = _ProfileWatch(ask.seconds, self._patience, meter)
            try:
                result = launch(
                    self._config_of(ask.candidate, Path(folder)),
                    roles=self._roles,
                    view="none",
                    keep_gcs=False,
                    watch=watch,
                    beside=self._beside,
                )
            except _Over:
                assert watch.answer is not None
                return watch.answer
            except Exception as error:
                layout = None if watch.gang is None else watch.gang.layout
                failed = classify(error, layout, oom_kills=usage.oom_kills() - kills)
                if failed is None:
                    raise
                return failed
        if result.state == "stopped":
            raise KeyboardInterrupt
        return Failed("crash", f"the run ended by itself after {result.iteration} iterations")


def _endless(config: Config, folder: Path) -> Config:
    """The same without an end and without what a measurement needs no result of."""
    changes = {
        "folder": str(folder),
        "total_steps": _ENDLESS,
        "eval_episodes": 0,
        "checkpoint_every": 0,
        "target_return": None,
        "max_restarts": 0,
    }
    return config.model_copy(update={"run": config.run.model_copy(update=changes)})


class _Over(Exception):
    """Ends a run that has shown enough, or nothing."""


class _ProfileWatch:
    """Follows one run: takes its readings, and ends it. `answer` is set when it raises _Over."""

    def __init__(self, asked_s: float, patience: Patience, meter: Meter) -> None:
        self.gang: Gang | None = None
        self.answer: Measured | Failed | None = None
        self._asked_s, self._patience = asked_s, patience
        self._streams: dict[int, list[Reading]] = {}  # by gmi_id in mode serving
        self._estimate: Estimate | None = None
        self._fresh = False  # readings came since the last estimate
        self._longest_s = 0.0  # iteration so far
        self._start_s = self._heard_s = time.monotonic()
        self._first_s: float | None = None  # when every stream had its first reading
        self._meter = meter
        self._used: Used | None = None

    # What the launcher calls ---------------------------------------------------------------

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`: an iteration of all that train, or what one GMI has served.

        Lines of metrics that the launcher makes of the latter are heard already.
        """
        try:
            if record.get("kind") == "served":
                seconds = [record["seconds"]]
                self._take(int(record["gmi_id"]), record["steps"], record["until_s"], seconds)
            elif record.get("kind") == "iteration":
                seconds = record["gmi_seconds"]
                self._take(_TRAINING, record["steps"], record["time_s"], seconds)
        except (KeyError, TypeError, ValueError):
            return  # a role of the user's own, that calls something else by these names

    def tick(self, gang: Gang) -> None:
        """See `Watch`."""
        self.gang = gang
        if gang.asked_to_stop:
            raise KeyboardInterrupt  # there is nothing to wait for
        self._meter.look(gang)
        streams, others = self._split(gang)
        if self._first_s is None and streams and all(streams):
            self._first_s = self._heard_s
            self._meter.begin(gang)
        if self._fresh:
            self._fresh = False
            self._estimate = estimate(streams, others)
        failed = self._failed()
        if failed is None and not self._is_over():
            return
        self._used = self._meter.end(gang)
        self.answer = failed or self.measured()
        gang.kill()
        raise _Over

    # Readings ------------------------------------------------------------------------------

    def _take(
        self, stream: int, steps: int, time_s: float, seconds: Sequence[Mapping[str, float]]
    ) -> None:
        reading = Reading(int(steps), float(time_s), tuple(map(dict, seconds)))
        readings = self._streams.setdefault(stream, [])
        if readings:
            self._longest_s = max(self._longest_s, reading.time_s - readings[-1].time_s)
        readings.append(reading)
        self._fresh, self._heard_s = True, time.monotonic()

    def _split(self, gang: Gang) -> tuple[list[list[Reading]], list[list[Reading]]]:
        """The streams whose steps count, and the others."""
        layout = gang.layout
        if layout.holding("trainer"):
            return [self._streams.get(_TRAINING, [])], []
        simulating = {gmi.gmi_id for gmi in layout.holding("simulator")}
        return (
            [self._streams.get(gmi_id, []) for gmi_id in sorted(simulating)],
            [its for gmi_id, its in self._streams.items() if gmi_id not in simulating],
        )

    # Its end -------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Whether enough is measured, or all the time is used."""
        if self._estimate is None or self._first_s is None:
            return False
        now_s = time.monotonic()
        if now_s - self._heard_s > _OVERDUE * self._longest_s + _LATE_S:
            return False  # it may hang: what it did until then is no measure of it
        return self._estimate.is_enough or now_s - self._first_s >= self._asked_s

    def _failed(self) -> Failed | None:
        """Why nothing more is to be waited for."""
        now_s = time.monotonic()
        memory = usage.host_memory()
        if memory.free_bytes < _RESERVE * memory.of_bytes:
            left, total = memory.free_bytes / 2**30, memory.of_bytes / 2**30
            return Failed("memory", f"host memory: {left:.2f} of {total:.1f} GiB are left")
        if self._first_s is None:
            limit_s = self._patience.first_s + self._asked_s
            what, waited_s = "the first iteration has not ended", now_s - self._start_s
        else:
            limit_s = max(self._patience.next_s, self._asked_s)
            what, waited_s = "an iteration has not ended", now_s - self._heard_s
        idle_s = now_s - max(self._meter.idle_since_s, self._heard_s)
        if idle_s > self._patience.idle_s:
            return Failed("hang", f"{what} after {waited_s:.0f} s, and no GMI does anything")
        if waited_s <= limit_s:
            return None
        reason: Reason = "slow" if self._meter.is_busy else "hang"
        return Failed(reason, f"{what} after {waited_s:.0f} s; {self._doing()}")

    def _doing(self) -> str:
        """How busy each GMI is."""
        each = [f"gmi {gmi} {cores:.2f}" for gmi, cores in sorted(self._meter.busy.items())]
        return f"cores in use: {', '.join(each)}" if each else "no GMI runs"

    def measured(self) -> Measured | None:
        """What the run has shown; None if that is not even one iteration after the first."""
        found, used = self._estimate, self._used
        if found is None or used is None or not found.steps_per_s:
            return None
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
