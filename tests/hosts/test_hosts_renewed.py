"""Hosts that are lost while a launch starts anew, hosts that come back, and a lost head."""

import json
import os
import pickle
import socket
import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

import fake_ray
import gmi_drl
from bodies_tasks import until
from fake_ray import FakeHost
from gmi_drl import runtime
from gmi_drl.comm.hosts import Endpoint
from gmi_drl.gmi.usage.processes import HostMemory, host_memory
from gmi_drl.launcher.hosts import cluster as clusters
from gmi_drl.launcher.hosts import cluster_watch, drains
from gmi_drl.launcher.hosts import head as heads
from gmi_drl.launcher.hosts.agent import NodeAgent
from gmi_drl.launcher.hosts.cluster_watch import ClusterWatch
from gmi_drl.launcher.hosts.gang import HostsGang
from gmi_drl.launcher.hosts.messages import HostLost, HostPart, HostsError, Report
from gmi_drl.launcher.watch import watchdog
from gmi_drl.launcher.watch.policy_log import PolicyLog
from gmi_drl.placement import ConfigError, Device, Layout, Topology, load_config, tcg_ex
from gmi_drl.report.policy_lineage import PolicyReader
from gmi_drl.report.run_state import opened
from gmi_drl.roles.role.host import COUNTERS
from gmi_drl.roles.state.request import is_requested
from gmi_drl.runtime.gcs.gcs import Gcs

CORE = min(os.sched_getaffinity(0))


class Instant(NodeAgent):
    """An agent that starts no launcher, and knows the devices at once."""

    def __init__(self, devices):
        pass

    def tell(self, message):
        pass

    def talk(self, orders):
        return Report(topology=Topology.from_cores([CORE]), memory=host_memory())

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


@pytest.mark.parametrize(
    ("hardware", "gpus", "wanted"),
    [
        ({}, [0, 0], None),
        ({}, [4, 8, 0], 4),
        ({"num_gpus": 2}, [4, 8, 0], 2),
        ({"backend": "cpu"}, [4, 8], None),
        ({"backend": "mps"}, [0, 0], 1),
        ({"backend": "direct", "num_gpus": 2}, [0], 2),
    ],
)
def test_gpus_that_a_backend_needs_are_waited_for(hardware, gpus, wanted):
    given = {
        "version": 1, "env": {"id": "CartPole-v1"}, "hardware": hardware,
        "cluster": {"address": "10.0.0.1:6379", "hosts": 2},
    }  # fmt: skip
    known = [{"Resources": {"CPU": 4.0, "GPU": float(count)}} for count in gpus]
    assert clusters._bundle(load_config(given), known).get("GPU") == wanted


class Late(Instant):
    """An agent that answers when all hosts have been spoken to twice."""

    hosts: ClassVar[list] = []

    def facts(self):
        until(lambda: all(host.asked["tell"] >= 2 for host in self.hosts))
        return super().facts()


def test_hosts_are_spoken_to_while_another_one_starts(monkeypatch):
    with three_hosts(monkeypatch, agent=Late) as (hosts, config):
        monkeypatch.setattr(Late, "hosts", hosts)
        with clusters.joined(load_config(config)) as found:
            assert len(found.hosts) == 3


def test_memory_is_that_of_each_host(tmp_path, monkeypatch):
    class Small(Scripted):
        def talk(self, orders):
            report = super().talk(orders)
            return replace(report, memory=HostMemory(1 << 10, 1 << 10))

    with (
        three_hosts(monkeypatch, agent=Small) as (_, config),
        pytest.raises(ConfigError, match=r"GMI needs .* and the machine has"),
    ):
        launched(config, tmp_path, Once())


@pytest.mark.parametrize("what", ["facts", "clock", "tell", "talk"])
def test_a_host_that_is_lost_when_others_start_anew_is_done_without(what, monkeypatch):
    with joined(monkeypatch, on_loss="shrink") as (hosts, found):
        hosts[0].is_lost, hosts[1].lost_at = True, what
        found.renew([0])
        assert addresses(found) == ["127.0.0.4"]


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_program_whose_own_host_the_cluster_has_lost_starts_nothing_anew(on_loss, monkeypatch):
    with joined(monkeypatch, on_loss=on_loss) as (hosts, found):
        for host in hosts:
            host.is_lost = True
        monkeypatch.setattr(sys.modules["ray"], "nodes", list)
        with pytest.raises(HostLost, match="the cluster has lost it") as raised:
            found.renew([0, 1, 2])
    assert raised.value.ranks == ()


def test_hosts_that_all_are_lost_at_once_and_answer_are_taken_in_three_times(monkeypatch):
    with joined(monkeypatch, on_loss="shrink") as (_, found):  # as this program was held up
        for _ in range(3):
            found.renew([0, 1, 2])
            assert addresses(found) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        with pytest.raises(HostLost, match="0 hosts would be left"):
            found.renew([0, 1, 2])


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

        def sleep(_):  # in place of the wait between two looks at the cluster
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
    killed: ClassVar[set] = set()  # hosts whose launchers are, once they train
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
        if self.part.addresses[host] in self.killed:
            self.killed.remove(self.part.addresses[host])
            return Report(ended="its launcher was killed by SIGKILL")
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


def launched(config, folder, *callbacks, **run):
    """Launches it, to train until a callback ends it."""
    run = {"folder": str(folder), "log": [], "eval_episodes": 0, "total_steps": 10**9, **run}
    return gmi_drl.launch({**config, "run": run}, view="plain", callbacks=callbacks)


class Gang:
    """Counts what is asked of it."""

    asked_to_stop, made_room = False, 0

    def make_room(self):
        self.made_room += 1


def test_gmis_make_room_once_and_not_before_they_train(tmp_path):
    class Cluster:
        head = SimpleNamespace(check=lambda: None)

        def places_back(self):
            return [2]

        def newly_drained(self):
            return []

        def is_trained_on(self):
            pass

    gang, watch = Gang(), ClusterWatch(Cluster(), tmp_path)
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


class AllLost(gmi_drl.Callback):
    """Loses all hosts after the first iteration."""

    def __init__(self, hosts):
        self.hosts = hosts

    def on_iteration(self, iteration, metrics):
        for host in self.hosts:
            host.is_lost = True


@pytest.mark.timeout(60)
def test_a_run_that_has_lost_all_of_its_hosts_ends_and_says_so(tmp_path, monkeypatch):
    with (
        three_hosts(monkeypatch, agent=Scripted, on_loss="shrink") as (hosts, config),
        pytest.raises(HostLost, match=r"cluster\.hosts_min=1: 0 hosts would be left"),
    ):
        launched(config, tmp_path, AllLost(hosts))


@pytest.mark.timeout(60)
def test_what_goes_wrong_while_hosts_are_talked_with_ends_the_run(tmp_path, monkeypatch):
    def take(gang, host, report):
        raise ValueError("such a report is unknown")

    monkeypatch.setattr(HostsGang, "_take", take)
    with (
        three_hosts(monkeypatch, agent=Scripted) as (_, config),
        pytest.raises(ValueError, match="such a report is unknown"),
    ):
        launched(config, tmp_path)


class LostHead(gmi_drl.Callback):
    """Has the head of the cluster be gone after the first iteration."""

    def __init__(self, address, host=None):
        self.address, self.host = address, host

    def on_iteration(self, iteration, metrics):
        fake_ray.lose_head(self.address)
        if self.host is not None:
            self.host.is_lost = True


@pytest.mark.parametrize("with_it", [None, 0], ids=["alone", "with a host"])
def test_a_run_whose_head_is_gone_ends_and_says_so(tmp_path, monkeypatch, with_it):
    monkeypatch.setattr(heads, "SILENCE_S", 0.3)
    monkeypatch.setattr(heads, "_ASK_S", 0.1)
    asked = []
    monkeypatch.setattr(Scripted, "end", lambda self: asked.append(self))
    with three_hosts(monkeypatch, agent=Scripted, on_loss="shrink") as (hosts, config):
        address = config["cluster"]["address"]
        host = None if with_it is None else hosts[with_it]
        with pytest.raises(HostLost) as raised:
            launched(config, tmp_path, LostHead(address, host))
    assert str(raised.value) == (
        f"cluster.address={address}: the head of the Ray cluster has not answered there for 0.3 s. "
        "Start a cluster, and go on from the last checkpoint; --set cluster.address=... gives "
        "another address."
    )
    (state,) = tmp_path.glob("*/*/run.json")
    assert json.loads(state.read_text())["state"] == "failed"
    assert asked == []  # Ray would wait for the head until it ends the program
    names = [thread.name for thread in threading.enumerate()]
    assert "drains" not in names  # for a question without an end, Ray ends the program as well


def test_a_run_that_ends_when_the_head_is_gone_asks_nothing_of_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Scripted, "end", lambda self: asked.append(self))
    with three_hosts(monkeypatch, agent=Scripted) as (_, config):
        lost = LostHead(config["cluster"]["address"])
        assert launched(config, tmp_path, lost, Once()).state == "stopped"
    assert asked == []


def test_gmis_save_what_they_have_when_the_head_is_gone_and_not_for_long(monkeypatch, tmp_path):
    def gone():
        raise HostLost("it is gone")

    cluster = SimpleNamespace(head=SimpleNamespace(check=gone), is_trained_on=lambda: None)
    early = ClusterWatch(cluster, tmp_path)
    with pytest.raises(HostLost, match="it is gone"):
        early.tick(Gang())  # there is nothing to save
    gang, watch = Gang(), ClusterWatch(cluster, tmp_path)
    watch.show({"kind": "iteration"})
    watch.tick(gang)
    watch.tick(gang)
    assert (gang.made_room, watch.wants_room) == (1, True)
    monkeypatch.setattr(cluster_watch, "_LEAVE_S", -1.0)
    with pytest.raises(HostLost, match="it is gone"):
        watch.tick(gang)


@pytest.mark.parametrize("at", ["127.0.0.1", "::1"])
def test_a_head_answers_by_the_address_that_ray_prints(at):
    try:
        server = fake_ray.Head(at)
    except OSError:
        pytest.skip(f"this machine has no {at}")
    with server:
        port = server.server_address[1]
        assert heads.RayHead(f"[{at}]:{port}" if ":" in at else f"{at}:{port}").answers()


def test_a_head_that_answers_again_is_not_gone(monkeypatch):
    monkeypatch.setattr(heads, "_ASK_S", -1.0)
    with fake_ray.Head() as server:
        port = server.server_address[1]
        head = heads.RayHead(f"127.0.0.1:{port}")
        head.check()
    monkeypatch.setattr(heads, "SILENCE_S", 1000.0)
    head.check()
    with fake_ray.Head(port=port):
        head.check()
    monkeypatch.setattr(heads, "SILENCE_S", 0.0)
    with pytest.raises(HostLost, match="has not answered"):
        until(lambda: head.check())  # anew from here on


def test_a_head_that_hangs_is_connected_to_and_does_not_answer(monkeypatch):
    monkeypatch.setattr(heads, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # nobody takes what comes
        head = heads.RayHead(f"127.0.0.1:{server.getsockname()[1]}")
        assert not head.answers()
        server.accept()[0].close()
        monkeypatch.setattr(heads, "_ANSWER_S", 30.0)
        hung_up = threading.Thread(target=lambda: server.accept()[0].close())
        hung_up.start()
        assert head.answers()  # a process that runs has hung up
        hung_up.join()


class Subscriber:
    """Ray's: `close` waits for the head's answer, and another one returns at once."""

    def __init__(self):
        self.is_closed, self.answered = False, threading.Event()

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            self.answered.wait()


@pytest.mark.timeout(60)
def test_a_cluster_whose_head_hangs_is_left(monkeypatch):
    errors, logs = subscribers = Subscriber(), Subscriber()
    worker = SimpleNamespace(gcs_error_subscriber=errors, gcs_log_subscriber=logs)
    left = []

    def shutdown():
        for subscriber in subscribers:
            subscriber.close()
        left.append(True)

    with fake_ray.cluster():
        ray = sys.modules["ray"]
        private = SimpleNamespace(worker=SimpleNamespace(global_worker=worker))
        monkeypatch.setattr(ray, "_private", private, raising=False)
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "shutdown", shutdown)
        from gmi_drl.runtime.engines.ray import nodes

        nodes.leave()
    assert left == [True]
    for subscriber in subscribers:
        subscriber.answered.set()  # what waits for it ends


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


class Killed(gmi_drl.Callback):
    """Has the launcher of the third host be killed; ends the run when two train, or soon."""

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        self.trained = len(metrics["gmi_seconds"])
        if iteration == 1 and self.trained == 3:
            Scripted.killed.add("127.0.0.4")
        elif self.trained == 2 or iteration == 40:
            self.request_stop("it is enough")


def test_a_host_whose_launcher_alone_is_killed_is_lost(tmp_path, monkeypatch, capsys):
    killed = Killed()
    with three_hosts(monkeypatch, agent=Scripted, on_loss="shrink") as (_, config):
        assert launched(config, tmp_path, killed).state == "stopped"
    assert killed.trained == 2
    told = "".join(capsys.readouterr())
    assert "its launcher was killed by SIGKILL" in told


class Silent(Scripted):
    """Agents of which that of the third host passes on nothing from its launcher after a while."""

    def talk(self, orders):
        report = super().talk(orders)
        if (
            self.part is not None
            and self.part.host == 2
            and self.iteration > 3
            and not report.ended
        ):
            return Report()
        return report


def test_a_host_whose_launcher_hangs_is_lost(tmp_path, monkeypatch):
    with (
        three_hosts(monkeypatch, agent=Silent) as (_, config),
        pytest.raises(HostLost, match=r"host 2, .* its launcher has told nothing for 2 s"),
    ):
        launched(config, tmp_path, hang_timeout_s=2.0)


def version(number):
    """What a GMI tells of a version of the policy."""
    return {
        "generation": 0, "version": number, "updates": number, "steps": number, "lag": 0,
        "experience": "[]", "replay": "", "made_s": 1.0,
    }  # fmt: skip


BRANCH = {
    "kind": "branch", "generation": 0, "version": 0, "board": -1, "restored": "",
    "optimizer": "all_reduce, PPO", "began_s": 1.0, "last": None,
}  # fmt: skip


class Telling(Scripted):
    """Hosts of which the first passes on no lineage, and the others what they know at their end."""

    def talk(self, orders):
        report = super().talk(orders)
        if self.part is not None and self.part.host > 0 and (orders.end or report.ended):
            told = [{"kind": "lineage", "lineage": version(number)} for number in (1, 2, 3)]
            report.records = [(self.part.host, record) for record in (BRANCH, *told)]
        return report


def test_lineage_that_one_host_has_not_passed_on_is_told_by_the_others(tmp_path, monkeypatch):
    with three_hosts(monkeypatch, agent=Telling) as (_, config):
        folder = launched(config, tmp_path, Once()).folder
    with opened(folder / "gcs.sqlite") as store:
        known = [policy.version.number for policy in PolicyReader(store).chain()]
    assert known == [1, 2, 3]


class OnGpus(Scripted):
    """An agent of a host with a GPU, or two, of which the ids begin with `kind`."""

    kind, count = "old", 1

    def talk(self, orders):
        report = super().talk(orders)
        if report.topology is not None:
            rows = range(self.count)
            devices = [Device(i, "gpu", "A100", (CORE,), f"GPU-{self.kind}{i}") for i in rows]
            report.topology = Topology(
                tuple(devices),
                tuple(tuple("" if i == j else "NVLink" for j in rows) for i in rows),
                tuple(tuple(i != j for j in rows) for i in rows),
            )
        return report


def test_a_run_goes_on_on_hosts_with_other_gpus_and_not_with_more(tmp_path, monkeypatch):
    def resumed():
        gmi_drl.launch(resume=folder, view="plain", callbacks=[Once()])
        text = (folder / "layout.json").read_text()
        return [device.uuid for device in Layout.from_json(text).topology.devices]

    with three_hosts(monkeypatch, agent=OnGpus) as (_, config):
        folder = launched({**config, "hardware": {"backend": "direct"}}, tmp_path, Once()).folder
        assert resumed() == ["GPU-old0"] * 3
        monkeypatch.setattr(OnGpus, "kind", "new")
        assert resumed() == ["GPU-new0"] * 3
        monkeypatch.setattr(OnGpus, "count", 2)
        with pytest.raises(ConfigError) as raised:
            resumed()
    assert (
        "cluster.hosts=3; they have 2 and 2 and 2 devices, for other GMIs than those of the 1 and "
        "1 and 1 it has begun on. Give it hosts with as many devices each, or begin a new run."
    ) in str(raised.value)


def test_stores_of_hosts_stay_where_that_of_their_run_cannot_be_opened(tmp_path, monkeypatch):
    with three_hosts(monkeypatch, agent=Scripted) as (_, config):
        folder = launched(config, tmp_path, Once()).folder
        with closing(sqlite3.connect(folder / "gcs.sqlite")) as store:
            store.execute("PRAGMA user_version=99")
        left = folder / "hosts" / "1-2.sqlite"
        left.parent.mkdir()
        Gcs(left).close()
        with pytest.warns(UserWarning, match="who ran what is not kept"):
            gmi_drl.launch(resume=folder, view="plain", callbacks=[Once()])
    assert left.exists()


def test_a_version_that_is_told_by_several_hosts_keeps_its_checkpoint(tmp_path):
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})
    layout = tcg_ex(Topology.from_cores([CORE]), 1, 8, "cpu")
    path = tmp_path / "gcs.sqlite"
    runtime.init(gcs=path)
    try:
        log = PolicyLog(path, "0" * 32, config, layout)
        versions = [{"kind": "lineage", "lineage": version(number)} for number in (1, 2, 3)]
        saved = {"kind": "checkpoint", "iteration": 2, "path": "checkpoints/iteration_000002"}
        for record in (BRANCH, *versions, saved, BRANCH, *versions):
            log.show(dict(record))
        log.flush()
    finally:
        runtime.shutdown()
    with opened(path) as store:
        policies = list(PolicyReader(store).chain())
    assert [policy.checkpoint for policy in policies] == ["", saved["path"], ""]


def test_gmis_that_do_not_close_hold_up_a_run_for_some_time_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watchdog, "_CLOSING_S", 0.1)
    monkeypatch.setattr(Scripted, "closes", False)
    with three_hosts(monkeypatch, agent=Scripted) as (_, config):
        assert launched(config, tmp_path, Once()).state == "stopped"
    told = "".join(capsys.readouterr())
    assert "a gmi on another host: close() of the environments has not returned after 0.1 s" in told


class Drained(gmi_drl.Callback):
    """Has Ray drain the second host; ends the run when a gang trains for which `is_enough`."""

    def __init__(self, hosts, is_enough):
        self.hosts, self.is_enough, self.trained = hosts, is_enough, []

    def on_start(self, run):
        self.run = run

    def on_iteration(self, iteration, metrics):
        if iteration == 1:
            self.trained.append(len(metrics["gmi_seconds"]))
            self.hosts[1].is_drained = len(self.trained) == 1
        if self.is_enough(self) or iteration == 100:
            self.run.request_stop("it is enough")


@pytest.fixture
def asked_often(monkeypatch):
    monkeypatch.setattr(drains, "_ASK_S", 0.01)


def test_a_host_that_ray_drains_leaves_at_a_checkpoint(tmp_path, monkeypatch, capsys, asked_often):
    with three_hosts(monkeypatch, agent=Scripted, on_loss="shrink") as (hosts, config):
        drained = Drained(hosts, lambda self: len(self.trained) == 2)
        folder = launched(config, tmp_path, drained).folder
    assert drained.trained == [3, 2]
    assert json.loads((folder / "run.json").read_text())["epoch"] == 2
    told = "".join(capsys.readouterr())
    assert "Ray drains host 1, 127.0.0.3 (" in told
    assert "is lost" not in told


def test_another_host_is_waited_for_in_place_of_one_that_ray_drains(
    tmp_path, monkeypatch, asked_often
):
    with three_hosts(monkeypatch, agent=Scripted, on_loss="wait") as (hosts, config):
        waits = []

        def sleep(seconds):
            if seconds == 1.0:  # until there are as many hosts
                waits.append(hosts[1].is_drained)
                hosts[1].is_drained = False

        clock = SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=sleep)
        monkeypatch.setattr(clusters, "time", clock)
        drained = Drained(hosts, lambda self: len(self.trained) == 2)
        launched(config, tmp_path, drained)
    assert drained.trained == [3, 3]
    assert waits[0]


@pytest.mark.parametrize("without", [{"on_loss": "fail"}, {"on_loss": "shrink", "hosts_min": 3}])
def test_a_checkpoint_is_asked_for_when_a_host_is_drained_that_cannot_be_done_without(
    without, tmp_path, monkeypatch, asked_often
):
    def is_asked(callback):
        return is_requested(callback.run.folder)

    with three_hosts(monkeypatch, agent=Scripted, **without) as (hosts, config):
        drained = Drained(hosts, is_asked)
        folder = launched(config, tmp_path, drained).folder
    assert drained.trained == [3]
    assert is_requested(folder)
