"""Hosts of a faked Ray cluster whose agents answer by a script, and launches on them."""

import os
import pickle
from contextlib import contextmanager
from typing import ClassVar

import cloudpickle

import fake_ray
import gmi_drl
from fake_ray import FakeHost
from gmi_drl.comm.hosts import Endpoint
from gmi_drl.gmi.usage.processes import host_memory
from gmi_drl.launcher.hosts import cluster as clusters
from gmi_drl.launcher.hosts.agent import NodeAgent
from gmi_drl.launcher.hosts.messages import HostPart, HostsError, Report
from gmi_drl.placement import Topology, load_config
from gmi_drl.roles.role import heirs
from gmi_drl.roles.role.host import COUNTERS

CORE = min(os.sched_getaffinity(0))


class Instant(NodeAgent):
    """An agent that starts no launcher, and knows the devices at once."""

    topology = Topology.from_cores([CORE])

    def __init__(self, devices):
        pass

    def tell(self, message):
        pass

    def talk(self, orders):
        return [cloudpickle.dumps(self.report(orders))]

    def report(self, orders):
        """Returns what it answers to orders."""
        return Report(topology=self.topology, memory=host_memory())

    def end(self):
        pass


def config(address, **cluster):
    """Returns that of a launch by one core of each host of the cluster at an address."""
    return {
        "version": 1,
        "env": {"id": "CartPole-v1", "num_env": 8},
        "hardware": {"backend": "cpu", "cores": [CORE]},
        "cluster": {"address": address, "trusted": True, **cluster},
    }


@contextmanager
def three_hosts(monkeypatch, agent=Instant, **cluster):
    """Yields three hosts, and a config for them."""
    monkeypatch.setattr(clusters, "NodeAgent", agent)
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    with fake_ray.cluster(*hosts) as address:
        yield hosts, config(address, **{"hosts": 3, "wait_s": 10, **cluster})


@contextmanager
def joined(monkeypatch, **cluster):
    """Yields three hosts, and the cluster that a launch has of them."""
    with (
        three_hosts(monkeypatch, **cluster) as (hosts, given),
        clusters.joined(load_config(given)) as found,
    ):
        yield hosts, found


def addresses(found):
    """Lists those of the hosts of a cluster, by their rank."""
    return [host.facts.address for host in found.hosts]


class Scripted(Instant):
    """An agent whose GMIs train by a script; those of a host in `broken` cannot."""

    broken: ClassVar[set] = set()
    killed: ClassVar[set] = set()  # hosts whose launchers are, once they train
    closes = True

    def __init__(self, devices):
        self.part, self.iteration, self.is_done = None, 0, False
        self.snapshot = 0  # the counter of its GMIs

    def tell(self, message):
        told = pickle.loads(message)
        self.part = told if isinstance(told, HostPart) else None

    def leaves(self, orders):
        """Tells whether its GMIs end."""
        return orders.stop or orders.heir is not None

    def report(self, orders):
        if orders.end:
            return Report(ended="as it was told to")
        if self.part is None:
            return super().report(orders)
        host = self.part.host
        gmis = self.part.run.layout.on_host(host)
        gmi_ids, report = [gmi.gmi_id for gmi in gmis], Report()
        if any("trainer" in gmi.roles for gmi in gmis):
            report.endpoint = Endpoint(1, self.part.addresses[host], 1, f"key {host}")
        if self.part.addresses[host] in self.broken:
            report.error = HostsError("its GPU is broken")
        leaves = self.leaves(orders)
        row = {"lives": 1, "set_up": 2, "snapshot": self.snapshot}
        report.rows = dict.fromkeys(gmi_ids, tuple(row.get(name, 0) for name in COUNTERS))
        self.iteration += 1
        if not self.broken.intersection(self.part.addresses) and host == 0:
            record = {
                "kind": "iteration", "iteration": self.iteration, "steps": self.iteration,
                "steps_per_s": 1.0, "return_mean": 0.0,
                "gmi_seconds": [{} for _ in self.part.addresses],
            }  # fmt: skip
            report.records = [(0, record)]
        if leaves and not self.is_done:
            self.is_done = True
            answer = {"iteration": self.iteration, "steps": self.iteration, "stopped": True}
            report.results = [dict.fromkeys(gmi_ids, answer)]
        if self.part.addresses[host] in self.killed:
            self.killed.remove(self.part.addresses[host])
            return Report(ended="its launcher was killed by SIGKILL")
        if orders.calls == ("close",) and self.closes:
            report.results.append({gmi_id: [] for gmi_id in gmi_ids})
        return report


class Leaving(Scripted):
    """Agents whose GMIs leave as a host is lost, as those of a real one do.

    Those of `empty` hosts, by rank, hold nothing that could be saved. Of the others the heir saves
    after `late_talks`, unless its host is in `mortal`: that is lost as soon as it is the heir.
    """

    empty: ClassVar[set] = set()
    mortal: ClassVar[set] = set()
    late_talks = 0
    saved: ClassVar[list] = []  # the hosts that have

    def leaves(self, orders):
        if orders.heir is None:
            return orders.stop
        host = self.part.host
        (own_gmi,) = self.part.run.layout.on_host(host)
        if host in self.empty:
            return True
        self.snapshot = self.snapshot or heirs.HELD
        if orders.heir == own_gmi.gmi_id and self.snapshot == heirs.HELD:
            if host in self.mortal:
                self.killed.add(self.part.addresses[host])
            elif self.late_talks == 0:
                self.snapshot = heirs.SAVED
                self.saved.append(host)
            else:
                self.late_talks -= 1
        others = [row[COUNTERS.index("snapshot")] for row in orders.rows.values()]
        return heirs.is_saved([self.snapshot, *others])


class Once(gmi_drl.Callback):
    """Ends the run after an iteration."""

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        self.request_stop("it is enough")


def launched(given, folder, *callbacks, **run):
    """Launches a config, to train until a callback ends that; returns the result."""
    run = {"folder": str(folder), "log": [], "eval_episodes": 0, "total_steps": 10**9, **run}
    return gmi_drl.launch({**given, "run": run}, view="plain", callbacks=callbacks)


class Gang:
    """Counts what is asked of it."""

    asked_to_stop, made_room = False, 0

    def make_room(self):
        self.made_room += 1
