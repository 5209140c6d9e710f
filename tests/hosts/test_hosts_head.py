"""A head of the Ray cluster that is gone or hangs, and what a run does then."""

import json
import socket
import sys
import threading
from types import SimpleNamespace

import pytest

import fake_ray
import gmi_drl
from bodies_scripted import Gang, Once, Scripted, joined, launched, three_hosts
from gmi_drl.launcher.hosts import cluster as clusters
from gmi_drl.launcher.hosts import cluster_watch
from gmi_drl.launcher.hosts import head as heads
from gmi_drl.launcher.hosts.cluster_watch import ClusterWatch
from gmi_drl.launcher.hosts.messages import HostLost
from gmi_drl.placement import load_config
from waits import until


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


@pytest.fixture
def impatient(monkeypatch):
    """A head that does not answer is gone soon."""
    monkeypatch.setattr(heads, "SILENCE_S", 0.3)
    monkeypatch.setattr(heads, "_ASK_S", 0.1)
    monkeypatch.setattr(heads, "_ANSWER_S", 0.1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("question", ["nodes", "placement_group", "remote"])
def test_a_head_that_hangs_before_agents_are_there_is_told(question, monkeypatch, impatient):
    with three_hosts(monkeypatch) as (_, given):
        address = given["cluster"]["address"]
        fake_ray.head().hangs_at = question
        with pytest.raises(HostLost) as raised, clusters.joined(load_config(given)):
            pass
    assert str(raised.value).startswith(
        f"cluster.address={address}: the head of the Ray cluster has not answered there for 0.3 s."
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("question", ["nodes", "free"])
def test_a_head_that_hangs_when_it_is_asked_what_hosts_lack_is_told(
    question, monkeypatch, impatient
):
    with three_hosts(monkeypatch, hosts=4, wait_s=0.1) as (_, given):
        head = fake_ray.head()
        placed = fake_ray.Group.wait

        def wait(group, timeout_seconds):
            head.hangs_at = question
            return placed(group, timeout_seconds)

        monkeypatch.setattr(fake_ray.Group, "wait", wait)
        with (
            pytest.raises(HostLost, match="has not answered there"),
            clusters.joined(load_config(given)),
        ):
            pass


@pytest.mark.timeout(60)
@pytest.mark.parametrize("question", ["nodes", "remote"])
def test_a_head_that_hangs_while_hosts_start_anew_is_told(question, monkeypatch, impatient):
    with joined(monkeypatch, on_loss="shrink") as (hosts, found):
        hosts[0].is_lost, hosts[1].lost_at = True, "facts"
        fake_ray.head().hangs_at = question
        with pytest.raises(HostLost, match="has not answered there"):
            found.renew([0])


@pytest.mark.timeout(60)
def test_a_head_that_hangs_when_a_lost_host_is_asked_for_is_told(monkeypatch, impatient):
    monkeypatch.setattr(clusters, "SILENCE_S", 0.0)
    with joined(monkeypatch, on_loss="shrink") as (hosts, found):
        hosts[1].is_lost = True
        found.renew([1])
        fake_ray.head().hangs_at = "remote"
        with pytest.raises(HostLost, match="has not answered there"):
            found.places_back()


@pytest.mark.timeout(60)
def test_a_head_that_takes_connections_and_forgets_what_it_is_asked_is_told(monkeypatch):
    monkeypatch.setattr(heads, "_ASK_S", 0.1)
    monkeypatch.setattr(heads, "_RAY_S", 0.3)
    with three_hosts(monkeypatch) as (_, given):
        fake_ray.head().forgets = True
        with (
            pytest.raises(HostLost, match=r"cluster has not answered what Ray asked it for 0\.3 s"),
            clusters.joined(load_config(given)),
        ):
            pass


class Untrained(Scripted):
    """Agents whose GMIs are there and do not train; the head hangs once they are started."""

    def report(self, orders):
        report = super().report(orders)
        report.records = []
        if self.part is not None:
            fake_ray.head().hangs = True
        return report


@pytest.mark.timeout(60)
def test_a_head_that_hangs_before_the_first_iteration_is_told(tmp_path, monkeypatch, impatient):
    with (
        three_hosts(monkeypatch, agent=Untrained, on_loss="shrink") as (_, given),
        pytest.raises(HostLost, match="has not answered there"),
    ):
        launched(given, tmp_path)
    (state,) = tmp_path.glob("*/*/run.json")
    assert json.loads(state.read_text())["state"] == "failed"


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
