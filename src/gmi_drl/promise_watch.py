"""Holds a run against what tuning promised for its config, and tells once when it is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl.gmi import Gang
from gmi_drl.placement import Config, Topology

from .view import View

if TYPE_CHECKING:
    from gmi_drl.selector.drift import Drift


class PromiseWatch:
    """Warns on `screen`, and marks the record as stale, when a run of `config` has drifted.

    Says nothing of a config that no fresh record promises anything of. `topology` is what the run
    was planned on, so that devices are not looked at again; `beside` the folder of role modules.
    Records are looked for when the first iteration has ended: a run is not kept waiting for them.
    """

    def __init__(
        self, config: Config, topology: Topology, beside: Path | None, screen: View
    ) -> None:
        self._run, self._screen = (config, topology, beside), screen
        self._looked = False
        self._promise: tuple[Path, Drift] | None = None

    def show(self, record: dict[str, Any]) -> None:
        """Take in a record; those that are no iteration say nothing of speed."""
        if record.get("kind") != "iteration":
            return
        steps, time_s = record.get("steps"), record.get("time_s")
        if not (isinstance(steps, int) and isinstance(time_s, float)):
            return  # a role of the user's may report anything
        if not self._looked:
            self._looked, self._promise = True, self._look()
        if self._promise is None:
            return
        path, drift = self._promise
        if (found := drift.take(steps, time_s)) is None:
            return
        from gmi_drl.selector.record import expire

        trouble = expire(path, found.steps_per_s, str(found))
        remedy = trouble or "Its record is stale from now on: run gmi-drl tune again"
        self._screen.show({"kind": "warning", "message": f"{found}. {remedy}."})

    def tick(self, gang: Gang) -> None:
        """Nothing: what tuning promised never ends a run."""

    def _look(self) -> tuple[Path, Drift] | None:
        from gmi_drl.selector.drift import Drift

        from .tuning import promise_of  # which launches what it measures

        config, topology, beside = self._run
        promise = promise_of(config, topology, beside=beside)
        return None if promise is None else (promise.path, Drift(promise.steps_per_s))
