"""Hosts that are waited for, lost or drained, and that come back."""

import json
import sys
import time
from operator import ge
from types import SimpleNamespace
from typing import ClassVar

import pytest

import fake_cores
import gmi_drl
from bodies_scripted import (
    Gang,
    Instant,
    Leaving,
    Once,
    Scripted,
    addresses,
    joined,
    launched,
    three_hosts,
)
from gmi_drl.comm.transports import PeerInfo
from gmi_drl.launcher.hosts import cluster as clusters
from gmi_drl.launcher.hosts import drains
from gmi_drl.launcher.hosts import gang as gangs
from gmi_drl.launcher.hosts.cluster_watch import ClusterWatch
from gmi_drl.launcher.hosts.gang import HostsGang
from gmi_drl.launcher.hosts.messages import HostLost, Report
from gmi_drl.launcher.hosts.placement_group import bundles_of
from gmi_drl.launcher.start import jobs
from gmi_drl.launcher.watch import watchdog
from gmi_drl.placement import Topology, load_config
from gmi_drl.roles.state.request import is_requested
from waits import until

pytestmark = pytest.mark.usefixtures("warm")


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
    bundles = bundles_of(load_config(given), known)
    assert [bundle.get("GPU") for bundle in bundles] == [wanted] * 2


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        ([0, 0, 0], [None, None, None]),
        ([0, 8, 0], [8, None, None]),
        ([4, 8, 2, 0], [8, 2, 2]),
    ],
)
def test_hosts_that_train_have_gpus_although_those_that_sample_have_none(gpus, wanted):
    given = {
        "version": 1, "mode": "async", "env": {"id": "CartPole-v1"},
        "cluster": {"address": "10.0.0.1:6379", "hosts": 3, "trainer_hosts": 1},
    }  # fmt: skip
    known = [{"Resources": {"CPU": 4.0, "GPU": float(count)}} for count in gpus]
    bundles = bundles_of(load_config(given), known)
    assert [bundle.get("GPU") for bundle in bundles] == wanted


def test_hosts_with_gpus_are_the_first_ones_and_train(monkeypatch):
    with three_hosts(monkeypatch, trainer_hosts=1) as (hosts, given):
        hosts[0].address, hosts[0].gpus = "127.0.0.9", 4.0
        with clusters.joined(load_config({**given, "mode": "async", "hardware": {}})) as found:
            assert addresses(found) == ["127.0.0.9", "127.0.0.3", "127.0.0.4"]


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


def test_hosts_are_spoken_to_while_code_of_the_user_is_tried(tmp_path, monkeypatch):
    with three_hosts(monkeypatch, agent=Scripted) as (hosts, config):

        def tried(*_):
            enough = [host.asked["tell"] + 2 for host in hosts]
            until(lambda: all(map(ge, (host.asked["tell"] for host in hosts), enough)))
            return []

        monkeypatch.setattr(jobs, "_user_code_faults", tried)
        assert launched(config, tmp_path, Once()).state == "stopped"


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


class Grows(gmi_drl.Callback):
    """Has two of three hosts be lost, and come back; notes what each gang's config says of them."""

    def __init__(self, hosts):
        self.hosts, self.trained = hosts, []

    def on_start(self, run):
        self.run = run

    def on_iteration(self, iteration, metrics):
        if iteration > 1:
            return
        cluster = load_config(self.run.folder / "config.yaml").cluster
        self.trained.append((cluster.hosts, cluster.training_hosts))
        _, second, third = self.hosts
        if len(self.trained) == 1:
            third.is_lost, second.lost_at = True, "facts"
        elif len(self.trained) == 2:
            second.is_lost, second.lost_at, third.is_lost = False, "", False
        else:
            self.run.request_stop("it is enough")


def test_as_many_hosts_train_for_the_others_again_when_lost_ones_are_back(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "SILENCE_S", 1.0)
    cores = fake_cores.install(2, monkeypatch.setattr)
    monkeypatch.setattr(Scripted, "topology", Topology.from_cores(cores, 2))
    with three_hosts(monkeypatch, agent=Scripted, on_loss="shrink", trainer_hosts=2) as (
        hosts,
        config,
    ):
        config = {**config, "mode": "async", "hardware": {"backend": "cpu", "num_gpus": 2}}
        grows = Grows(hosts)
        launched(config, tmp_path, grows)
    assert grows.trained == [(3, 2), (1, 1), (3, 2)]


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


class Closing(Scripted):
    """An agent whose launcher is killed when GMIs are to close their environments, on one host."""

    def report(self, orders):
        report = super().report(orders)
        if orders.calls == ("close",) and self.part.host == 1:
            return Report(ended="its launcher was killed by SIGKILL")
        return report


@pytest.mark.parametrize("on_loss", ["fail", "shrink", "wait"])
def test_a_host_that_is_lost_when_the_run_is_done_is_a_warning(
    on_loss, tmp_path, monkeypatch, capfd
):
    with three_hosts(monkeypatch, agent=Closing, on_loss=on_loss) as (_, config):
        assert launched(config, tmp_path, Once()).state == "stopped"
    told = " ".join("".join(capfd.readouterr()).split())
    assert "host 1, 127.0.0.3" in told
    assert "its launcher was killed by SIGKILL" in told
    assert "The run is done, and its results are whole" in told


@pytest.fixture
def leaving(monkeypatch):
    """Returns a class of agents for one test."""
    monkeypatch.setattr(Leaving, "saved", [])
    monkeypatch.setattr(Leaving, "empty", set())
    monkeypatch.setattr(Leaving, "mortal", set())
    return Leaving


class ThirdKilled(gmi_drl.Callback):
    """Has the launcher of the third host be killed; ends the run when fewer hosts train."""

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        self.trained = len(metrics["gmi_seconds"])
        if self.trained < 3:
            self.request_stop("it is enough")
        elif iteration == 2:
            Scripted.killed.add("127.0.0.4")


@pytest.mark.parametrize(
    ("empty", "mortal", "saved", "trained"),
    [
        (set(), set(), [0], 2),
        ({0}, set(), [1], 2),  # its process is new
        (set(), {0}, [1], 1),
        ({0, 1}, set(), [], 2),
    ],
    ids=["first", "restarted", "lost-too", "none"],
)
def test_a_gmi_saves_that_can_and_another_one_if_it_is_lost(
    tmp_path, monkeypatch, leaving, empty, mortal, saved, trained
):
    leaving.empty.update(empty)
    leaving.mortal.update(mortal)
    killed = ThirdKilled()
    with three_hosts(monkeypatch, agent=leaving, on_loss="shrink") as (_, config):
        launched({**config, "comm": {"timeout_s": 600}}, tmp_path, killed)
    assert leaving.saved == saved
    assert killed.trained == trained


def test_gmis_have_time_to_leave_by_how_long_iterations_take(tmp_path, monkeypatch, leaving):
    monkeypatch.setattr(leaving, "late_talks", 6)  # a second and more
    killed = ThirdKilled()
    with three_hosts(monkeypatch, agent=leaving, on_loss="shrink") as (_, config):
        launched({**config, "comm": {"timeout_s": 0.5}}, tmp_path, killed)
    assert leaving.saved == [0]
    assert killed.trained == 2


def test_a_host_that_is_lost_as_the_run_is_to_stop_costs_no_iteration(
    tmp_path, monkeypatch, leaving
):
    class Meeting(leaving):
        """GMIs wait for those of the third host, which is lost as it is to stop."""

        def leaves(self, orders):
            return orders.heir is not None and super().leaves(orders)

        def report(self, orders):
            if orders.stop and self.part.host == 2:
                self.killed.add(self.part.addresses[2])
            return super().report(orders)

    with (
        three_hosts(monkeypatch, agent=Meeting, on_loss="shrink") as (_, config),
        pytest.raises(HostLost, match="its launcher was killed"),
    ):
        launched(config, tmp_path, Once())
    assert leaving.saved == [0]


class Linked(Scripted):
    """Agents whose launchers tell of their links, and wait for what all tell.

    The third host's tells nothing, but for an end there may be.
    """

    ended = ""
    is_started = False

    def report(self, orders):
        if self.part is None or orders.end or self.is_started:
            return super().report(orders)
        if len(self.part.addresses) == 3 and self.part.host == 2:
            return Report(ended=self.ended)
        self.is_started = self.is_started or bool(orders.peers)
        return Report(peer_info=PeerInfo(b"a key", {}))


def hosts_that_sample(monkeypatch, **cluster):
    """Yields three hosts of which one trains, and a config for them."""
    cores = fake_cores.install(2, monkeypatch.setattr)
    monkeypatch.setattr(Linked, "topology", Topology.from_cores(cores, 2))
    return three_hosts(monkeypatch, agent=Linked, trainer_hosts=1, **cluster)


def sampling(config):
    """Returns it for two devices on each host."""
    return {**config, "mode": "async", "hardware": {"backend": "cpu", "num_gpus": 2}}


def test_a_host_that_tells_nothing_of_its_links_is_lost_and_none_that_waits_for_it(
    tmp_path, monkeypatch
):
    with (
        hosts_that_sample(monkeypatch) as (_, config),
        pytest.raises(HostLost, match=r"^host 2, .* its launcher has told nothing for 1 s"),
    ):
        launched(sampling(config), tmp_path, hang_timeout_s=1.0)


def test_a_host_that_tells_nothing_of_its_links_is_lost_where_nobody_watches(tmp_path, monkeypatch):
    monkeypatch.setattr(gangs, "_TELL_S", 1.0)
    with (
        hosts_that_sample(monkeypatch) as (_, config),
        pytest.raises(HostLost, match=r"^host 2, .* its launcher has told nothing for 1 s"),
    ):
        launched(sampling(config), tmp_path, hang_timeout_s=None)


@pytest.mark.timeout(60)
def test_a_host_that_is_lost_before_it_has_told_of_its_links_is_done_without_at_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Linked, "ended", "its launcher was killed by SIGKILL")
    with hosts_that_sample(monkeypatch, on_loss="shrink", hosts_min=2) as (_, config):
        config = {**sampling(config), "comm": {"timeout_s": 600}}
        assert launched(config, tmp_path, Once()).state == "stopped"


class Silent(Scripted):
    """Agents of which that of the third host passes on nothing from its launcher after a while."""

    def report(self, orders):
        report = super().report(orders)
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
