"""Waits for GMIs as long as they show signs of life, and until all are set up.

Making environments takes seconds in one GMI and a minute in another that compiles. So at the start
nobody waits for another by `comm.timeout_s`: each GMI notes in the tally that it is done, and waits
for all. What it notes is the number of its process: one that takes a dead one's place is not set up
until it has noted its own, and GMIs that have met its loss wait for it in the same way. No GMI
waits for another while it sets up, so that nobody waits in a circle. The launcher finds out which
GMIs are dead for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gmi_drl.placement import Layout
from gmi_drl.roles.errors import SetUpTimeout
from gmi_drl.runtime.process.progress import waiting

if TYPE_CHECKING:
    from gmi_drl.comm.shm.tally import Tally

Heartbeats = Callable[[int], int]  # a number that changes with each sign of life of a GMI

_PATIENCE: Final = timedelta(minutes=15)  # with each process of a GMI
_LOOK_S: Final = 0.02


def is_set_up(tally: Tally, gmi_id: int) -> bool:
    """Tells whether the present process of a GMI has said that it is set up."""
    return tally[gmi_id, "set_up"] == tally[gmi_id, "lives"] + 1


def say(tally: Tally, gmi_id: int) -> None:
    """Says that this GMI is set up."""
    tally[gmi_id, "set_up"] = tally[gmi_id, "lives"] + 1


def take_back(tally: Tally, gmi_id: int) -> None:
    """Says that this GMI makes something again that may take long."""
    tally[gmi_id, "set_up"] = 0


def wait_for_all(
    tally: Tally,
    gmi_ids: Sequence[int],
    timeout: timedelta = _PATIENCE,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Returns when all of `gmi_ids` are set up; SetUpTimeout names one that is not in time.

    Each has `timeout` from now, and from the beginning of each process that takes its place. The
    wait also ends when `stop` says True.
    """
    deadline = HeartbeatDeadline(timeout, heartbeats_in(tally))
    with waiting:
        while late := [gmi_id for gmi_id in gmi_ids if not is_set_up(tally, gmi_id)]:
            if stop():
                return
            gmi_id, left_s = deadline.first(late)
            if left_s <= 0:
                raise SetUpTimeout(gmi_id, timeout.total_seconds())
            time.sleep(min(_LOOK_S, left_s))


class Start:
    """Tells the launcher whether the GMIs of a layout have all been set up."""

    def __init__(self, tally: Tally, layout: Layout) -> None:
        self._tally, self._layout, self._over = tally, layout, False

    def look(self) -> bool:
        """Tells whether they have been at this call or at one before; never waits."""
        gmis = self._layout.gmis
        self._over = self._over or all(is_set_up(self._tally, gmi.gmi_id) for gmi in gmis)
        return self._over


def heartbeats_in(tally: Tally) -> Heartbeats:
    """Returns the number of a GMI's processes and of what `send_heartbeat` has counted."""
    return lambda gmi_id: tally[gmi_id, "lives"] + tally[gmi_id, "begun"]


def send_heartbeat(tally: Tally, gmi_id: int) -> None:
    """Counts a heartbeat of this GMI."""
    tally[gmi_id, "begun"] += 1


class HeartbeatDeadline:
    """One wait for several GMIs, each of which has `timeout` from now, and from its last sign.

    A GMI shows one when its process begins, an agent of template tdg_ex when it begins to follow an
    order, a trainer each time it has met the others, also while it waits for its agents. So each of
    what takes long one after the other has a deadline, and one that hangs shows nothing.
    """

    def __init__(self, timeout: timedelta, heartbeats: Heartbeats) -> None:
        self._timeout_s, self._heartbeats = timeout.total_seconds(), heartbeats
        self._seen: dict[int, int] = {}
        self._deadline_s: dict[int, float] = {}

    def first(self, gmi_ids: Collection[int]) -> tuple[int, float]:
        """Returns the GMI that is given up first, and in how many seconds; 0 or less: now."""
        now_s = perf_counter()
        for gmi_id in gmi_ids:
            if (sign := self._heartbeats(gmi_id)) != self._seen.get(gmi_id):
                self._seen[gmi_id] = sign
                self._deadline_s[gmi_id] = now_s + self._timeout_s
        gmi_id = min(gmi_ids, key=self._deadline_s.__getitem__)
        return gmi_id, self._deadline_s[gmi_id] - now_s
