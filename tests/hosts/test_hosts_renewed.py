"""Hosts that are lost while a launch starts anew without others, and hosts that come back."""

import json
import os
import pickle
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import pytest

import fake_ray
import gmi_drl
from fake_ray import FakeHost
from gmi_drl.comm.hosts import Endpoint
from gmi_drl.launcher.hosts import cluster as clusters
from gmi_drl.launcher.hosts.agent import NodeAgent
from gmi_drl.launcher.hosts.messages import HostLost, HostPart, HostsError, Report
from gmi_drl.launcher.hosts.returns import ReturnWatch
from gmi_drl.launcher.watch import watchdog
from gmi_drl.placement import Topology, load_config
from gmi_drl.roles.role.host import COUNTERS

CORE = min(os.sched_getaffinity(0))


class Instant(NodeAgent):
    """An agent that starts no launcher, and knows the devices at once."""

    def __init__(self, devices):
        pass

    def tell(self, message):
        pass

    def talk(self, orders):
        return Report(topology=Topology.from_cores([CORE]))

    def end(self):
        pass


@contextmanager
def three_hosts(monkeypatch, agent=Instant, **cluster):
    """Yields three hosts, and a config for them."""
    monkeypatch.setattr(clusters, "NodeAgent", agent)
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    with fake_ray.cluster(*hosts) as address:
        given = {"address": address, "hosts": 3, "trusted": True, "wait_s": 10, **cluster}
        yield (
            hosts,
            {
                "version": 1,
                "env": {"id": "CartPole-v1", "num_env": 8},
                "hardware": {"backend": "cpu", "cores": [CORE]},
                "cluster": given,
            },
        )


@contextmanager
def joined(monkeypatch, **cluster):
    """Yields three hosts, and the cluster that a launch has of them."""
    with (
        three_hosts(monkeypatch, **cluster) as (hosts, config),
        clusters.joined(load_config(config)) as found,
    ):
        yield hosts, found


def addresses(found):
    return [host.facts.address for host in found.hosts]


@pytest.mark.parametrize("what", ["facts", "clock", "tell", "talk"])
def test_a_host_that_is_lost_when_others_start_anew_is_done_without(what, monkeypatch):
    with joined(monkeypatch, on_loss="shrink") as (hosts, found):
        hosts[0].is_lost, hosts[1].lost_at = True, what
        found.renew([0])
        assert addresses(found) == ["127.0.0.4"]


def test_a_host_that_cannot_train_any_more_is_done_without(monkeypatch):
    with joined(monkeypatch, on_loss="shrink") as (hosts, found):
        hosts[0].is_lost, hosts[1].clock_off_s = True, 3600.0
        found.renew([0])
        assert addresses(found) == ["127.0.0.4"]


def test_hosts_that_are_left_are_at_least_so_many(monkeypatch):
    with joined(monkeypatch, on_loss="shrink", hosts_min=2) as (hosts, found):
        hosts[0].is_lost, hosts[1].lost_at = True, "facts"
        with pytest.raises(HostLost) as raised:
            found.renew([0])
    assert str(raised.value) == (
        "cluster.hosts_min=2: 1 host would be left (cluster: an agent could not start (127.0.0.3 "
        "is lost). Install gmi-drl on each host, in the same version.). Go on from the last "
        "checkpoint when there are more."
    )


def test_a_host_that_is_lost_while_others_are_waited_for_is_waited_for_as_well(monkeypatch):
    with joined(monkeypatch, on_loss="wait") as (hosts, found):
        hosts[0].is_lost, hosts[1].lost_at = True, "talk"

        def sleep(_):
            for host in hosts:
                host.is_lost, host.lost_at = False, ""

        clock = SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=sleep)
        monkeypatch.setattr(clusters, "time", clock)
        found.renew([0])
        assert addresses(found) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


def test_a_host_that_answers_again_is_taken_in_three_times(monkeypatch):
    monkeypatch.setattr(clusters, "SILENCE_S", 0.0)
    monkeypatch.setattr(clusters, "BEAT_S", 0.0)
    with joined(monkeypatch, on_loss="shrink") as (hosts, found):
        assert found.places_back() == []  # none is lost
        for _ in range(3):
            hosts[1].is_lost = True
            found.renew([1])
            assert addresses(found) == ["127.0.0.2", "127.0.0.4"]
            assert found.places_back() == []
            hosts[1].is_lost, hosts[1].versions = False, {"torch": "0.1"}
            assert found.places_back() == []  # it could not train with the others
            hosts[1].versions = {}
            assert found.places_back() == [1]
            found.renew(back=[1])
            assert addresses(found) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        found.renew([1])
        assert found.places_back() == []


@pytest.mark.parametrize("on_loss", ["wait", "fail"])
def test_a_host_is_taken_in_again_under_shrink_alone(on_loss, monkeypatch):
    monkeypatch.setattr(clusters, "SILENCE_S", 0.0)
    with joined(monkeypatch, on_loss=on_loss) as (_, found):
        del found.hosts[1]
        assert found.places_back() == []


class Scripted(Instant):
    """An agent whose GMIs train by a script; those of a host in `broken` cannot."""

    broken: ClassVar[set] = set()
    closes = True

    def __init__(self, devices):
        self.part, self.iteration, self.is_done = None, 0, False

    def tell(self, message):
        told = pickle.loads(message)
        self.part = told if isinstance(told, HostPart) else None

    def talk(self, orders):
        if orders.end:
            return Report(ended="as it was told to")
        if self.part is None:
            return super().talk(orders)
        host = self.part.host
        report = Report(endpoint=Endpoint(1, self.part.addresses[host], 1, f"key {host}"))
        if self.part.addresses[host] in self.broken:
            report.error = HostsError("its GPU is broken")
        (gmi,) = self.part.layout.on_host(host)
        row = {"lives": 1, "set_up": 2}
        report.rows = {gmi.gmi_id: tuple(row.get(name, 0) for name in COUNTERS)}
        self.iteration += 1
        if not self.broken.intersection(self.part.addresses) and host == 0:
            record = {
                "kind": "iteration", "iteration": self.iteration, "steps": self.iteration,
                "steps_per_s": 1.0, "return_mean": 0.0,
                "gmi_seconds": [{} for _ in self.part.addresses],
            }  # fmt: skip
            report.records = [(0, record)]
        if (orders.stop or orders.heir is not None) and not self.is_done:
            self.is_done = True
            answer = {"iteration": self.iteration, "steps": self.iteration, "stopped": True}
            report.results = [{gmi.gmi_id: answer}]
        if orders.calls == ("close",) and self.closes:
            report.results.append({gmi.gmi_id: []})
        return report


class Once(gmi_drl.Callback):
    """Ends the run after an iteration."""

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        self.request_stop("it is enough")


class Losses(gmi_drl.Callback):
    """Has hosts be lost and come back, by how many hosts have `trained` so far, gang by gang."""

    def __init__(self, hosts):
        self.hosts, self.trained = hosts, []

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        if iteration > 1:
            return
        self.trained.append(len(metrics["gmi_seconds"]))
        _, second, third = self.hosts
        if self.trained == [3]:
            third.is_lost, second.lost_at = True, "facts"
        elif self.trained == [3, 1]:
            second.is_lost, second.lost_at = False, ""
            Scripted.broken.add(second.address)
        elif self.trained == [3, 1, 1]:
            Scripted.broken.clear()
        else:
            self.request_stop("it is enough")


def launched(config, folder, callback):
    """Launches it, to train until the callback ends it."""
    run = {"folder": str(folder), "log": [], "eval_episodes": 0, "total_steps": 10**9}
    return gmi_drl.launch({**config, "run": run}, view="plain", callbacks=[callback])


class Gang:
    """Counts what is asked of it."""

    asked_to_stop, made_room = False, 0

    def make_room(self):
        self.made_room += 1


def test_gmis_make_room_once_and_not_before_they_train():
    class Cluster:
        def places_back(self):
            return [2]

        def is_trained_on(self):
            pass

    gang, watch = Gang(), ReturnWatch(Cluster())
    watch.tick(gang)
    assert (gang.made_room, watch.places) == (0, [])
    watch.show({"kind": "iteration"})
    gang.asked_to_stop = True  # as the run is to end
    watch.tick(gang)
    assert gang.made_room == 0
    gang.asked_to_stop = False
    watch.tick(gang)
    watch.tick(gang)
    assert (gang.made_room, watch.places) == (1, [2])


@pytest.mark.slow
def test_a_run_goes_on_over_losses_and_with_hosts_that_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "SILENCE_S", 1.0)
    with three_hosts(monkeypatch, agent=Scripted, on_loss="shrink") as (hosts, config):
        losses = Losses(hosts)
        result = launched(config, tmp_path, losses)
    # One is lost, and another one at the restart; that comes back, and cannot train at first.
    assert losses.trained == [3, 1, 1, 2]
    assert result.state == "stopped"
    assert json.loads((result.folder / "run.json").read_text())["epoch"] == 5


def test_gmis_that_do_not_close_hold_up_a_run_for_some_time_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watchdog, "_CLOSING_S", 0.1)
    monkeypatch.setattr(Scripted, "closes", False)
    with three_hosts(monkeypatch, agent=Scripted) as (_, config):
        assert launched(config, tmp_path, Once()).state == "stopped"
    told = "".join(capsys.readouterr())
    assert "a gmi on another host: close() of the environments has not returned after 0.1 s" in told
