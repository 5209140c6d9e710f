"""Holds a run against what tuning promised for its config, and tells once when it is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl.gmi import Gang
from gmi_drl.placement import Config, Topology
from gmi_drl.selector.drift import Drift
from gmi_drl.selector.record import expire

from .view import View

if TYPE_CHECKING:
    from .watch import Watch


def promise_watch(config: Config, topology: Topology, screen: View) -> Watch | None:
    """What follows a run of this config; None where no fresh record promises anything of it.

    `topology` is what the run was planned on: devices are not looked at again.
    """
    from .tuning import promise_of  # which launches what it measures

    promise = promise_of(config, topology)
    return None if promise is None else PromiseWatch(promise.steps_per_s, promise.path, screen)


class PromiseWatch:
    """Warns on `screen`, and marks the record at `path` as stale, when the run has drifted."""

    def __init__(self, steps_per_s: float, path: Path, screen: View) -> None:
        self._drift, self._path, self._screen = Drift(steps_per_s), path, screen

    def show(self, record: dict[str, Any]) -> None:
        """Take in a record; those that are no iteration say nothing of speed."""
        if record.get("kind") != "iteration":
            return
        steps, time_s = record.get("steps"), record.get("time_s")
        if not (isinstance(steps, int) and isinstance(time_s, float)):
            return  # a role of the user's may report anything
        if (found := self._drift.take(steps, time_s)) is None:
            return
        trouble = expire(self._path, found.steps_per_s, str(found))
        remedy = trouble or "Its record is stale from now on: run gmi-drl tune again"
        self._screen.show({"kind": "warning", "message": f"{found}. {remedy}."})

    def tick(self, gang: Gang) -> None:
        """Nothing: what tuning promised never ends a run."""
