"""The launcher on a host: starts and watches the GMIs of that host, as the driver orders.

It ends, and with it its GMIs, when its agent is gone or the driver is silent for ten seconds, so
that a host that was cut off does not go on as a second writer.
"""

from __future__ import annotations

import os
import pickle
import queue
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.comm import GroupSpec, create_group
from gmi_drl.comm.hosts import HostSpec, read_endpoint, read_outcome, write_outcome, write_roster
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.comm.transports import PeerInfo
from gmi_drl.gmi import Gang, lease
from gmi_drl.gmi.usage.processes import host_memory
from gmi_drl.launcher.colocated_runs import at_work, overlaps
from gmi_drl.launcher.folder.run_folder import keep_gcs_in, lock_of
from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.plan.planning import find_devices, reduction_of
from gmi_drl.launcher.plan.user_modules import other_files
from gmi_drl.launcher.plan.wiring import names_of, wires_of
from gmi_drl.launcher.start.preload import preload_of
from gmi_drl.launcher.watch.watchdog import Watchdog
from gmi_drl.placement import Config
from gmi_drl.roles.loading import importable
from gmi_drl.roles.role.host import COUNTERS, GmiHost
from gmi_drl.roles.role.job import HEIR, Job

from .agent import same_folder
from .crossings import Crossings, PolicyRelays
from .messages import SILENCE_S, HostPart, HostsError, Orders, Report
from .stores import store_of_host

_POLL: Final = timedelta(milliseconds=50)
_REPORT_S: Final = 0.2
_LEAVE_S: Final = 15.0  # to end in, when nobody is there any more
_SHARED_S: Final = 10.0  # for the run's folder to appear
_MOST_FILES: Final = 65_536  # descriptors of a process: more than any needs, and few enough to scan


class _Driver:
    """Receives the driver's orders, and knows when it was last heard."""

    def __init__(self, orders: Connection, reports: Connection) -> None:
        self._in, self._out = orders, reports
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._early: list[Orders] = []  # that have come before they could be followed
        self._heard_s = time.monotonic()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                data = self._in.recv_bytes()
                self._heard_s = time.monotonic()
                self.messages.put(data)
        except (EOFError, OSError):
            self._heard_s = float("-inf")

    def _watch(self) -> None:
        """Ends this process when nobody speaks to it."""
        while time.monotonic() - self._heard_s < SILENCE_S:
            time.sleep(0.1)
        if self._is_over:
            return
        silence = f"nobody has spoken to the launcher of this host for {SILENCE_S:g} s"
        why = silence if self._heard_s > 0 else "the agent of this host is gone"
        print(f"{why}: it ends", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)  # KeyboardInterrupt in the main thread: all is undone
        time.sleep(_LEAVE_S)
        os._exit(1)  # GMIs end with it

    def next(self) -> Any:
        """Waits for the next message that is no order, and returns it; None on the order to end."""
        while isinstance(message := pickle.loads(self.messages.get()), Orders):
            if message.end:
                return None
        return message

    def peers(self) -> tuple[PeerInfo | None, ...] | None:
        """Waits for what all hosts tell of their links; None on the order to end."""
        while True:
            orders: Orders = pickle.loads(self.messages.get())
            self._early.append(orders)
            if orders.peers or orders.end:
                return orders.peers or None

    def orders(self) -> list[Orders]:
        """Returns what has come since the last call; never waits."""
        orders, self._early = self._early, []
        while not self.messages.empty():
            orders.append(pickle.loads(self.messages.get()))
        return orders

    def report(self, report: Report) -> None:
        import cloudpickle  # type: ignore[import-untyped]

        try:
            data = cloudpickle.dumps(report)  # classes of __main__ by value: nobody can import them
        except Exception as error:  # a result, or an exception, of the user's
            data = pickle.dumps(Report(error=HostsError(f"a host's report: {error}")))
        self._out.send_bytes(data)

    def over(self) -> None:
        """Lets this process end by itself."""
        self._is_over = True


def main() -> None:
    """Does what the driver orders, and reports how it ended."""
    driver = _Driver(
        Connection(os.dup(0), writable=False), Connection(int(sys.argv[1]), readable=False)
    )
    os.set_inheritable(int(sys.argv[1]), False)
    _raise_file_limit()
    with terminate_as_interrupt():
        try:
            config: Config | None = driver.next()
            if config is None:
                return
            lease.sweep()  # before devices are looked at: it may take MIG instances away
            driver.report(Report(topology=find_devices(config), memory=host_memory()))
            part: HostPart | None = driver.next()
            if part is None:
                return
            _run(part, driver)
        except KeyboardInterrupt:
            return
        except Exception as error:
            driver.report(Report(error=error))
        finally:
            driver.over()
            if runtime.is_initialized():
                runtime.shutdown()


def _raise_file_limit() -> None:
    """Lets this process and its GMIs have as many descriptors as the system allows.

    An end of a link between hosts has ten, and a trainer an end for each agent; shells allow 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def _run(part: HostPart, driver: _Driver) -> None:
    """Runs the GMIs of this host until the driver has all it wants."""
    this_host = f"host {part.host} ({part.addresses[part.host]})"
    if not same_folder(part.folder, part.started, _SHARED_S):
        raise HostsError(
            value=f"run.folder={part.folder}",
            rule=f"{this_host} does not see what the driver has written there",
            remedy="Put it on a file system that all hosts share, at the same path.",
        )
    if differing := other_files(part.digests, part.run.role_folder):
        raise HostsError(
            value=f"{part.run.role_folder}/{differing[0]}",
            rule=f"{this_host} has none, or another one than the launching program",
            remedy="Copy it to all hosts, or launch from a folder that they share.",
        )
    assert part.run.config.cluster is not None
    interfaces = [name for _, name in socket.if_nameindex()]
    if (interface := part.run.config.cluster.interface) and interface not in interfaces:
        raise HostsError(
            value=f"cluster.interface={interface}",
            rule=f"{this_host} has {', '.join(interfaces)}",
            remedy="Name one that all hosts have, or none.",
        )
    if not runtime.is_initialized():
        runtime.init(preload_of(part.run.config))
    if part.keeps_gcs:
        keep_gcs_in(store_of_host(part.folder, part.run.epoch, part.host))
    layout = part.run.layout.of_host(part.host)
    with ExitStack() as stack:
        stack.enter_context(importable(part.run.role_folder))
        stack.enter_context(at_work(layout.topology))
        address, sockets = part.addresses[part.host], runtime.run_directory()
        crossings = Crossings(part.run.layout, part.host, address, sockets)
        if crossings.peer_info is not None:
            driver.report(Report(peer_info=crossings.peer_info))
            if (peers := driver.peers()) is None:
                return
            crossings.connect(peers)
        job = _job(part, sockets, crossings)
        log = part.folder / "logs" / f"policies_host{part.host}.log"
        first_gmi = part.run.layout.on_host(part.host)[0].gmi_id
        policies = PolicyRelays(crossings, job.wires.board, job.tally, first_gmi, log)
        gang = stack.enter_context(
            Gang(
                part.run.layout,
                GmiHost,
                lambda spec: (spec.gmi_id, job.of_gmi(spec.gmi_id, part.traced)),
                logs=part.folder / "logs",
                max_restarts=part.max_restarts,
                host=part.host,
            )
        )
        notes = [(0, {"kind": "warning", "message": line}) for line in overlaps(layout.topology)]
        driver.report(Report(records=notes))
        try:
            _serve(part, job, gang, policies, driver)
        finally:  # also of GMIs that have died; of a runtime that is gone nothing is left
            with suppress(OSError, runtime.ActorRuntimeError):
                driver.report(Report(records=gang.records()))


def _job(part: HostPart, sockets: Path, crossings: Crossings) -> Job:
    """Makes what GMIs of this host share."""
    layout = part.run.layout
    folder = sockets / "hosts"
    folder.mkdir(mode=0o700)
    has_trainers = any("trainer" in gmi.roles for gmi in layout.on_host(part.host))
    return Job(
        **vars(part.run),
        group=_group(part, sockets, folder) if has_trainers else None,
        sockets=sockets,
        tally=create_tally(len(layout.gmis), COUNTERS),
        wires=wires_of(layout, sockets, part.host, crossings.experience),
        lock=lock_of(part.folder),
    )


def _group(part: HostPart, sockets: Path, folder: Path) -> GroupSpec:
    """Makes the group of this host's trainers, with those of other hosts if these have any."""
    layout, config = part.run.layout, part.run.config
    names, trainers = names_of(layout), layout.holding("trainer")
    by_host = [
        [gmi for gmi in trainers if layout.host_of(gmi.gmi_id) == host]
        for host in range(layout.hosts)
    ]
    own, cluster = by_host[part.host], config.cluster
    members = tuple(tuple(names[gmi.gmi_id] for gmi in gmis) for gmis in by_host if gmis)
    assert cluster is not None
    plan = reduction_of(
        config, layout.of_host(part.host), trainer=part.run.classes[own[0].roles[-1]]
    )
    hosts = HostSpec(
        rank=part.host,  # hosts with trainers are the first ones
        members=members,
        address=part.addresses[part.host],
        folder=folder,
        trusted=cluster.network == "trusted",
        interface=cluster.interface,
        measures=not config.run.deterministic,
    )
    return create_group(
        members[part.host],
        [gmi.gpu_id for gmi in own],
        strategy=plan.strategy,
        wire=config.comm.wire,
        directory=sockets,
        hosts=hosts if len(members) > 1 else None,
    )


def _serve(part: HostPart, job: Job, gang: Gang, policies: PolicyRelays, driver: _Driver) -> None:
    """Calls methods of the GMIs as ordered, and reports, until it is ordered to end."""
    tally, folder = job.tally.open(), job.sockets / "hosts"
    watchdog = Watchdog(gang, tally, part.run.config.run.hang_timeout_s)
    own_gmis = [gmi.gmi_id for gmi in part.run.layout.on_host(part.host)]
    calls: list[str] = []
    is_busy, reported_s = False, float("-inf")
    while True:
        report = Report()
        for orders in driver.orders():
            if orders.end:
                return
            calls += orders.calls
            if orders.stop and not gang.asked_to_stop:
                gang.request_stop()
            if orders.heir is not None:  # before the roster by which they find out
                for gmi_id in own_gmis:
                    tally[gmi_id, "bereft"] = HEIR if gmi_id == orders.heir else 1
            for gmi_id, row in orders.rows.items():  # by which they know whom to wait for
                for name, value in zip(COUNTERS, row, strict=True):
                    tally[gmi_id, name] = value
            if orders.roster is not None:
                write_roster(folder, orders.roster)
            if orders.outcome is not None:
                write_outcome(folder, orders.outcome)
        if calls and not is_busy:
            gang.start(calls.pop(0))
            is_busy = True
        if is_busy and gang.wait(_POLL):
            report.results.append(gang.results())
            is_busy = False
        elif not is_busy:
            time.sleep(_POLL.total_seconds())
        watchdog.look()
        policies.check()
        report.records, report.restarts = gang.records(), gang.restarts()
        has_news = report.records or report.restarts or report.results
        if has_news or time.monotonic() - reported_s > _REPORT_S:
            reported_s = time.monotonic()
            report.endpoint = read_endpoint(folder)  # before the rows that say who brought it
            report.rows = {
                gmi_id: tuple(tally[gmi_id, name] for name in COUNTERS) for gmi_id in own_gmis
            }
            report.outcome = read_outcome(folder)
            driver.report(report)


if __name__ == "__main__":
    main()
