"""Trains by the GMIs of one layout, and goes on by those of another where the run needs that."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import Gang, GmiDied
from gmi_drl.launcher.callbacks.callback import EndedRun, StartedRun
from gmi_drl.launcher.callbacks.calls import CallbackError, Callbacks
from gmi_drl.launcher.callbacks.loading import made_callbacks
from gmi_drl.launcher.colocated_runs import at_work, overlaps
from gmi_drl.launcher.folder.run_folder import (
    RunFolder,
    RunFolderError,
    outcome_of,
    resume_command,
)
from gmi_drl.launcher.hosts.cluster_watch import ClusterWatch
from gmi_drl.launcher.hosts.messages import HostLost
from gmi_drl.launcher.view.view import RunView, ViewName, opened
from gmi_drl.launcher.watch.noise_watch import NoiseWatch
from gmi_drl.launcher.watch.policy_log import PolicyLog
from gmi_drl.launcher.watch.records import ServingMetrics, new_traces, traced_gmis
from gmi_drl.launcher.watch.watch import PromiseOf, PromiseWatch, Propose, Watch
from gmi_drl.launcher.watch.watchdog import Restarts, close_all, is_recoverable
from gmi_drl.placement import counted
from gmi_drl.roles.loading import importable
from gmi_drl.roles.role.host import GmiHost
from gmi_drl.roles.role.job import Job
from gmi_drl.runtime.errors import exit_text

from .gang_loop import Reports, keeping_lineage, train_until_done, warn
from .resizer import Resizer
from .result import RunEnd, RunResult, memory_held, nothing_left, result_of, summary_of

if TYPE_CHECKING:
    from gmi_drl.launcher.hosts.cluster import Cluster


@dataclass
class TrainingRun:
    """Trains a run, by the GMIs of one layout and after a resize by those of another."""

    folder: RunFolder
    view: ViewName
    store: Path | None  # the control store, where it is the run's own
    callbacks: Callbacks
    resizer: Resizer
    watch: Watch | None
    promise_of: PromiseOf | None
    cluster: Cluster | None  # None: this machine is the only one
    notes: Sequence[str]  # to be shown when GMIs are started next
    started: float = field(default_factory=time.time)
    last: dict[str, Any] = field(default_factory=dict)  # the last iteration
    restarts: int = 0
    _policies: PolicyLog | None = None  # of the layout before

    @property
    def job(self) -> Job:
        return self.resizer.job

    def run(self, callbacks: Sequence[object]) -> RunResult:
        """Trains, tells callbacks, these and those of the config, and writes down how it ended."""
        job, folder = self.job, self.folder
        folder.update(state="running", pid=os.getpid(), started=self.started, error=None)
        if job.plan:
            folder.write_plan(job.plan)
        try:
            with importable(job.role_folder):
                made = made_callbacks(job.config, job.role_folder)
                self.callbacks = Callbacks([*made, *callbacks], folder.path, job.config)
                self.callbacks.start(
                    StartedRun(
                        folder=folder.path,
                        config=job.config,
                        layout=job.layout,
                        is_resumed=job.resume is not None,
                        request_stop=self.callbacks.request_stop,
                    )
                )
            end = self.train()
            result = result_of(self.job, folder, end, self.last, self.restarts)
        except BaseException as error:
            self._note_failure(error, was_resumed=job.resume is not None)
            raise
        self.callbacks.end(EndedRun(end.state, result=result))
        return result

    def _note_failure(self, error: BaseException, was_resumed: bool) -> None:
        """Writes down what has ended the run, and tells callbacks; the error says how to go on."""
        outcome = outcome_of(error)
        with suppress(OSError, RunFolderError):  # a full disk must not hide what went wrong
            self.folder.update(**outcome, **summary_of(self.last), **memory_held(self.job))
        with suppress(CallbackError):
            self.callbacks.end(EndedRun(outcome["state"], outcome["error"]))
        # The same resume again would be refused again.
        refused = was_resumed and not self.last and outcome["state"] == "failed"
        if (command := resume_command(self.folder.path)) and not refused:
            error.add_note(f"to go on: {command}")

    def train(self) -> RunEnd:
        """Trains by one layout after another, until the run comes to its end."""
        while (end := self._train_by_layout()) is None:
            pass
        return end

    def _train_by_layout(self) -> RunEnd | None:
        """Starts the GMIs of the layout, and trains to the end; None if another layout is next."""
        job = self.job
        budget = job.config.run.max_restarts
        if budget and not all(is_recoverable(c, job.role_folder) for c in job.classes.values()):
            budget = 0
        policies = PolicyLog(self.store, job.session, job.config, job.layout, self._policies)
        self._policies = policies
        traced = traced_gmis(job.config, job.layout)
        gang: Gang | None = None
        try:
            with (
                at_work(None if self.cluster else job.layout.topology),
                importable(job.role_folder),  # a role may return a class of its own
                new_traces(job.config, self.folder.path) as traces,
                keeping_lineage(self._gang(job, traced, budget), policies) as gang,
                opened(self.view, lambda on: RunView(on, job.config, job.layout)) as screen,
            ):
                self._show_notes(screen)
                restarts = Restarts(gang, self.folder, budget, policies)
                end = self._train_by_gang(gang, screen, restarts, policies)
        except HostLost as error:
            self.notes = self._drop_hosts(error)
            return None
        except GmiDrlError as error:
            is_stopping = gang is not None and self.job is job and self._is_stopping(gang)
            self.notes = self._notes_on(error, job, policies, is_stopping)
            return None
        return None if end is None else replace(end, traces=traces())

    def _gang(self, job: Job, traced: frozenset[int], budget: int) -> Gang:
        """Starts the GMIs: here, or on the hosts of a cluster."""
        assert job.folder is not None
        if self.cluster is not None:
            from gmi_drl.launcher.hosts.gang import HostsGang, parts_of

            epoch = int(self.folder.state().get("epoch", 0)) + 1
            self.folder.update(epoch=epoch)
            parts = parts_of(
                replace(job, epoch=epoch), self.cluster.hosts, max_restarts=budget, traced=traced,
                started=self.started, keeps_gcs=self.store is not None,
            )  # fmt: skip
            # HostsGang has the methods of Gang that a launch calls.
            return cast("Gang", HostsGang(self.cluster.hand_over(), parts, job.tally.open()))
        return Gang(
            job.layout,
            GmiHost,
            lambda spec: (spec.gmi_id, job.of_gmi(spec.gmi_id, traced)),
            logs=job.folder / "logs",
            max_restarts=budget,
            shrinks=self.resizer.may_shrink,
        )

    def _show_notes(self, screen: RunView) -> None:
        """Shows what there is to say before GMIs train, and has callbacks say theirs there."""
        for line in self.notes:
            screen.show({"kind": "note", "message": line})
        for line in [] if self.cluster else overlaps(self.job.layout.topology):
            warn(screen, line)
        self.callbacks.show_on(partial(warn, screen))

    def _train_by_gang(
        self, gang: Gang, screen: RunView, restarts: Restarts, policies: PolicyLog
    ) -> RunEnd | None:
        """Trains by a gang; returns how it ended, or None if another layout is next."""
        job, resizer = self.job, self.resizer
        serving = ServingMetrics(job.layout, self.folder.path, lambda: memory_held(job))
        cluster_watch = (
            None if self.cluster is None else ClusterWatch(self.cluster, self.folder.path)
        )
        watches = self._watches(screen, policies)
        if cluster_watch is not None:
            watches.append(cluster_watch)
        reports = Reports(gang, screen, serving, watches, self.last)
        try:
            stopped = train_until_done(job, reports, restarts, resizer)
        except GmiDied:  # perhaps because a device is lost
            if not self._is_stopping(gang):
                grace_s = reports.iteration_times.grace_s()
                if warning := resizer.lose(gang, grace_s):
                    warn(screen, warning)
            raise
        self.restarts += restarts.count
        gmis = list(gang.results().values())
        close_all(gang, screen)
        reports.show()
        for_hosts = cluster_watch is not None and cluster_watch.wants_room
        if self.callbacks.asks_to_stop and (for_hosts or resizer.is_wanted):
            resizer.give_up("a callback asked for the run's end")
            stopped = True
        if not stopped and self._makes_room(gang, gmis, cluster_watch):
            return None
        resizer.give_up("the run came to its end first")
        resizer.settle()
        resumed = job.resume is not None and not self.last and not stopped
        if resumed and (message := nothing_left(job, self.folder)):
            screen.show({"kind": "note", "message": message})
        return RunEnd("stopped" if stopped else "finished", gmis)

    def _watches(self, screen: RunView, policies: PolicyLog) -> list[Watch]:
        """Returns what looks at each record; PolicyLog is first, as it takes the lineage out."""
        config, layout = self.job.config, self.job.layout
        propose = self.resizer.propose if config.run.resize == "auto" else None
        noise_watch = NoiseWatch(screen, self.folder, config, layout, propose)
        speed_watch = self._speed_watch(screen, propose)
        return [policies, self.resizer, noise_watch, self.callbacks, *speed_watch]

    def _makes_room(
        self, gang: Gang, gmis: Sequence[Any], cluster_watch: ClusterWatch | None
    ) -> bool:
        """Turns to the next layout, if GMIs have ended to make room for one."""
        resizer = self.resizer
        if cluster_watch is not None and cluster_watch.wants_room and _stopped_early(gmis):
            cluster_watch.check_head()
            gang.kill()  # agents end their launchers before others are started
            why = cluster_watch.why  # by the hosts' names as they are before the change
            hosts = self._rehost(lost=cluster_watch.leaving, back=cluster_watch.places)
            self.notes = (why, *hosts)
            return True
        if resizer.is_wanted and _stopped_early(gmis, resizer.is_shrinking):
            self.notes = resizer.change()
            return True
        return False

    def _is_stopping(self, gang: Gang) -> bool:
        """Tells whether a gang was asked to stop for good, and not for the next layout."""
        return gang.asked_to_stop and not self.resizer.is_wanted

    def _notes_on(
        self, error: GmiDrlError, job: Job, policies: PolicyLog, is_stopping: bool
    ) -> Sequence[str]:
        """Turns back to an earlier layout after an error, or raises; returns notes.

        `job` and `policies` are what was trained by when it was raised. No other layout goes on
        with a run that `is_stopping`.
        """
        if isinstance(error, GmiDied):
            ending = exit_text(error.exit_code, error.signal)
            death_count = len(error.deaths)
            policies.died(error.gmi_id, death_count, "raised" if error.error else ending)
            policies.flush()
        if is_stopping or isinstance(error, CallbackError):  # which says nothing of the layout
            raise error
        if self.cluster is not None and (ranks := self.cluster.untried):
            host_lost = HostLost(f"a host that was taken in again does not train: {error}")
            host_lost.ranks = ranks
            return self._drop_hosts(host_lost)
        if self.job is not job:  # the GMIs had made room; only their clean-up failed
            return (*self.notes, str(error))
        return self.resizer.undo(error)

    def _drop_hosts(self, error: HostLost) -> Sequence[str]:
        """Goes on without lost hosts, as `cluster.on_loss` says, or raises; returns notes."""
        assert self.cluster is not None
        config = self.job.config.cluster
        assert config is not None
        if config.on_loss == "fail" or not error.ranks:
            raise error
        return (f"a host is lost: {error}", *self._rehost(error.ranks))

    def _rehost(self, lost: Collection[int] = (), back: Collection[int] = ()) -> Sequence[str]:
        """Goes on without the `lost` hosts, by rank, and with those back; returns notes."""
        assert self.cluster is not None
        hosts_before = counted(len(self.cluster.hosts), "host")
        self.cluster.renew(lost, back)
        change, *notes = self.resizer.rehost(self.cluster.hosts)
        hosts_change = f"{hosts_before} before, {counted(len(self.cluster.hosts), 'host')} now"
        return (f"{hosts_change}; {change}", *notes)

    def _speed_watch(self, screen: RunView, propose: Propose | None) -> list[Watch]:
        """Returns the watch that `launch` was given, or the one that holds a promise."""
        if self.watch is not None:
            return [self.watch]
        promise_of, self.promise_of = self.promise_of, None  # it was of this layout alone
        if promise_of is None:
            return []
        job = self.job
        look_up = partial(promise_of, job.config, job.layout.topology, job.role_folder)
        return [PromiseWatch(screen, look_up, propose)]


def _stopped_early(gmis: Sequence[Any], is_shrinking: bool = False) -> bool:
    """Tells whether GMIs have stopped as they were asked to, and not at the end of the run.

    GMIs that have lost peers may end without an answer; while the run shrinks, none need answer.
    """
    flags = [gmi["stopped"] for gmi in gmis if isinstance(gmi, dict) and "stopped" in gmi]
    return any(flags) or (is_shrinking and not flags)
