"""What a gang uses while it runs: memory, cores, and what its GPUs are doing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from . import processes
from .devices import DeviceMeter, DeviceUsage

if TYPE_CHECKING:
    from gmi_drl.gmi.gang import Gang

_LOOK_S: Final = 1.0  # between looks at the processor time; it counts in hundredths of a second


@dataclass(frozen=True)
class GangUsage:
    """What was used, of all GMIs together."""

    host_bytes: int  # at most; what they share counted once
    host_share: float  # of what they may have of the host's memory, at most: it, and what is free
    cores: float  # that were busy, mean since `begin`
    devices: DeviceUsage


class Meter:
    """Measures a gang from outside. Make it before the gang, as a context manager.

    Call `look` some ten times a second; it returns at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._host_bytes, self._host_share = 0, 0.0
        self._pids: set[int] = set()
        self._looked_s = clock()
        self._spent: dict[int, float] = {}  # seconds of processor time at the last look, by gmi_id
        self._began: tuple[float, float] | None = None  # clock and processor time
        self._cores = 0.0
        self.busy: Mapping[int, float] = {}  # cores between the last two looks, by gmi_id
        # The last look that saw it at work, or its first, by gmi_id of those that run.
        self.worked_s: Mapping[int, float] = {}
        self._devices = DeviceMeter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._devices.close()

    def look(self, gang: Gang) -> None:
        """Take a look; once a second at the processor time too."""
        pids = _pids(gang)
        if new := set(pids.values()) - self._pids:
            # What it has started so far with it; what comes later inherits it.
            processes.offer_to_oom_killer(processes.with_children(new))
            self._pids |= new
        self._devices.look(gang.layout, pids)
        now_s = self._clock()
        if now_s - self._looked_s < _LOOK_S:
            return
        spent = {gmi: processes.cpu_s(processes.with_children([pid])) for gmi, pid in pids.items()}
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        self.busy = {
            gmi: max(0.0, seconds - self._spent.get(gmi, 0.0)) / elapsed_s
            for gmi, seconds in spent.items()
        }
        self._spent = spent
        self.worked_s = {
            gmi: now_s if cores > processes.IDLE_CORES else self.worked_s.get(gmi, now_s)
            for gmi, cores in self.busy.items()
        }

    def begin(self, gang: Gang) -> None:
        """What is used from now on counts; the memory that is held now does."""
        pids = set(_pids(gang).values())
        self._began = self._clock(), processes.cpu_s(processes.with_children(pids))
        self._weigh(pids)
        self._devices.begin()

    def end(self, gang: Gang) -> GangUsage:
        """What was used since `begin`; the processes must still be there."""
        pids = set(_pids(gang).values())
        if self._began is not None:
            began_s, spent_s = self._began
            elapsed_s = max(self._clock() - began_s, 1e-9)
            spent_s = processes.cpu_s(processes.with_children(pids)) - spent_s
            self._cores = max(0.0, spent_s) / elapsed_s
        self._weigh(pids)
        return GangUsage(self._host_bytes, self._host_share, self._cores, self._devices.end())

    def _weigh(self, pids: set[int]) -> None:
        everyone = processes.with_children(pids)
        held = processes.memory_bytes(everyone, processes.parents(pids))
        self._host_bytes = max(self._host_bytes, held)
        share = held / max(1, held + processes.host_memory().free_bytes)
        self._host_share = max(self._host_share, share)


def _pids(gang: Gang) -> dict[int, int]:
    """The process of each GMI that runs, by gmi_id; GMIs that are threads have the same."""
    return {
        one.gmi_id: one.pid
        for one in gang.state()
        if one.state == "running" and one.pid is not None
    }
