"""Launches a config: plans, starts its GMIs, watches them, and stays out of the inner loop.

This process never imports torch: that happens once, in the fork server, while the config is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gmi_drl import runtime
from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import Gang, GmiDied, lease
from gmi_drl.launcher.callbacks.callback import EndedRun, StartedRun
from gmi_drl.launcher.callbacks.calls import CallbackError, Callbacks
from gmi_drl.launcher.callbacks.loading import check_objects, made_callbacks
from gmi_drl.launcher.colocated_runs import at_work, overlaps
from gmi_drl.launcher.folder.run_folder import (
    RunFolder,
    RunFolderError,
    keep_gcs_in,
    resume_command,
)
from gmi_drl.launcher.hosts.cluster_watch import ClusterWatch
from gmi_drl.launcher.hosts.messages import HostLost
from gmi_drl.launcher.hosts.stores import merged_stores
from gmi_drl.launcher.interrupts import every_signal_counts, terminate_as_interrupt
from gmi_drl.launcher.paper_config import config as paper_config
from gmi_drl.launcher.view.view import RunView, ViewName, is_for_view, opened
from gmi_drl.launcher.watch.noise_watch import NoiseWatch
from gmi_drl.launcher.watch.policy_log import PolicyLog
from gmi_drl.launcher.watch.records import (
    ServingMetrics,
    new_traces,
    traced_gmis,
)
from gmi_drl.launcher.watch.watch import (
    PromiseOf,
    PromiseWatch,
    Propose,
    Watch,
    is_comparable,
)
from gmi_drl.launcher.watch.watchdog import Restarts, Watchdog, close_all, is_recoverable
from gmi_drl.placement import Config, counted
from gmi_drl.roles.loading import importable
from gmi_drl.roles.role.host import GmiHost
from gmi_drl.roles.role.job import Job
from gmi_drl.roles.role.readiness import Start
from gmi_drl.runtime.errors import exit_text, truncate

from .jobs import Follow, Resolve, new_job, resumed_job
from .preload import preload_of
from .resizer import Resizer
from .result import RunEnd, RunResult, memory_held, nothing_left, result_of, summary_of

if TYPE_CHECKING:
    from gmi_drl.launcher.hosts.cluster import Cluster
    from gmi_drl.roles import DRL_role

_POLL = timedelta(milliseconds=100)
_GRACE = timedelta(seconds=10)  # in which a run stops, on top of _ITERATIONS
_ITERATIONS = 3  # times the longest iteration so far, as the one in flight may take longer


def launch(
    config: Config | Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Iterable[str] = (),
    roles: Mapping[str, type[DRL_role]] | None = None,
    resume: Path | str | None = None,
    view: ViewName = "auto",
    keep_gcs: bool | None = None,
    watch: Watch | None = None,
    import_path: Path | None = None,
    callbacks: Iterable[object] = (),
    resolve: Resolve | None = None,
    promise_of: PromiseOf | None = None,
    follow: Follow | None = None,
) -> RunResult:
    """Trains what `config` says and returns when it is done, as `gmi_drl.launch` has it.

    `resolve` says what `auto` in the config is; without it that is a fault. `promise_of` looks up
    the speed that a new run is held against. `follow` keeps what an update is where a device is
    lost; without it that is the run's end.
    """
    overrides, objects = list(overrides), check_objects(callbacks)
    with terminate_as_interrupt(), ExitStack() as locks:
        started = runtime.is_initialized()
        try:
            if not started:
                runtime.init(preload_of(config, overrides, resume))
            if (config is None) == (resume is None):
                raise ValueError("launch takes a config or resume=FOLDER, one of them.")
            swept = lease.sweep()  # before devices are looked at: it may take MIG instances away
            if config is None:
                job, notes, cluster = resumed_job(Path(str(resume)), overrides, roles, locks)
            else:
                overrides = paper_config.apply_to(overrides)
                job, notes, cluster = new_job(
                    config, overrides, roles, import_path, locks, resolve=resolve
                )
            keep = not started if keep_gcs is None else keep_gcs
            # A resumed run may have begun on another machine, whose speed says nothing of this one.
            if job.resume is not None or cluster or not is_comparable(job.config):
                promise_of = None
            # `sweep` has warned of leases that it could not undo.
            kinds = (result.lease.kind for result in swept if result.undone)
            left = [f"undone: what a killed launcher had left of backend {k}" for k in kinds]
            assert job.folder is not None
            with _control_store(job.folder, keep, cluster) as store:
                return _run(
                    job, view, store, notes=left + notes, objects=objects, watch=watch,
                    promise_of=promise_of, roles=roles, cluster=cluster, follow=follow,
                )  # fmt: skip
        finally:
            if not started:
                runtime.shutdown()


def _run(
    job: Job,
    view: ViewName,
    store: Path | None,  # the control store, where it is the run's own
    *,
    notes: Sequence[str],
    objects: Sequence[object],  # callbacks beside those that the config names
    watch: Watch | None,
    promise_of: PromiseOf | None,
    roles: Mapping[str, type[DRL_role]] | None,
    cluster: Cluster | None,  # None: this machine is the only one
    follow: Follow | None,
) -> RunResult:
    """Trains by one layout after another, shows what GMIs report, and writes down how it ended."""
    assert job.folder is not None
    folder = RunFolder(job.folder)
    started = time.time()
    folder.update(state="running", pid=os.getpid(), started=started, error=None)
    callbacks = Callbacks([], folder.path, job.config)
    if job.plan:
        folder.write_plan(job.plan)
    resizer = Resizer(folder, job, roles, follow)
    run = _Run(folder, view, store, callbacks, resizer, watch, promise_of, cluster, started)
    try:
        with importable(job.role_folder):
            all_callbacks = [*made_callbacks(job.config, job.role_folder), *objects]
            run.callbacks = callbacks = Callbacks(all_callbacks, folder.path, job.config)
            callbacks.start(
                StartedRun(
                    folder=folder.path,
                    config=job.config,
                    layout=job.layout,
                    is_resumed=job.resume is not None,
                    request_stop=callbacks.request_stop,
                )
            )
        while (end := run.train(notes)) is None:
            notes = run.notes
    except BaseException as error:
        state, reason = "failed", truncate(str(error))
        if isinstance(error, KeyboardInterrupt):
            state, reason = "stopped", "ended before it could finish"
        with suppress(OSError, RunFolderError):  # a full disk must not hide what went wrong
            outcome = {"state": state, "finished": time.time(), "error": reason}
            folder.update(**outcome, **summary_of(run.last), **memory_held(run.job))
        with suppress(CallbackError):
            callbacks.end(EndedRun(state, reason))
        # The same resume again would be refused again.
        refused = job.resume is not None and not run.last and state == "failed"
        if (command := resume_command(folder.path)) and not refused:
            error.add_note(f"to go on: {command}")
        raise
    result = result_of(run.job, folder, end, run.last, run.restarts)
    callbacks.end(EndedRun(end.state, result=result))
    return result


@contextmanager
def _control_store(folder: Path, keep_gcs: bool, cluster: Cluster | None) -> Iterator[Path | None]:
    """Yields the control store if it is the run's own; at the end its file is complete.

    The stores of hosts are merged into it.
    """
    if not keep_gcs:  # it is that of a longer-lived runtime, and stays where it is
        yield None
        return
    is_kept = keep_gcs_in(store := folder / "gcs.sqlite")
    try:
        with merged_stores(folder) if is_kept and cluster is not None else nullcontext():
            yield store
    finally:
        with suppress(runtime.GcsError, TimeoutError):  # it is tried again as the runtime ends
            runtime.flush_gcs()


@dataclass
class _Run:
    """Trains a run, by the GMIs of one layout and after a resize by those of another."""

    folder: RunFolder
    view: ViewName
    store: Path | None  # the control store, where it is the run's own
    callbacks: Callbacks
    resizer: Resizer
    watch: Watch | None
    promise_of: PromiseOf | None
    cluster: Cluster | None
    started: float
    last: dict[str, Any] = field(default_factory=dict)  # the last iteration
    restarts: int = 0
    policies: PolicyLog | None = None  # of the present layout
    notes: Sequence[str] = ()  # to be shown when GMIs are started again

    @property
    def job(self) -> Job:
        return self.resizer.job

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

    def train(self, notes: Sequence[str]) -> RunEnd | None:
        """Starts the GMIs of the layout, and trains to the end; None if another layout is next."""
        job = self.job
        budget = job.config.run.max_restarts
        if budget and not all(is_recoverable(c, job.role_folder) for c in job.classes.values()):
            budget = 0
        policies = PolicyLog(self.store, job.session, job.config, job.layout, self.policies)
        self.policies = policies
        traced = traced_gmis(job.config, job.layout)
        try:
            with (
                at_work(None if self.cluster else job.layout.topology),
                importable(job.role_folder),  # a role may return a class of its own
                new_traces(job.config, self.folder.path) as traces,
                _keeping_lineage(self._gang(job, traced, budget), policies) as gang,
                opened(self.view, lambda on: RunView(on, job.config, job.layout)) as screen,
            ):
                self._show_notes(screen, notes)
                end = self._train_by(gang, screen, Restarts(gang, self.folder, budget, policies))
        except HostLost as error:
            self.notes = self._drop_hosts(error)
            return None
        except GmiDrlError as error:
            self.notes = self._notes_on(error, job)
            return None
        return None if end is None else replace(end, traces=traces())

    def _show_notes(self, screen: RunView, notes: Sequence[str]) -> None:
        """Shows what there is to say before GMIs train, and has callbacks say theirs there."""
        for line in notes:
            screen.show({"kind": "note", "message": line})
        for line in [] if self.cluster else overlaps(self.job.layout.topology):
            _warn(screen, line)
        self.callbacks.show_on(partial(_warn, screen))

    def _train_by(self, gang: Gang, screen: RunView, restarts: Restarts) -> RunEnd | None:
        """Trains by a gang; returns how it ended, or None if another layout is next."""
        job, resizer = self.job, self.resizer
        serving = ServingMetrics(job.layout, self.folder.path, lambda: memory_held(job))
        cluster_watch = (
            None if self.cluster is None else ClusterWatch(self.cluster, self.folder.path)
        )
        watches = self._watches(screen, cluster_watch)
        records = _Records(gang, screen, serving, watches, self.last)
        try:
            stopped = _watch(job, records, restarts, resizer)
        except GmiDied:  # perhaps because a device is lost
            if warning := resizer.lose(gang):
                _warn(screen, warning)
            raise
        self.restarts += restarts.count
        gmis = list(gang.results().values())
        close_all(gang, screen)
        records.show()
        wants_room = cluster_watch is not None and cluster_watch.wants_room
        if self.callbacks.asks_to_stop and (wants_room or resizer.is_wanted):
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

    def _watches(self, screen: RunView, cluster_watch: ClusterWatch | None) -> list[Watch]:
        """Returns what looks at each record; PolicyLog is first, as it takes the lineage out."""
        assert self.policies is not None
        config, layout = self.job.config, self.job.layout
        propose = self.resizer.propose if config.run.resize == "auto" else None
        noise_watch = NoiseWatch(screen, self.folder, config, layout, propose)
        watches: list[Watch] = [self.policies, self.resizer, noise_watch, self.callbacks]
        watches += self._speed_watch(screen, propose)
        return watches if cluster_watch is None else [*watches, cluster_watch]

    def _makes_room(
        self, gang: Gang, gmis: Sequence[Any], cluster_watch: ClusterWatch | None
    ) -> bool:
        """Turns to the next layout, if GMIs have ended to make room for one."""
        resizer = self.resizer
        wants_room = cluster_watch is not None and cluster_watch.wants_room
        if cluster_watch is not None and wants_room and _stopped_early(gmis, is_shrinking=False):
            cluster_watch.check_head()
            gang.kill()  # agents end their launchers before others are started
            why = cluster_watch.why  # by the hosts' names as they are before the change
            hosts = self._rehost(lost=cluster_watch.leaving, back=cluster_watch.places)
            self.notes = (why, *hosts)
            return True
        if resizer.is_wanted and _stopped_early(gmis, resizer.is_shrinking):
            self.notes = (resizer.change(), *resizer.notes)
            return True
        return False

    def _notes_on(self, error: GmiDrlError, job: Job) -> Sequence[str]:
        """Turns back to an earlier layout after an error, or raises; returns notes.

        `job` is what was trained by when it was raised.
        """
        assert self.policies is not None
        if isinstance(error, GmiDied):
            ending = exit_text(error.exit_code, error.signal)
            death_count = len(error.deaths)
            self.policies.died(error.gmi_id, death_count, "raised" if error.error else ending)
            self.policies.flush()
        if isinstance(error, CallbackError):  # says nothing of the layout
            raise error
        if self.cluster is not None and (ranks := self.cluster.untried):
            host_lost = HostLost(f"a host that was taken in again does not train: {error}")
            host_lost.ranks = ranks
            return self._drop_hosts(host_lost)
        if self.job is not job:  # the GMIs had made room; only their clean-up failed
            return (*self.notes, str(error))
        return (self.resizer.undo(error), *self.resizer.notes)

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
        change = self.resizer.rehost(self.cluster.hosts)
        hosts_change = f"{hosts_before} before, {counted(len(self.cluster.hosts), 'host')} now"
        return (f"{hosts_change}; {change}", *self.resizer.notes)

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


def _warn(screen: RunView, text: str) -> None:
    screen.show({"kind": "warning", "message": text})


def _stopped_early(gmis: Sequence[Any], is_shrinking: bool) -> bool:
    """Tells whether GMIs have stopped as they were asked to, and not at the end of the run.

    GMIs that have lost peers may end without an answer; while the run shrinks, none need answer.
    """
    flags = [gmi["stopped"] for gmi in gmis if isinstance(gmi, dict) and "stopped" in gmi]
    return any(flags) or (is_shrinking and not flags)


def _watch(job: Job, records: _Records, restarts: Restarts, resizer: Resizer) -> bool:
    """Shows records until every GMI is done; True if it was asked to stop before that.

    A resize lets the iteration in flight end, too, however long that takes.

    Before all GMIs are set up there is nothing to save, and Ctrl-C (or SIGTERM, or a closed
    terminal) ends everything. After that the first lets the iteration in flight end and a
    checkpoint be written; the second, or a role that does not end in time, ends everything.
    """
    asked_s: float | None = None
    grace_s = 0.0
    gang, screen = records.gang, records.screen
    start = Start(job.tally.open(), job.layout)
    watchdog = Watchdog(gang, job.tally.open(), job.config.run.hang_timeout_s)
    gang.start("run")
    with every_signal_counts():
        while True:
            try:
                done = gang.wait(_POLL)
                start.look()
                watchdog.look()
                records.show(done)
                for watch in records.watches:
                    watch.tick(gang)
                for message in restarts.news():
                    _warn(screen, message)
                if asked_s is None and (message := resizer.lose(gang)):
                    _warn(screen, message)
                    done = False  # the survivors are told, and then answer
                if start.look() and not done and asked_s is None and resizer.look():
                    gang.request_stop()
                if done:
                    return asked_s is not None
                if asked_s is not None and time.monotonic() - asked_s > grace_s:
                    raise KeyboardInterrupt  # a role that does not ask stop_requested()
            except KeyboardInterrupt:
                if asked_s is not None or gang.is_stopped:
                    raise
                if not start.look():
                    gang.request_stop()  # or leaving the gang would wait for them
                    raise
                asked_s, grace_s = time.monotonic(), records.grace_s()
                resizer.give_up("the run was stopped")
                gang.request_stop()
                message = f"stopping after this iteration, in {grace_s:.0f} s at the latest"
                _warn(screen, f"{message}; once more stops at once")


def _take_records(gang: Gang) -> list[tuple[int, Any]]:
    """Returns what GMIs have reported since the last call."""
    try:
        return gang.records()
    except runtime.SerializationError as error:  # of one record; the others come next time
        return [(0, {"kind": "warning", "message": str(error)})]


@contextmanager
def _keeping_lineage(gang: Gang, policies: PolicyLog) -> Iterator[Gang]:
    """Yields the gang; records all lineage that it has reported once it has ended."""
    try:
        with gang:
            yield gang
    finally:
        for _, record in _take_records(gang):
            if isinstance(record, dict):
                policies.show(record)
        policies.flush()


@dataclass
class _Records:
    """Shows what the GMIs of a gang report, and keeps the last iteration in `last`."""

    gang: Gang
    screen: RunView
    serving: ServingMetrics
    watches: Sequence[Watch]
    last: dict[str, Any]
    _shown_s: float = field(default_factory=time.monotonic)  # when an iteration was shown last
    _longest_s: float = 0.0  # between two of them; 0: none has ended yet

    def grace_s(self) -> float:
        """Returns how long the iteration in flight, and its checkpoint, may take from now on."""
        longest_s = self._longest_s and max(self._longest_s, time.monotonic() - self._shown_s)
        return _GRACE.total_seconds() + _ITERATIONS * longest_s

    def show(self, done: bool = False) -> None:
        """Shows what has come since the last call; `done`: nothing more comes of serving."""
        records = [
            record
            for _, report in _take_records(self.gang)
            for record in (report, self.serving.take(report))
            if record is not None
        ]
        if done:
            records.append(self.serving.line())
        for record in records:
            for watch in self.watches if isinstance(record, dict) else ():
                watch.show(record)
            if is_for_view(record):
                if record["kind"] == "iteration":
                    now_s = time.monotonic()
                    self._longest_s = max(self._longest_s, now_s - self._shown_s)
                    self._shown_s = now_s
                    self.last.clear()
                    self.last.update(record)
                self.screen.show(record)
