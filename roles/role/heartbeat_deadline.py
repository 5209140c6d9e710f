"""Limits how long a GMI of template tdg_ex waits for another, from its last sign of life.

A GMI shows one when its process begins, an agent when it begins to follow an order, a trainer each
time it has met the others, also while it waits for its agents. So what takes long one after the
other (building environments, a horizon, a death and all of it again) has a deadline each, and one
that hangs shows nothing. Heartbeats are counted in the tally, which outlives processes.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from time import perf_counter
from typing import Protocol

from gmi_drl.comm.shm.tally import Tally


class Heartbeats(Protocol):
    """The heartbeats of other GMIs."""

    def __call__(self, gmi_id: int) -> int:
        """A number that changes with each one of that GMI; never waits."""


def heartbeats_in(tally: Tally) -> Heartbeats:
    """Returns the number of a GMI's processes and of what `send_heartbeat` has counted."""
    return lambda gmi_id: tally[gmi_id, "lives"] + tally[gmi_id, "begun"]


def send_heartbeat(tally: Tally, gmi_id: int) -> None:
    """Count a heartbeat of this GMI."""
    tally[gmi_id, "begun"] += 1


class HeartbeatDeadline:
    """One wait for several GMIs, each of which has `timeout` from now, and from its last sign."""

    def __init__(self, timeout: timedelta, heartbeats: Heartbeats) -> None:
        self._timeout_s, self._heartbeats = timeout.total_seconds(), heartbeats
        self._seen: dict[int, int] = {}
        self._deadline_s: dict[int, float] = {}

    def first(self, gmi_ids: Collection[int]) -> tuple[int, float]:
        """Returns who of them is given up first, and in how many seconds; 0 or less: now."""
        now_s = perf_counter()
        for gmi_id in gmi_ids:
            if (sign := self._heartbeats(gmi_id)) != self._seen.get(gmi_id):
                self._seen[gmi_id] = sign
                self._deadline_s[gmi_id] = now_s + self._timeout_s
        gmi_id = min(gmi_ids, key=self._deadline_s.__getitem__)
        return gmi_id, self._deadline_s[gmi_id] - now_s
