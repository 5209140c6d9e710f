"""Hosts that are lost while a launch starts anew without others, and hosts that come back."""

import os
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import fake_ray
from fake_ray import FakeHost
from gmi_drl.launcher.hosts import cluster as clusters
from gmi_drl.launcher.hosts.agent import NodeAgent
from gmi_drl.launcher.hosts.messages import HostLost, Report
from gmi_drl.launcher.hosts.returns import ReturnWatch
from gmi_drl.placement import Topology, load_config

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
def three_hosts(monkeypatch, **cluster):
    """Yields three hosts, and the cluster that a launch has of them."""
    monkeypatch.setattr(clusters, "NodeAgent", Instant)
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    with fake_ray.cluster(*hosts) as address:
        given = {"address": address, "hosts": 3, "trusted": True, "wait_s": 10, **cluster}
        config = {
            "version": 1,
            "env": {"id": "CartPole-v1"},
            "hardware": {"backend": "cpu", "cores": [CORE]},
            "cluster": given,
        }
        with clusters.joined(load_config(config)) as found:
            yield hosts, found


def addresses(found):
    return [host.facts.address for host in found.hosts]


@pytest.mark.parametrize("what", ["facts", "clock", "tell", "talk"])
def test_a_host_that_is_lost_when_others_start_anew_is_done_without(what, monkeypatch):
    with three_hosts(monkeypatch, on_loss="shrink") as (hosts, found):
        hosts[0].is_lost, hosts[1].lost_at = True, what
        found.renew([0])
        assert addresses(found) == ["127.0.0.4"]


def test_a_host_that_cannot_train_any_more_is_done_without(monkeypatch):
    with three_hosts(monkeypatch, on_loss="shrink") as (hosts, found):
        hosts[0].is_lost, hosts[1].clock_off_s = True, 3600.0
        found.renew([0])
        assert addresses(found) == ["127.0.0.4"]


def test_hosts_that_are_left_are_at_least_so_many(monkeypatch):
    with three_hosts(monkeypatch, on_loss="shrink", hosts_min=2) as (hosts, found):
        hosts[0].is_lost, hosts[1].lost_at = True, "facts"
        with pytest.raises(HostLost) as raised:
            found.renew([0])
    assert str(raised.value) == (
        "cluster.hosts_min=2: 1 host would be left (cluster: an agent could not start (127.0.0.3 "
        "is lost). Install gmi-drl on each host, in the same version.). Go on from the last "
        "checkpoint when there are more."
    )


def test_a_host_that_is_lost_while_others_are_waited_for_is_waited_for_as_well(monkeypatch):
    with three_hosts(monkeypatch, on_loss="wait") as (hosts, found):
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
    with three_hosts(monkeypatch, on_loss="shrink") as (hosts, found):
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
    with three_hosts(monkeypatch, on_loss=on_loss) as (_, found):
        del found.hosts[1]
        assert found.places_back() == []


class Gang:
    """Counts what is asked of it."""

    asked_to_stop, made_room = False, 0

    def make_room(self):
        self.made_room += 1


def test_gmis_make_room_once_and_not_before_they_train():
    class Cluster:
        def places_back(self):
            return [2]

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
