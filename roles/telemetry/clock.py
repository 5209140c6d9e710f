"""Measures phases by the host's time, or where work is queued to a GPU, by the GPU's."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

import torch

_MOST: Final = 1024  # events that are kept; the older half is read when there are more


class Clock:
    """Sums the seconds of phases that follow one another.

    On the CPU by `perf_counter`. On a GPU work is queued and done later: the borders of phases are
    events in torch's current stream, and what lies between two of them is known when the device has
    passed both. Nothing waits before `read`, unless the device is half a thousand borders behind.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._phase = ""  # of what follows the last border; empty: none
        self._since = 0.0
        self._names: list[str] = []  # of what follows each event
        self._events: list[Any] = []  # torch.cuda.Event, used again in each round

    def begin(self, phase: str) -> None:
        """Begins `phase`, and ends what went before."""
        if self._on_gpu:
            self._mark(phase)
            return
        now = perf_counter()
        if self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def stop(self) -> None:
        """Ends the phase that goes on."""
        self.begin("")

    def clear(self) -> None:
        """Forgets all since the last `read`: what was going on was given up."""
        self._seconds, self._phase = {}, ""
        self._names.clear()

    def read(self) -> dict[str, float]:
        """Returns the seconds of each phase since the last call, after `stop`.

        On a GPU it waits until the device has come to that.
        """
        if self._names:
            self._fold(len(self._names) - 1)
        seconds = self._seconds
        self.clear()
        return seconds

    def _fold(self, count: int) -> None:
        """Adds up what lies between the first `count` + 1 events, of which the last one stays."""
        self._events[count].synchronize()
        for i, name in enumerate(self._names[:count]):
            if name:
                seconds = self._events[i].elapsed_time(self._events[i + 1]) * 1e-3
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._names = self._names[count:]
        self._events = self._events[count:] + self._events[:count]

    def _mark(self, phase: str) -> None:
        if len(self._names) == _MOST:
            self._fold(_MOST // 2)
        index = len(self._names)
        if index == len(self._events):
            # Blocking: GMIs share few cores, so none spins on one.
            event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            self._events.append(event)
        self._events[index].record()
        self._names.append(phase)


class Leash:
    """Keeps the host at most `rounds` rounds of queued work ahead of a GPU; on the CPU nothing."""

    def __init__(self, device: torch.device, rounds: int = 4) -> None:
        self._ends: list[Any] = []  # torch.cuda.Event
        self._round = 0
        if device.type == "cuda":
            self._ends = [torch.cuda.Event(blocking=True) for _ in range(rounds)]  # type: ignore[no-untyped-call]

    def end_round(self) -> None:
        """Ends a queued round, and waits for the end of the one `rounds` before it."""
        if self._ends:
            end = self._ends[self._round % len(self._ends)]
            end.synchronize()  # one that was never recorded is over
            end.record()
            self._round += 1
