"""Chooses the GMI that saves the training of a layout which has lost a device or a host.

Any of the GMIs that are left may be lost next, or hold nothing as its process is new. So each that
leaves its lost peers says in the tally (counter "snapshot") that it holds an iteration which no
checkpoint has, and waits. The launcher makes one of these the heir, and another one if that is lost
before it has said that it is done. Nothing heavy is imported, as a launcher uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gmi_drl.comm.shm.tally import Tally

HELD: Final = 1  # of the counter "snapshot"
SAVED: Final = 2  # of the same; also where the disk has refused it
NOBODY: Final = -1  # in place of a gmi_id


def is_saved(snapshots: Iterable[int]) -> bool:
    """Tells whether one GMI has saved its iteration, by the counters "snapshot" of all."""
    return SAVED in snapshots


def choose_heir(tally: Tally, trainers: Collection[int], left: Collection[int], heir: int) -> int:
    """Returns the GMI that is to save its iteration, or NOBODY while none can or has to.

    That is `heir`, who was chosen before, as long as it can. Of the `trainers` some are lost, and
    the others are `left`.
    """
    if is_saved(tally[gmi_id, "snapshot"] for gmi_id in trainers):
        return heir
    able = [gmi_id for gmi_id in left if tally[gmi_id, "snapshot"] == HELD]
    return heir if heir in able else min(able, default=NOBODY)
