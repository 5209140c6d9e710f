"""Hosts that only sample, for the trainers of another: real launchers, and a Ray that is faked."""

import os
import re
import threading
from collections import Counter

import pytest

import fake_ray
import faults
import gmi_drl
from fake_ray import FakeHost
from host_launches import CORES, Intruder, launched, ports
from run_files import metrics
from waits import until

pytestmark = pytest.mark.usefixtures("warm")
SAMPLES = 8 * 8  # of a segment
SAMPLING = {
    "mode": "async",
    "env": {"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 50},
    "hardware": {"backend": "cpu", "cores": CORES[:1]},
    "experience": {"channels": "mcc", "capacity": 3},
    "algorithm": {"name": "impala", "network": [16], "horizon": 8},
}
ONE_TRAINS = {"trainer_hosts": 1}


@pytest.mark.slow
def test_agents_of_one_host_feed_the_trainer_of_another_and_either_may_die(tmp_path, monkeypatch):
    moments = [(1, "segment", 6), (0, "agreed", 12), (1, "sent", 3), (0, "evaluate", 40)]
    faults.script(monkeypatch, tmp_path / "faults", *moments)
    mortal = {
        "agent": "bodies_async:MortalAsyncAgent",
        "trainer": "bodies_async:MortalAsyncTrainer",
    }
    result = launched(
        tmp_path / "runs", cluster=ONE_TRAINS, **SAMPLING, roles=mortal,
        run={"total_steps": 40 * SAMPLES, "eval_episodes": 2, "checkpoint_every": 5},
    )  # fmt: skip
    faults.check_restarts(result, tmp_path / "faults", moments)
    assert result.state == "finished"
    lines = metrics(result.folder)
    assert [line["iteration"] for line in lines] == [*range(1, 41)]
    assert lines[-1]["steps"] == 40 * SAMPLES
    assert max(line["policy_lag_max"] for line in lines) > 0  # a newer policy has come there
    assert lines[-1]["refused"] == 0
    accounts = result.experience
    assert accounts.add_up, accounts
    assert accounts.trained >= 40
    trainer, agent = result.gmis
    assert trainer["eval_return"] > 0
    assert agent["sent"] >= 40


class FedByAll(gmi_drl.Callback):
    """Ends the run when it has trained on segments of each of these agents, and for a while."""

    def __init__(self, *agents):
        self._missing = {*agents}

    def on_start(self, run):
        self._request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        seconds = metrics["gmi_seconds"]
        self._missing -= {gmi_id for gmi_id in self._missing if sum(seconds[gmi_id].values())}
        if not self._missing and iteration >= 15:
            self._request_stop("all have sent")


@pytest.mark.slow
def test_replays_are_fed_by_agents_of_other_hosts(tmp_path):
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    result = launched(
        tmp_path, hosts=hosts, cluster=ONE_TRAINS,
        **SAMPLING
        | {
            "experience": {"channels": "auto", "capacity": 3, "batch_segments": 2},
            "algorithm": {
                "name": "dqn", "network": [16], "horizon": 8, "batch_size": 32,
                "replay_start": 150, "replay_capacity": 500, "updates_per_row": 0.25,
            },
        },
        callbacks=[FedByAll(1, 2)], run={"total_steps": 10**9},
    )  # fmt: skip
    assert result.state == "stopped"
    last = metrics(result.folder)[-1]
    assert last["replay_rows"] == 496  # as many of 8 environments as 500 have room for
    assert last["updates"] > 100
    assert result.experience.add_up


@pytest.mark.slow
def test_two_hosts_train_on_what_their_own_agents_and_a_third_host_send(tmp_path):
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    result = launched(
        tmp_path, hosts=hosts, cluster={"trainer_hosts": 2},
        **SAMPLING | {"hardware": {"backend": "cpu", "cores": CORES[:2], "num_gpus": 2}},
        comm={"checksum_every": 1}, callbacks=[FedByAll(0, 2, 4, 5)], run={"total_steps": 10**9},
    )  # fmt: skip
    assert result.state == "stopped"
    iterations = len(metrics(result.folder))
    assert result.experience.add_up
    trainers = [answer["experience"] for answer in result.gmis if "experience" in answer]
    assert [trainer["trained"] for trainer in trainers] == [iterations] * 2


class Lost(gmi_drl.Callback):
    """Loses a host after some iterations; ends the run when there are more without it."""

    def __init__(self, host):
        self.host = host

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        self.host.is_lost = self.host.is_lost or iteration == 8
        self.without = self.without + 1 if len(metrics["gmi_seconds"]) == 2 else 0
        if self.without == 5:
            self.request_stop("they train")

    without = 0


@pytest.mark.slow
@pytest.mark.parametrize("lost", [2, 0], ids=["sampling", "training"])
def test_a_run_goes_on_without_a_host_that_sampled_or_trained(tmp_path, lost):
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    result = launched(
        tmp_path, hosts=hosts, on_loss="shrink", cluster={**ONE_TRAINS, "hosts_min": 2},
        callbacks=[Lost(hosts[lost])], **SAMPLING, comm={"timeout_s": 600},
        run={"total_steps": 10**9, "checkpoint_every": 4},
    )  # fmt: skip
    assert result.state == "stopped"
    lines = metrics(result.folder)
    assert [line["iteration"] for line in lines] == [*range(1, len(lines) + 1)]
    assert [len(line["gmi_seconds"]) for line in lines] == sorted(
        (len(line["gmi_seconds"]) for line in lines), reverse=True
    )
    assert lines[-1]["steps"] == len(lines) * SAMPLES
    assert result.experience.add_up
    more = lines[-1]["steps"] + 3 * SAMPLES
    left = [FakeHost(host.address) for host in hosts if not host.is_lost]
    with fake_ray.cluster(*left) as address:
        words = [f"run.total_steps={more}", f"cluster.address={address}"]
        resumed = gmi_drl.launch(resume=result.folder, overrides=words, view="plain")
    assert resumed.state == "finished"
    assert metrics(result.folder)[-1]["steps"] == more


class LostAtTheStart(gmi_drl.Callback):
    """Loses a host as soon as its agent sets up."""

    def __init__(self, host):
        self._host = host

    def on_start(self, run):
        def lose():
            begun = run.folder / "begun"
            until(lambda: begun.exists(), within_s=100)
            self._host.is_lost = True

        threading.Thread(target=lose).start()


@pytest.mark.slow
def test_a_run_goes_on_without_a_host_that_is_lost_before_it_has_sampled(tmp_path):
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    result = launched(
        tmp_path, hosts=hosts, on_loss="shrink", cluster={**ONE_TRAINS, "hosts_min": 2},
        callbacks=[LostAtTheStart(hosts[2])], roles={"agent": "bodies_async:NeverSetUp"},
        **SAMPLING, comm={"timeout_s": 600}, run={"total_steps": 10 * SAMPLES},
    )  # fmt: skip
    assert result.state == "finished"
    assert len(result.gmis) == 2
    assert len(metrics(result.folder)) == 10


class Ports(Intruder):
    """Also notes who listens, before strangers come."""

    def on_iteration(self, iteration, metrics):
        if not self.tried:
            self.there = Counter(address for address, _ in ports(self._addresses))
        super().on_iteration(iteration, metrics)


@pytest.mark.slow
def test_strangers_are_refused_at_the_ports_for_experience_and_policies(tmp_path, capfd):
    high, low = divmod(os.getpid() % 2**16, 256)
    addresses = [f"127.{high}.{low}.{host}" for host in (4, 5)]  # of no other test
    intruder, hosts = Ports(addresses), list(map(FakeHost, addresses))
    result = launched(
        tmp_path, hosts=hosts, cluster=ONE_TRAINS, callbacks=[intruder], **SAMPLING,
        run={"total_steps": 10**9},
    )  # fmt: skip
    assert result.state == "stopped"
    # Of the trainer for its agent, and where policies come; no leader, as one host alone trains.
    assert intruder.there == dict.fromkeys(addresses, 1)
    assert metrics(result.folder)[-1]["refused"] == intruder.tried == 2
    told = "".join(capfd.readouterr())
    assert re.search(r"gmi 0: its ports for other hosts have refused 1 conn", told)
