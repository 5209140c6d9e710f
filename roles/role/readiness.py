"""The start of a run: no GMI waits for another by `comm.timeout_s` until all are set up.

Making environments takes as long as it takes, seconds in one GMI and a minute in another that
compiles. So each says when it is done, in the tally, and waits for all. What is said is the number
of the process that says it: one that takes a dead one's place is not set up until it says so, and
those who have met its loss wait for it in the same way. No GMI waits for another while it sets up,
so that nobody waits in a circle. Who is dead for good is the launcher's to find.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from gmi_drl.comm.shm.heartbeat import waiting
from gmi_drl.comm.shm.tally import Tally
from gmi_drl.placement import Layout
from gmi_drl.roles.errors import SetUpTimeout

from .heartbeat_deadline import HeartbeatDeadline, heartbeats_in

_PATIENCE: Final = timedelta(minutes=15)  # with each process of a GMI
_LOOK_S: Final = 0.02


def is_set_up(tally: Tally, gmi_id: int) -> bool:
    """Tells whether the present process of a GMI has said that it is set up."""
    return tally[gmi_id, "set_up"] == tally[gmi_id, "lives"] + 1


def say(tally: Tally, gmi_id: int) -> None:
    """This GMI is set up."""
    tally[gmi_id, "set_up"] = tally[gmi_id, "lives"] + 1


def take_back(tally: Tally, gmi_id: int) -> None:
    """This GMI makes something again that may take long."""
    tally[gmi_id, "set_up"] = 0


def wait_for_all(tally: Tally, gmi_ids: Sequence[int], timeout: timedelta = _PATIENCE) -> None:
    """Returns when all of `gmi_ids` are set up; SetUpTimeout names one that is not in time.

    Each has `timeout` from now, and from the beginning of each process that takes its place.
    """
    deadline = HeartbeatDeadline(timeout, heartbeats_in(tally))
    with waiting:
        while late := [gmi_id for gmi_id in gmi_ids if not is_set_up(tally, gmi_id)]:
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
        if not self._over:
            self._over = all(is_set_up(self._tally, gmi.gmi_id) for gmi in self._layout.gmis)
        return self._over
