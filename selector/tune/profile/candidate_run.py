"""Runs a candidate to measure it, and gives it up when it is late, idle, or takes the memory."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.gmi.usage import processes
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.launcher.start.launcher import RunResult, launch
from gmi_drl.launcher.watch.watch import Watch
from gmi_drl.placement import Config, Layout, Topology
from gmi_drl.selector.tune.candidate import Candidate, Failed
from gmi_drl.selector.tune.space import config_of, layout_text

from .failures import classify

# A candidate is ended when less of the memory is left than the smaller of these: before the machine
# swaps, or the kernel chooses whom to kill.
_RESERVE: Final = 0.02
_RESERVE_BYTES: Final = 1 << 30
_FIRST_S: Final = 60.0
_STARTS: Final = 5  # first iterations that take as long as they may, in a budget
_LEAST_S: Final = 10.0  # for a first iteration, however short the budget
_QUIET: Final = 1 / 3  # of the time that is waited: who did nothing for so long is idle


class StopRun(Exception):
    """A watch raises it: the run has shown enough, or will not."""


class GangWatch(Watch, Protocol):
    """A `Watch` that keeps its gang."""

    gang: Gang | None


def run_watched(
    config_in: Callable[[Path], Config], watch: GangWatch, beside: Path | None
) -> RunResult | Failed | None:
    """Launches `config_in(folder)`, in a new folder; None when the watch ended it by `StopRun`.

    Failed is what a candidate did; what is wrong with the runtime or the disk raises. Nothing is
    left.
    """
    kills = processes.oom_kills()
    with tempfile.TemporaryDirectory(
        prefix="measured-", dir=runtime.run_directory(), ignore_cleanup_errors=True
    ) as folder:
        failed: Failed | None = None
        try:
            config = config_in(Path(folder))
            result = launch(config, view="none", keep_gcs=False, watch=watch, import_path=beside)
        except StopRun:
            return None
        except Exception as error:
            layout = None if watch.gang is None else watch.gang.layout
            failed = classify(error, layout, oom_kills=processes.oom_kills() - kills)
            if failed is None:
                raise
        finally:
            _let_go(watch)
    if failed is not None:
        gc.collect()  # the error and its gang hold each other, and memory of the candidate
        return failed
    if result.state == "stopped":
        raise KeyboardInterrupt
    return result


def _let_go(watch: GangWatch) -> None:
    """Drops its gang, and what that said at last: with it goes what the runtime keeps of it."""
    while watch.gang is not None:
        try:
            watch.gang.records()
            watch.gang = None
        except runtime.SerializationError:  # of one record: the others are still there
            continue


def candidate_config(
    config: Config,
    candidate: Candidate,
    folder: Path,
    topology: Topology | None = None,
    total_steps: int | None = None,
) -> Config:
    """`config` with what a candidate has, run in `folder`, where its layout file goes too."""
    layout_file = None
    if candidate.row.percents is not None:
        layout_file = folder / "layout.yaml"
        text = layout_text(config, candidate, topology or find_devices(config))
        layout_file.write_text(text, encoding="utf-8")
    resolved = config_of(config, candidate, layout_file)
    changes = {
        "folder": str(folder), "total_steps": total_steps or config.run.total_steps,
        "eval_episodes": 0, "checkpoint_every": 0, "target_return": None, "max_restarts": 0,
        "profile": False,
    }  # fmt: skip
    return resolved.model_copy(update={"run": resolved.run.model_copy(update=changes)})


@dataclass(frozen=True)
class CandidateTimeout:
    """Says how long a candidate is waited for, in seconds."""

    first_s: float = _FIRST_S  # for the first iteration, with the start and building environments
    next_s: float = 5.0  # for each one after it, if no more is asked for
    idle_s: float = 10.0  # with no GMI doing anything

    @classmethod
    def of(cls, budget_s: float) -> CandidateTimeout:
        """Returns the one of tuning for so many seconds: a longer tune waits longer to begin."""
        first_s = max(_FIRST_S, budget_s / _STARTS)
        return cls(first_s=min(first_s, max(_LEAST_S, budget_s)))

    def failure(
        self,
        layout: Layout,
        meter: Meter,
        *,
        since_s: float,
        limit_s: float,
        heard_s: float,
        is_first: bool = False,
    ) -> Failed | None:
        """Says why an iteration is waited for no longer; times are those of the monotonic clock.

        It may take `limit_s` from `since_s`, the last one's end or the start; at `heard_s` any GMI
        reported something at last.
        """
        memory = processes.host_memory()
        if memory.free_bytes < min(_RESERVE * memory.of_bytes, _RESERVE_BYTES):
            left, whole = memory.free_bytes / 2**30, memory.of_bytes / 2**30
            text = f"host memory: {left:.2f} GiB are left of the {whole:.1f} GiB of {memory.whose}"
            return Failed("memory", text)
        now_s = time.monotonic()
        waited_s = now_s - since_s
        which = "the first" if is_first else "an"
        what = f"{which} iteration has not ended after {waited_s:.0f} s"
        idle_s = {gmi: now_s - at_s for gmi, at_s in sorted(meter.worked_s.items())}
        if idle_s and min([now_s - heard_s, *idle_s.values()]) > self.idle_s:
            return Failed("hang", f"{what}, and no GMI does anything")
        if waited_s <= limit_s:
            return None
        if not idle_s:
            return Failed("hang", f"{what}; no GMI runs")
        used = ", ".join(f"gmi {gmi} {cores:.2f}" for gmi, cores in sorted(meter.busy.items()))
        doing = f"cores in use: {used}"
        quiet_s = min(self.idle_s, waited_s * _QUIET)
        if stuck := _stuck(layout, {gmi for gmi, gmi_s in idle_s.items() if gmi_s > quiet_s}):
            still = [f"gmi {gmi} has done nothing for {idle_s[gmi]:.0f} s" for gmi in stuck]
            return Failed("hang", "; ".join([what, *still, doing]))
        longer = "; a longer budget waits longer" if is_first else ""
        return Failed("slow", f"{what}; {doing}{longer}")


def _stuck(layout: Layout, idle: set[int]) -> list[int]:
    """Picks, of GMIs that do nothing, those that hang; the others may wait for one that works.

    Where all but one do nothing, they wait for that one, and GMIs that only train or infer wait for
    those that simulate. Of two that simulate it cannot be told: the idle one is taken to hang.
    """
    if len(idle) == len(layout.gmis):
        return sorted(idle)
    simulating = {gmi.gmi_id for gmi in layout.holding("simulator")}
    still, busy = simulating & idle, simulating - idle
    return sorted(still) if busy and (len(busy) > 1 or len(still) == 1) else []
