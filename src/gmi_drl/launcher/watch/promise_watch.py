"""Holds a run against what tuning promised for its config, and tells once when it is not kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.gmi import Gang
from gmi_drl.launcher.colocated_runs import other_at_work
from gmi_drl.launcher.view.view import View
from gmi_drl.placement import Config, Topology

if TYPE_CHECKING:
    from gmi_drl.selector.tune.drift import Drift


_LOOK_S: Final = 1.0  # between looks at who else is at work
_OFTEN: Final = 2  # a checkpoint after so many iterations, or fewer, is in the median iteration


class PromiseWatch:
    """Warns on `screen`, and marks the record as stale, when a run of `config` has drifted.

    It marks nothing when another launch, tune or search of this user was at work on the machine
    meanwhile. Says nothing of a config that no fresh record promises anything of, nor of one that
    writes checkpoints so often that they make its speed: what is promised has none. `topology` is
    what the run was planned on, so that devices are not looked at again; `beside` the folder of
    role modules. Records are looked for when the first iteration has ended: a run is not kept
    waiting for them. Whatever goes wrong here, the run goes on.
    """

    def __init__(
        self, config: Config, topology: Topology, beside: Path | None, screen: View
    ) -> None:
        self._run, self._screen = (config, topology, beside), screen
        self._looked = False
        self._promise: tuple[Path, Drift] | None = None
        self._look_s, self._other = 0.0, ""  # when we looked last, and who was at work

    def show(self, record: dict[str, Any]) -> None:
        """Take in a record; those that are no iteration say nothing of speed."""
        try:
            told = self._told(record)
        except Exception as error:  # a damaged record, say: it is no reason to end a training
            self._promise = None
            told = f"what tuning promised of this run cannot be told ({error})"
        if told:
            self._screen.show({"kind": "warning", "message": told})

    def tick(self, gang: Gang) -> None:
        """Notes who else is at work, while a promise is held against this run."""
        now_s = time.monotonic()
        if self._promise is not None and not self._other and now_s - self._look_s > _LOOK_S:
            self._look_s, self._other = now_s, other_at_work()

    def _told(self, record: dict[str, Any]) -> str:
        """What is to be said after this record; "" if nothing."""
        if record.get("kind") != "iteration":
            return ""
        steps, time_s = record.get("steps"), record.get("time_s")
        if not (isinstance(steps, int) and isinstance(time_s, float)):
            return ""  # a role of the user's may report anything
        if not self._looked:
            self._looked = True
            self._promise = self._look()
        if self._promise is None:
            return ""
        path, drift = self._promise
        if (found := drift.take(steps, time_s)) is None:
            return ""
        if self._other:
            return f"{found}. The record stays: {self._other} was at work on this machine too."
        from gmi_drl.selector.record.record import expire

        trouble = expire(path, found.steps_per_s, str(found))
        return f"{found}. {trouble or 'Its record is stale from now on: run gmi-drl tune again'}."

    def _look(self) -> tuple[Path, Drift] | None:
        from gmi_drl.selector.tune.drift import Drift
        from gmi_drl.selector.tune.tuning import promise_of  # which launches what it measures

        config, topology, beside = self._run
        if 0 < config.run.checkpoint_every <= _OFTEN:
            return None
        promise = promise_of(config, topology, beside=beside)
        return None if promise is None else (promise.path, Drift(promise.steps_per_s))
