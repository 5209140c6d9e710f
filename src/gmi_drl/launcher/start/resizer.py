"""Takes a run to another layout while it trains (docs/resize.md): what is asked for, and its end.

Training stops at the border of an iteration with a checkpoint, as Ctrl-C has it, and GMIs of the
new layout go on from that. The run's folder says what it was until they have trained an iteration:
where they do not come to that, the old layout goes on from the same checkpoint.

Where a device is lost, the GMIs of the others go on without it, from what one of them saves. A run
may also resize itself, where its noise scale has left its batches, or tuning's record is stale.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from gmi_drl.launcher.watch.watch import Watch
from gmi_drl.placement import counted
from gmi_drl.roles.role import readiness
from gmi_drl.roles.role.heirs import NOBODY, choose_heir
from gmi_drl.roles.role.job import HEIR, Job

from .jobs import Follow, fixed_fault, rehosted_job, renewed_job, resized_job, shrunk_job

if TYPE_CHECKING:
    from gmi_drl.comm.shm.tally import Tally
    from gmi_drl.launcher.hosts.cluster import Host
    from gmi_drl.roles import DRL_role

_LOOK_S: Final = 0.2
_LOOK_AT_CORES_S: Final = 1.0
_MOST_BY_ITSELF: Final = 4  # resizes of a run that nobody has asked for
_OPPOSITES: Final = {"above": "below", "below": "above"}  # of causes


class DeviceLostError(GmiDrlError, RuntimeError):
    """A device of the run is lost, and the run cannot go on without it."""


@dataclass
class _Change:
    """Holds another layout for the run, and why it is to have that."""

    job: Job  # of the layout
    notes: Sequence[str]
    request: ResizeRequest | None = None  # None: nobody has asked
    proposed: str = ""  # where the run resizes itself: why, and settings
    is_told: bool = True  # whether GMIs are asked to stop for it
    shrinks: bool = False  # something is lost, and the layout before does not go on
    before: Job | None = None  # of the layout before, once this one has taken its place


class Resizer(Watch):
    """Looks for resize requests and changes layouts; a `Watch` of the GMIs of either layout."""

    def __init__(
        self,
        folder: RunFolder,
        job: Job,
        roles: Mapping[str, type[DRL_role]] | None,
        follow: Follow | None,
    ) -> None:
        self._folder, self._roles, self._follow = folder, roles, follow
        self.job = job  # of the layout that trains, or is to
        self._change: _Change | None = None  # until the new layout has trained
        self._gone: dict[int, str] = {}  # devices of the present layout that are lost, and how
        self._lost: set[str] = set()  # UUIDs of all GPUs that the run has lost
        self._may_propose = True  # never again after one that was undone
        self._give_up_s = 0.0  # when survivors that have not answered are given up
        self._left: Sequence[int] = ()  # GMIs that train and have lost peers with a device
        self._heir = NOBODY  # the one of them that is to save the state
        self._looked_s = self._looked_at_cores_s = 0.0
        self._last_s = time.monotonic()  # of the last iteration, or of the run's start
        withdraw_request(folder.path)  # nobody waits for what a killed launcher left

    @property
    def is_wanted(self) -> bool:
        """Tells that the GMIs are to make room for those of another layout."""
        return self._change is not None and self._change.before is None

    @property
    def is_shrinking(self) -> bool:
        """Tells that the GMIs are to make room for a layout without a lost device."""
        return self._change is not None and self._change.shrinks and self.is_wanted

    @property
    def may_shrink(self) -> bool:
        """Tells whether there is a device that the present layout could do without."""
        several = len(self.job.layout.topology.devices) > 1
        return several and self._follow is not None and fixed_fault(self.job.config) is None

    def look(self) -> bool:
        """Tells whether a resize is to begin; a request that cannot be done is refused."""
        now_s = time.monotonic()
        if self._change is not None and not self._change.is_told:
            self._change.is_told = True
            self._mark(1)
            return True
        if self._change is not None or now_s - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now_s
        if (request := request_in(self._folder.path)) is None:
            return False
        try:
            job, notes = resized_job(self.job, request.overrides, self._roles, self._lost)
        except (GmiDrlError, ValueError) as error:
            self._answer(request, "refused", str(error))
            return False
        self._change = _Change(job, notes, request)
        self._answer(request, "changing", f"ending an iteration to become {_describe(job)}")
        self._mark(1)
        return True

    def _mark(self, is_resizing: int) -> None:
        """Tells the GMIs whether they are asked to stop for a resize."""
        tally = self.job.tally.open()
        for gmi in self.job.layout.gmis:
            tally[gmi.gmi_id, "resizing"] = is_resizing

    def propose(self, cause: str, ways: Sequence[str]) -> str:
        """Resizes a run by the first way that fits; a way is overrides, with spaces between them.

        The cause is a noise scale "above" or "below" the batches, or the "drift" of its speed. A
        run does so four times at most, and never back: a noise scale that goes up and down moves it
        once, and the speed of its first layout alone is watched. Returns what to say.
        """
        if self._change is not None:
            return "The run does not resize itself: another resize is under way."
        resizes = self._folder.entries("resizes")
        proposals = [str(entry["proposed"]) for entry in resizes if entry.get("proposed")]
        causes = [proposal.split()[0] for proposal in proposals]
        if not self._may_propose or len(causes) >= _MOST_BY_ITSELF:
            return "The run does not resize itself again."
        if _OPPOSITES.get(cause) in causes:
            return "The run does not resize itself: that would undo what it did before."
        reason = ""
        for way in ways:
            try:
                job, notes = resized_job(self.job, way.split(), self._roles, self._lost)
            except (GmiDrlError, ValueError) as error:
                reason = reason or str(error)
                continue
            self._change = _Change(job, notes, proposed=f"{cause} {way}", is_told=False)
            return f"The run resizes itself by {way}."
        return f"The run cannot resize itself so: {reason}"

    def lose(self, gang: Gang, grace_s: float) -> str:
        """Has the run go on without devices that are lost by now; returns what to say of that.

        Survivors of their GMIs leave their group, and one of them saves the last iteration. Those
        that have not answered in `grace_s`, or in `comm.timeout_s` if that is longer, are given up.
        DeviceLostError if there is no layout for the devices that are left.
        """
        if self.is_shrinking and gang.at_work() and time.monotonic() > self._give_up_s:
            gang.give_up(gang.at_work(), "it has not answered since a device was lost")
        if not self.may_shrink:
            return ""
        dead = gang.lost_devices()
        new = {
            index: why
            for index, why in {**self._offline_devices(), **dead}.items()
            if index not in self._gone
        }
        if not new:
            return ""
        self._gone |= new
        self.give_up("a device was lost meanwhile: ask again when the run goes on")
        self.settle()  # a new layout becomes the run's, as it is the one that lost the device
        devices = self.job.layout.topology.devices
        self._lost |= {uuid for index in dead if (uuid := devices[index].uuid) is not None}
        text = "; ".join(f"{devices[index].name} is lost: {why}" for index, why in new.items())
        try:
            assert self._follow is not None
            job, notes = shrunk_job(self.job, self._gone, self._roles, self._follow, self._lost)
        except (GmiDrlError, ValueError) as error:
            if dead:
                raise DeviceLostError(f"{text}. There is no layout without it: {error}") from error
            return f"{text}. The run goes on as it is: there is no layout without it: {error}"
        self._change = _Change(job, notes, shrinks=True)
        leave_s = max(self.job.config.comm.timeout_s, grace_s)
        self._give_up_s = time.monotonic() + leave_s
        if not gang.is_stopped:
            self._bereave(gang, [gmi.gmi_id for gmi in self.job.layout.gmis if gmi.gpu_id in dead])
            gang.request_stop()
        return text

    def rehost(self, hosts: Sequence[Host]) -> tuple[str, ...]:
        """Has the run go on with these hosts, as others are lost; returns notes of that."""
        self.give_up("a host was lost meanwhile: ask again when the run goes on")
        self.settle()
        self._change = _Change(*rehosted_job(self.job, hosts, self._roles), shrinks=True)
        return self.change()

    def _offline_devices(self) -> dict[int, str]:
        """Returns the groups of cores of which this process may use none any more, once a second.

        Their GMIs live on: the kernel lets them run on other cores.
        """
        now_s = time.monotonic()
        if now_s - self._looked_at_cores_s < _LOOK_AT_CORES_S:
            return {}
        self._looked_at_cores_s, usable = now_s, os.sched_getaffinity(0)
        return {
            device.index: "none of its cores can be used any more"
            for device in self.job.layout.topology.devices
            if device.kind == "cpu" and usable.isdisjoint(device.cores)
        }

    def _bereave(self, gang: Gang, dead: Sequence[int]) -> None:
        """Ends GMIs for good, and tells their peers."""
        if not dead:
            return
        job, why = self.job, "its device is lost"
        gang.give_up(dead, why)
        tally = job.tally.open()
        self._left = [gmi_id for gmi_id in self._trainers if gmi_id not in dead]
        self._tell_bereft(tally)
        for gmi_id in dead:
            readiness.say(tally, gmi_id)  # nobody is to wait for it
            if job.group is not None and (rank := job.rank_of(gmi_id)) is not None:
                job.group.give_up(rank, why)

    @property
    def _trainers(self) -> list[int]:
        return [gmi.gmi_id for gmi in self.job.layout.holding("trainer")]

    def _tell_bereft(self, tally: Tally) -> None:
        """Tells GMIs that have lost peers for good, and whether they are to save the state."""
        for gmi_id in self._left:
            tally[gmi_id, "bereft"] = HEIR if gmi_id == self._heir else 1

    def name_heir(self) -> None:
        """Has one of the GMIs that a lost device has left save the last iteration for all."""
        if not self._left:
            return
        tally = self.job.tally.open()
        heir = choose_heir(tally, self._trainers, self._left, self._heir)
        if heir != self._heir:
            self._heir = heir
            self._tell_bereft(tally)

    def give_up(self, why: str) -> None:
        """Refuses a resize that is wanted and has not begun."""
        if self._change is not None and self.is_wanted:
            self._answer(self._change.request, "refused", why)
            self._change = None
            self._mark(0)

    def change(self) -> tuple[str, ...]:
        """Turns to the new layout, whose GMIs are started next; returns notes of it."""
        change, before = self._change, self.job
        assert change is not None
        change.before, self.job = before, self._with_resume(before, change.job)
        self._gone, self._left, self._heir = {}, (), NOBODY
        by = f", {change.proposed}" if change.proposed else ""
        text = f"resizing: {_describe(before)} become {_describe(self.job)}{by}"
        return (text, *change.notes)

    def _with_resume(self, before: Job, job: Job) -> Job:
        """Returns the next job, which begins where the one before did if that has saved nothing.

        A checkpoint of another session may be newer than the one this run was resumed from.
        """
        for path in (self._folder.path / "checkpoints").glob("iteration_*/manifest.json"):
            with suppress(OSError, ValueError):
                manifest = json.loads(path.read_text(encoding="utf-8"))
                if isinstance(manifest, dict) and manifest.get("session") == before.session:
                    return job
        return replace(job, resume=before.resume)

    def undo(self, error: GmiDrlError) -> tuple[str, ...]:
        """Turns back to the layout that was; raises `error` where that is what has failed.

        Returns notes of it. A layout that has lost a device is not turned back to: it makes room
        for the one without.
        """
        if self.is_shrinking:
            return self.change()
        change, self._change = self._change, None
        if change is None or change.before is None or change.shrinks:
            raise error
        self._may_propose = self._may_propose and not change.proposed
        job, notes = renewed_job(change.before)
        self.job = self._with_resume(change.before, job)
        first, *_ = str(error).splitlines()
        text = f"the new layout did not come up, and the old one goes on: {error}"
        self._answer(change.request, "undone", text)
        return (f"resizing failed, the old layout goes on: {first}", *notes)

    def show(self, record: dict[str, Any]) -> None:
        """Takes in a record: the first iteration of a new layout makes it the run's."""
        if record.get("kind") != "iteration":
            return
        self.settle(time.monotonic() - self._last_s)
        self._last_s = time.monotonic()

    def settle(self, pause_s: float = 0.0) -> None:
        """Makes the new layout, if there is one, the run's own."""
        change, job = self._change, self.job
        if change is None or change.before is None:
            return
        self._change, text = None, _describe(job)
        try:
            if job.config.layout.file is None:  # else they are as they were
                self._folder.become(job.config, job.layout, job.plan)
        except OSError as error:  # a full disk: training is worth more
            text += (
                f" (not written to the run's folder, {error}: a resume may begin with the old one)"
            )
        proposed = {"proposed": change.proposed} if change.proposed else {}
        self._folder.add_entry("resizes", layout=text, pause_s=round(pause_s, 3), **proposed)
        self._answer(change.request, "done", text, pause_s)

    def _answer(
        self, request: ResizeRequest | None, state: State, text: str, pause_s: float = 0.0
    ) -> None:
        if request is not None:  # else nobody has asked
            answer = ResizeAnswer(request.id, state, text, round(pause_s, 3))
            give_answer(self._folder.path, answer)


def _describe(job: Job) -> str:
    sizes = sorted({gmi.num_env for gmi in job.layout.gmis if gmi.num_env})
    num_env = " or ".join(map(str, sizes)) or "0"
    return f"{counted(len(job.layout.gmis), 'GMI')} with {num_env} environments"
