"""Takes a run to another layout while it trains (docs/resize.md): what is asked for, and its end.

Training stops at the border of an iteration with a checkpoint, as Ctrl-C has it, and GMIs of the
new layout go on from that. The run's folder says what it was until they have trained an iteration:
where they do not come to that, the old layout goes on from the same checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import Gang
from gmi_drl.launcher.folder.resize_request import (
    ResizeAnswer,
    ResizeRequest,
    State,
    give_answer,
    request_in,
    withdraw_request,
)
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.placement import counted
from gmi_drl.roles.role.host import Job

from .jobs import renewed_job, resized_job

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

_LOOK_S: Final = 0.2


class Resizer:
    """Looks for a request, and follows the change; a `Watch` of the GMIs of either layout."""

    def __init__(
        self, folder: RunFolder, job: Job, roles: Mapping[str, type[DRL_role]] | None
    ) -> None:
        self._folder, self._roles = folder, roles
        self.job = job  # of the layout that trains, or is to
        self.notes: Sequence[str] = ()
        self._before: Job | None = None  # while the new layout has not trained yet
        self._request: ResizeRequest | None = None
        self._last_s = self._looked_s = 0.0
        withdraw_request(folder.path)  # nobody waits for what a killed launcher left

    @property
    def is_wanted(self) -> bool:
        """Tells that the GMIs are to make room for those of another layout."""
        return self._request is not None and self._before is None

    def look(self) -> bool:
        """Tells whether a request has come that can be done; one that cannot is refused."""
        now_s = time.monotonic()
        if self._request is not None or now_s - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now_s
        if (request := request_in(self._folder.path)) is None:
            return False
        self._request = request
        try:
            self._new, self.notes = resized_job(self.job, request.overrides, self._roles)
        except (GmiDrlError, ValueError) as error:
            self._answer("refused", str(error))
            return False
        self._answer("changing", f"ending an iteration to become {_told(self._new)}")
        return True

    def give_up(self, why: str) -> None:
        """Refuses what was not begun."""
        if self.is_wanted:
            self._answer("refused", why)

    def change(self) -> str:
        """Turns to the new layout, whose GMIs are started next; returns what to say of it."""
        self._before, self.job = self.job, self._new
        return f"resizing: {_told(self._before)} become {_told(self.job)}"

    def undo(self, error: GmiDrlError) -> str:
        """Turns back to the layout that was; raises `error` where that is what has failed."""
        if self._before is None:
            raise error
        before, self._before = self._before, None
        self.job, self.notes = renewed_job(before)
        first, *_ = str(error).splitlines()
        self._answer("undone", f"the new layout did not come up, and the old one goes on: {error}")
        return f"resizing failed, the old layout goes on: {first}"

    def show(self, record: dict[str, Any]) -> None:
        """Takes in a record: the first iteration of a new layout makes it the run's."""
        if record.get("kind") != "iteration":
            return
        if self._before is not None:
            self.settle(time.monotonic() - self._last_s)
        self._last_s = time.monotonic()

    def settle(self, pause_s: float = 0.0) -> None:
        """Makes the new layout the run's own."""
        if self._before is None:
            return
        self._before, job, text = None, self.job, _told(self.job)
        try:
            self._folder.become(job.config, job.layout)
        except OSError as error:  # a full disk: training is worth more
            text += (
                f" (not written to the run's folder, {error}: a resume may begin with the old one)"
            )
        with suppress(OSError):  # a full disk: training is worth more than its log
            entry = {"layout": text, "pause_s": round(pause_s, 3), "time": time.time()}
            earlier = self._folder.state().get("resizes", [])
            self._folder.update(resizes=[*earlier, entry])
        self._answer("done", text, pause_s)

    def tick(self, gang: Gang) -> None:
        """Does nothing: `look` is asked."""

    def _answer(self, state: State, text: str, pause_s: float = 0.0) -> None:
        assert self._request is not None
        answer = ResizeAnswer(self._request.id, state, text, round(pause_s, 3))
        give_answer(self._folder.path, answer)
        if state != "changing":
            self._request = None


def _told(job: Job) -> str:
    sizes = sorted({gmi.num_env for gmi in job.layout.gmis if gmi.num_env})
    each = " or ".join(map(str, sizes)) or "0"
    return f"{counted(len(job.layout.gmis), 'GMI')} with {each} environments"
