"""The gang of all GMIs on several hosts, as the driver of their launch has it.

A thread talks with the agent of each host four times a second, which is the heartbeat of both
sides. It carries records, results and counters to the driver, orders to the hosts, and the
endpoints of their leaders from each to all.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Self

from gmi_drl.comm.hosts import Endpoint, GroupOutcome, Roster, next_roster
from gmi_drl.comm.shm.tally import Tally
from gmi_drl.comm.transports import PeerInfo
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.plan.user_modules import digests_beside
from gmi_drl.launcher.watch.iteration_times import IterationTimes
from gmi_drl.roles.role.heirs import NOBODY, choose_heir
from gmi_drl.roles.role.host import COUNTERS
from gmi_drl.roles.role.job import Job
from gmi_drl.roles.role.readiness import Start

from .cluster import Host
from .crossings import crossings_of
from .messages import BEAT_S, SILENCE_S, HostLost, HostPart, HostsError, Orders, Report

_LOOK_S: Final = 0.05
_END_S: Final = 20.0  # for all hosts to end what they run
_TELL_S: Final = 900.0  # for a host to tell of its links, where nobody watches for what hangs


def parts_of(
    job: Job,
    hosts: Sequence[Host],
    *,
    max_restarts: int,
    traced: frozenset[int],
    started: float,
    keeps_gcs: bool,
) -> list[HostPart]:
    """Returns what each host is told of a launch."""
    assert job.folder is not None
    beside = job.role_folder
    digests = {} if beside is None else digests_beside(job.config, beside)
    return [
        HostPart(
            host=rank,
            addresses=tuple(host.facts.address for host in hosts),
            run=job.run,
            folder=job.folder,
            started=started,
            max_restarts=max_restarts,
            traced=traced,
            keeps_gcs=keeps_gcs,
            digests=digests,
        )
        for rank in range(len(hosts))
    ]


class HostsGang:
    """Has the methods of `gmi.Gang` that a launch needs."""

    def __init__(self, hosts: Sequence[Host], parts: Sequence[HostPart], tally: Tally) -> None:
        """`tally`: the driver's, into which the counters of all hosts are copied."""
        import cloudpickle  # type: ignore[import-untyped]
        import ray

        config = parts[0].run.config
        assert config.cluster is not None
        self._goes_on = config.cluster.on_loss != "fail"
        self._timeout_s, self._hang_s = config.comm.timeout_s, config.run.hang_timeout_s
        self._iteration_times = IterationTimes()
        self._lost: dict[int, str] = {}  # hosts, and how each was lost
        self._give_up_s = 0.0  # when GMIs of others that have not answered are given up
        self._heir: int | None = None  # of those that have lost peers with a host
        self._hosts, self._tally = list(hosts), tally
        by_host = [part.run.layout.on_host(part.host) for part in parts]
        self._own_gmis = [{gmi.gmi_id for gmi in gmis} for gmis in by_host]
        self._trainers = [[g.gmi_id for g in gmis if "trainer" in g.roles] for gmis in by_host]
        self._lock = threading.Lock()
        self._records: list[tuple[int, Any]] = []
        self._restarts: list[tuple[int, Any]] = []
        self._results: list[list[dict[int, Any]]] = [[] for _ in hosts]
        self._calls = [0] * len(hosts)  # of `_methods`, that each host has been sent
        self._methods: list[str] = []
        # Of the leaders, which are on the first hosts; where one host alone trains it has none.
        self._endpoints: list[Endpoint | None] = [None] * sum(map(bool, self._trainers))
        # Of hosts with links to others, and the hosts that are to be told of them.
        layout = parts[0].run.layout
        self._start = Start(tally, layout)
        self._peers: dict[int, PeerInfo | None] = {
            host: None for crossing in crossings_of(layout) for host in crossing.hosts
        }
        self._waits_for_peers = {*self._peers}
        self._roster: Roster | None = None
        self._sent_rosters: list[Roster | None] = [None] * len(hosts)
        self._outcome: GroupOutcome | None = None  # of the GMIs' work, once one has finished
        self._rows: dict[int, tuple[int, ...]] = {}
        self._failure: BaseException | None = None
        self._ended = [False] * len(hosts)
        self._end = self._room = False
        self.asked_to_stop = self._stopped = False
        for rank, (host, part) in enumerate(zip(hosts, parts, strict=True)):
            try:
                ray.get(host.agent.tell.remote(cloudpickle.dumps(part)), timeout=SILENCE_S)
            except (ray.exceptions.RayError, TimeoutError) as error:
                self._lost[rank] = f"it cannot be told what to run ({error})"
                raise self._loss() from error
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)
        self._thread.start()

    def start(self, method: str) -> None:
        """Calls `method` on every GMI and returns at once; then `wait`."""
        self.check()
        self._methods.append(method)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until every GMI has answered; False when `timeout` passes before that."""
        deadline_s = None if timeout is None else time.monotonic() + timeout.total_seconds()
        while True:
            self.check()
            if all(len(results) >= len(self._methods) for results in self._results):
                return True
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False
            time.sleep(_LOOK_S)

    def results(self) -> dict[int, Any]:
        """Returns each GMI's answer by gmi_id, in the layout's order, after `wait` was True."""
        last = len(self._methods) - 1
        merged: dict[int, Any] = {}
        for results in self._results:
            merged |= results[last]
        return dict(sorted(merged.items()))

    def check(self) -> None:
        """Raises what ended a host's part of the run; returns at once."""
        if self._failure is not None:
            self._stopped = True
            raise self._failure
        if self._stopped:
            raise RuntimeError("the gang is stopped. Make a new one.")

    def records(self) -> list[tuple[int, Any]]:
        """Returns the (gmi_id, record) that GMIs have emitted since the last call."""
        with self._lock:
            records, self._records = self._records, []
        return records

    def restarts(self) -> list[tuple[int, Any]]:
        """Returns the deaths since the last call after which a GMI was started again."""
        with self._lock:
            restarts, self._restarts = self._restarts, []
        return restarts

    def at_work(self) -> dict[int, int | None]:
        """Returns none: the launcher of each host watches over its GMIs."""
        return {}

    def end(self, gmi_id: int, why: str) -> None:
        """Raises RuntimeError, as only the launcher of a host can end its GMIs."""
        raise RuntimeError(f"GMI {gmi_id} is on another host.")

    def write_stacks(self, gmi_id: int) -> bool:
        """Returns False, as only the launcher of a host can write the stacks of its GMIs."""
        return False

    @property
    def is_stopped(self) -> bool:
        """Tells whether no more can be asked of it."""
        return self._stopped

    def request_stop(self) -> None:
        """Asks every GMI to come to an end."""
        self.asked_to_stop = True

    def make_room(self) -> None:
        """Asks every GMI to end at a checkpoint, for a gang that goes on from it.

        What is lost meanwhile is lost as at any other time.
        """
        self._room = True

    def kill(self) -> None:
        """Ends all hosts' parts; returns when they have ended, or are out of reach."""
        self._stopped = self._end = True
        self._thread.join(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # The thread.

    def _run(self) -> None:
        """Talks with all agents; what goes wrong with that ends the run."""
        try:
            self._talk()
        except Exception as error:
            self._fail(error)

    def _talk(self) -> None:
        """Talks with all agents until each has ended."""
        import ray

        hosts = range(len(self._hosts))
        pending: dict[Any, int] = {}
        sent_s, answered_s = [0.0] * len(hosts), [time.monotonic()] * len(hosts)
        heard_s = answered_s[:]  # from their launchers, and not only from their agents
        deadline_s: float | None = None
        while not all(self._ended):
            now_s = time.monotonic()
            if self._end:
                deadline_s = deadline_s or now_s + _END_S
                if now_s > deadline_s:
                    return
            self._settle(now_s)
            for host in hosts:
                is_waiting = host in pending.values()
                hang_s = self._hang_s
                if host in self._waits_for_peers:
                    if self._peers[host] is not None:  # its launcher waits for those of others
                        heard_s[host] = now_s
                    hang_s = hang_s or _TELL_S
                if not is_waiting and not self._ended[host] and now_s - sent_s[host] >= BEAT_S:
                    sent_s[host] = now_s
                    pending[self._hosts[host].agent.talk.remote(self._orders(host))] = host
                elif is_waiting and now_s - answered_s[host] > SILENCE_S:
                    self._lose(host, f"it has not answered for {SILENCE_S:g} s")
                elif hang_s is not None and now_s - heard_s[host] > hang_s:
                    self._lose(host, f"its launcher has told nothing for {hang_s:g} s")
            pending = {ref: host for ref, host in pending.items() if not self._ended[host]}
            if not pending:
                time.sleep(_LOOK_S)
                continue
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_LOOK_S)
            for ref in ready:
                host = pending.pop(ref)
                answered_s[host] = time.monotonic()
                try:
                    said = ray.get(ref)
                except ray.exceptions.RayError as error:
                    first_line = str(error).strip().splitlines()[0]
                    self._lose(host, f"its agent is gone ({first_line})")
                    continue
                for report in map(pickle.loads, said):
                    heard_s[host] = answered_s[host] if report.rows else heard_s[host]
                    self._take(host, report)

    def _orders(self, host: int) -> Orders:
        """Returns what a host has to be told now."""
        calls = tuple(self._methods[self._calls[host] :])
        self._calls[host] += len(calls)
        roster = self._roster if self._roster is not self._sent_rosters[host] else None
        self._sent_rosters[host] = self._roster
        own_gmis = self._own_gmis[host]
        peers: tuple[PeerInfo | None, ...] = ()
        if host in self._waits_for_peers and None not in self._peers.values():
            self._waits_for_peers.remove(host)
            peers = tuple(self._peers.get(rank) for rank in range(len(self._hosts)))
        return Orders(
            calls=calls,
            stop=self.asked_to_stop or self._room,
            end=self._end,
            heir=self._heir,
            roster=roster,
            outcome=self._outcome,
            rows={gmi_id: row for gmi_id, row in self._rows.items() if gmi_id not in own_gmis},
            peers=peers,
        )

    def _take(self, host: int, report: Report) -> None:
        """Takes in what a host reports."""
        if report.rows:
            self._rows.update(report.rows)
            for gmi_id, row in report.rows.items():
                for name, value in zip(COUNTERS, row, strict=True):
                    self._tally[gmi_id, name] = value
        if self._start.look():
            self._iteration_times.begin()
        for _, record in report.records:
            if isinstance(record, dict) and record.get("kind") == "iteration":
                self._iteration_times.note()
        with self._lock:
            self._records += report.records
            self._restarts += report.restarts
        self._results[host] += report.results
        if report.peer_info is not None:
            self._peers[host] = report.peer_info
        if report.endpoint is not None and not self._lost:
            self._endpoints[host] = report.endpoint
            if None not in self._endpoints:
                self._roster = next_roster(self._roster, self._endpoints) or self._roster
        self._outcome = self._outcome or report.outcome
        if report.error is not None:
            self._fail(self._named_error(host, report.error))
        if report.ended:
            self._lose(host, report.ended)

    def _named_error(self, host: int, error: BaseException) -> BaseException:
        """Returns the error that ended a host's part, with the host's name."""
        if isinstance(error, GmiDied):
            error.add_note(f"on {self._name(host)}")
            return error
        hosts_error = HostsError(f"{self._name(host)}: {error}")
        hosts_error.__cause__ = error
        return hosts_error

    def _lose(self, host: int, why: str) -> None:
        """Notes that a host is lost; where the run goes on, GMIs of the others save it and end."""
        was_ended, self._ended[host] = self._ended[host], True
        if self._end or was_ended:
            return
        self._lost[host] = why
        trained = bool(self._trainers[host])
        have_begun = None not in self._peers.values()  # else GMIs are not started yet
        have_met = not trained or self._roster is not None
        if not (self._goes_on and have_begun and have_met and self._left()):
            self._fail(self._loss())
            return
        leave_s = max(self._timeout_s, self._iteration_times.grace_s())
        self._give_up_s = time.monotonic() + leave_s
        self._heir = NOBODY if self._heir is None else self._heir
        if not trained:  # all trainers are there, and end together
            self._room = True
            return
        endpoints = [None if h in self._lost else end for h, end in enumerate(self._endpoints)]
        self._roster = next_roster(self._roster, endpoints) or self._roster

    def _left(self) -> list[int]:
        """Returns the GMIs that train, on hosts that are not lost."""
        left = [gmis for host, gmis in enumerate(self._trainers) if not self._ended[host]]
        return [gmi_id for gmis in left for gmi_id in gmis]

    def _settle(self, now_s: float) -> None:
        """Names the heir of a lost host, and fails for that when the others are done or late."""
        if self._heir is not None and not self._end:
            trainers = [gmi_id for gmis in self._trainers for gmi_id in gmis]
            self._heir = choose_heir(self._tally, trainers, self._left(), self._heir)
            late = [
                host
                for host, results in enumerate(self._results)
                if not self._ended[host] and len(results) < len(self._methods)
            ]
            if not late or now_s > self._give_up_s:
                self._fail(self._loss())

    def _loss(self) -> HostLost:
        """Returns the error that tells of all hosts that are lost."""
        losses = "; ".join(f"{self._name(host)}: {why}" for host, why in self._lost.items())
        error = HostLost(f"{losses}. What it ran ends within {SILENCE_S:g} s.")
        error.ranks = () if self.asked_to_stop else tuple(sorted(self._lost))
        return error

    def _fail(self, error: BaseException) -> None:
        """Keeps the first failure, and has all hosts end."""
        self._failure = self._failure or error
        self._end = True

    def _name(self, host: int) -> str:
        return f"host {host}, {self._hosts[host]}"
