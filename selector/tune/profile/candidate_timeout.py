"""Gives up the run of a candidate that is late, does nothing, or takes the last memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from gmi_drl.gmi.usage import processes
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.placement import Layout
from gmi_drl.selector.tune.candidate import Failed

# A candidate is ended when less of the memory is left than the smaller of these: before the machine
# swaps, or the kernel chooses whom to kill.
_RESERVE: Final = 0.02
_RESERVE_BYTES: Final = 1 << 30
_FIRST_S: Final = 60.0
_STARTS: Final = 5  # first iterations that take as long as they may, in a budget
_LEAST_S: Final = 10.0  # for a first iteration, however short the budget
_QUIET: Final = 1 / 3  # of the time that is waited: who did nothing for so long is idle


@dataclass(frozen=True)
class CandidateTimeout:
    """How long a candidate is waited for, in seconds."""

    first_s: float = _FIRST_S  # for the first iteration, with the start and building environments
    next_s: float = 5.0  # for each one after it, if no more is asked for
    idle_s: float = 10.0  # with no GMI doing anything

    @classmethod
    def of(cls, budget_s: float) -> CandidateTimeout:
        """The one of tuning for so many seconds: a longer tune waits longer to begin."""
        first_s = max(_FIRST_S, budget_s / _STARTS)
        return cls(first_s=min(first_s, max(_LEAST_S, budget_s)))


def memory_failure() -> Failed | None:
    """A failure when too little is left of the host's memory to go on."""
    memory = processes.host_memory()
    if memory.free_bytes >= min(_RESERVE * memory.of_bytes, _RESERVE_BYTES):
        return None
    left, whole = memory.free_bytes / 2**30, memory.of_bytes / 2**30
    text = f"host memory: {left:.2f} GiB are left of the {whole:.1f} GiB of {memory.whose}"
    return Failed("memory", text)


@dataclass(frozen=True)
class PendingIteration:
    """An iteration that is waited for; times are those of the monotonic clock."""

    is_first: bool
    since_s: float  # the last one's end, or the start
    limit_s: float  # how long it may take
    heard_s: float  # when any GMI reported something at last

    def failure(self, layout: Layout, meter: Meter, timeout: CandidateTimeout) -> Failed | None:
        """Hang or slow, when there is nothing more to wait for."""
        now_s = time.monotonic()
        waited_s = now_s - self.since_s
        which = "the first" if self.is_first else "an"
        what = f"{which} iteration has not ended after {waited_s:.0f} s"
        idle_s = {gmi: now_s - at_s for gmi, at_s in sorted(meter.worked_s.items())}
        all_idle_s = min([now_s - self.heard_s, *idle_s.values()])
        if idle_s and all_idle_s > timeout.idle_s:
            return Failed("hang", f"{what}, and no GMI does anything")
        if waited_s <= self.limit_s:
            return None
        if not idle_s:
            return Failed("hang", f"{what}; no GMI runs")
        used = ", ".join(f"gmi {gmi} {cores:.2f}" for gmi, cores in sorted(meter.busy.items()))
        doing = f"cores in use: {used}"
        quiet_s = min(timeout.idle_s, waited_s * _QUIET)
        if stuck := _stuck(layout, {gmi for gmi, gmi_s in idle_s.items() if gmi_s > quiet_s}):
            still = [f"gmi {gmi} has done nothing for {idle_s[gmi]:.0f} s" for gmi in stuck]
            return Failed("hang", "; ".join([what, *still, doing]))
        longer = "; a longer budget waits longer" if self.is_first else ""
        return Failed("slow", f"{what}; {doing}{longer}")


def _stuck(layout: Layout, idle: set[int]) -> list[int]:
    """Of GMIs that do nothing, those that hang; the others may be waiting for one that works.

    Where all but one do nothing, they wait for that one, and GMIs that only train or infer wait for
    those that simulate. Of two that simulate it cannot be told: the idle one is taken to hang.
    """
    if len(idle) == len(layout.gmis):
        return sorted(idle)
    simulating = {gmi.gmi_id for gmi in layout.holding("simulator")}
    still, busy = simulating & idle, simulating - idle
    return sorted(still) if busy and (len(busy) > 1 or len(still) == 1) else []
