"""Launches on two hosts that are this machine, with real launchers and a Ray that is faked."""

import math
import os
import re
import resource
import signal
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import fake_ray
import faults
import gmi_drl
from fake_ray import FakeHost
from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.launcher.hosts import cluster as clusters
from gmi_drl.launcher.hosts.agent import NodeAgent
from gmi_drl.launcher.hosts.messages import Report
from gmi_drl.report.policy_lineage import PolicyReader
from gmi_drl.report.run_state import opened, read_state
from gmi_drl.report.timeline import Timeline
from host_launches import ADDRESSES, CORES, Intruder, launched, launched_here, ports
from run_files import assert_close, metrics

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "hosts").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_examples_run(example, tmp_path):
    pytest.importorskip("mujoco")
    with fake_ray.cluster(*map(FakeHost, ADDRESSES)) as address:
        there = (f"cluster.address={address}", "cluster.trusted=true", f"run.folder={tmp_path}")
        small = ("run.total_steps=2048", "run.eval_episodes=1", "env.max_episode_steps=50")
        result = gmi_drl.launch(example, overrides=[*there, *small], view="plain")
    assert result.state == "finished"
    assert metrics(result.folder)[-1]["steps"] >= 2048


@pytest.mark.slow
def test_strangers_are_refused_counted_and_told(tmp_path, capfd):
    high, low = divmod(os.getpid() % 2**16, 256)
    addresses = [f"127.{high}.{low}.{host}" for host in (2, 3)]  # of no other test
    intruder, hosts = Intruder(addresses), list(map(FakeHost, addresses))
    result = launched(tmp_path, hosts=hosts, callbacks=[intruder], run={"total_steps": 10**9})
    lines = metrics(result.folder)
    assert result.state == "stopped"
    assert intruder.tried == 2  # the port of each host's leader, and no other
    assert lines[0]["refused"] == 0
    assert lines[-1]["refused"] == 2
    told = "".join(capfd.readouterr())
    for gmi_id in (0, 1):
        assert f"gmi {gmi_id}: its ports for other hosts have refused 1 conn" in told


class Ports(gmi_drl.Callback):
    """Notes who listens at the hosts' addresses after five iterations, and ends the run."""

    def __init__(self, addresses):
        self.addresses = addresses

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        if iteration == 5:
            self.there = Counter(address for address, _ in ports(self.addresses))
            self.request_stop("they are counted")


@pytest.mark.slow
def test_hosts_whose_network_is_trusted_train_with_a_port_of_gloo_each(tmp_path, capfd):
    seen = Ports([f"127.7.{os.getpid() % 250}.{host}" for host in (2, 3)])  # of this test alone
    result = launched(
        tmp_path, hosts=[*map(FakeHost, seen.addresses)], cluster={"network": "trusted"},
        callbacks=[seen], run={"total_steps": 10**9}, comm={"checksum_every": 1},
        algorithm={"network": [256, 64], "minibatches": 1, "epochs": 1, "horizon": 8},
    )  # fmt: skip
    assert seen.there == dict.fromkeys(seen.addresses, 2)  # that of its links, and gloo's
    assert metrics(result.folder)[-1]["refused"] == 0
    told = "".join(capfd.readouterr())
    assert re.search(r"2 hosts combine \d+ KiB in .*; measured: one step .* ms, gloo .* ms", told)


@pytest.mark.slow
def test_a_gmi_that_dies_when_those_of_another_host_have_finished_has_their_outcome(tmp_path):
    """All may have as many descriptors as the system allows, whatever the launch may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))  # as shells do
    try:
        result = launched(tmp_path, roles={"trainer": "bodies_clusters:LateDeath"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result.state == "finished"
    first, second = result.gmis
    assert first == {"lives": 1, "max_files": min(hard, 65_536)}
    assert second == first | {"lives": 2, "outcome": "well done"}


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="two GMIs of one host need a core each")
@pytest.mark.parametrize(("name", "env"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_hosts_with_a_replay_each_learn_what_gmis_of_one_host_do(tmp_path, name, env):
    config = {
        "env": {"id": env, "num_env": 8},
        "algorithm": {
            "name": name, "network": [16], "horizon": 4, "batch_size": 32, "replay_start": 64,
            "replay_capacity": 256, "updates_per_row": 0.1,
        },
        "run": {"total_steps": 10 * 2 * 8 * 4},
    }  # fmt: skip
    one = {"hardware": {"backend": "cpu", "cores": CORES[:2]}, "layout": {"gmi_per_gpu": 2}}
    results = [
        launched(tmp_path / "hosts", **config),
        launched_here(tmp_path / "one", **config, **one),
    ]
    by_hosts, by_one = (metrics(result.folder) for result in results)
    assert len(by_hosts) == len(by_one) == 10
    same = ("steps", "updates", "replay_rows")
    assert [[line[key] for key in same] for line in by_hosts] == [
        [line[key] for key in same] for line in by_one
    ]
    assert by_one[-1]["updates"] > 10
    learned = [
        torch.load(*result.folder.glob("checkpoints/iteration_*10/shared.pt")) for result in results
    ]
    assert_close(*learned)


SAMPLES = 8 * 8  # of a segment
START, RATIO = 150, 0.25
APART = {
    "mode": "async",
    "env": {"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 50},
    "hardware": {"backend": "cpu", "cores": CORES[:2], "num_gpus": 2},
    "experience": {"channels": "mcc", "capacity": 3},
    "comm": {"checksum_every": 1},
}


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="agent and trainer of a host need a core each")
def test_agents_feed_trainers_of_their_host_and_these_train_one_policy(tmp_path, monkeypatch):
    # The trainer of each host; its peer, on the other one, has published that policy already.
    moments = [(1, "publish", 6), (3, "agreed", 12)]
    faults.script(monkeypatch, tmp_path / "faults", *moments)
    mortal = {
        "agent": "bodies_async:MortalAsyncAgent",
        "trainer": "bodies_async:MortalAsyncTrainer",
    }
    result = launched(
        tmp_path / "runs", **APART, roles=mortal,
        algorithm={"name": "impala", "network": [16], "horizon": 8},
        run={"total_steps": 20 * 2 * SAMPLES, "eval_episodes": 2},
    )  # fmt: skip
    faults.check_restarts(result, tmp_path / "faults", moments)
    lines = metrics(result.folder)
    assert [line["iteration"] for line in lines] == [*range(1, 21)]
    assert lines[-1]["steps"] == 20 * 2 * SAMPLES
    assert 0 < max(line["policy_lag_max"] for line in lines) <= 16
    accounts = result.experience
    assert accounts.add_up, accounts
    assert accounts.missing == accounts.incomplete == 0
    trainers = [answer for answer in result.gmis if "eval_return" in answer]
    assert [trainer["experience"]["trained"] for trainer in trainers] == [20, 20]
    assert trainers[0]["eval_return"] == trainers[1]["eval_return"] > 0


class Struck(gmi_drl.Callback):
    """Kills the launcher of the first host, which has passed on nothing for some iterations."""

    def __init__(self, launchers):
        self.launchers, self.silent_from = launchers, 0

    def on_start(self, run):
        self.run = run

    def on_iteration(self, iteration, metrics):
        if len(metrics["gmi_seconds"]) == 1:
            self.run.request_stop("the other one trains")
        elif not self.silent_from:
            launcher = self.launchers[0].pid
            os.kill(launcher, signal.SIGSTOP)
            self.silent_from = self.last()
            deadline_s = time.monotonic() + 100
            while self.last() < self.silent_from + 5 and time.monotonic() < deadline_s:
                time.sleep(0.05)
            os.kill(launcher, signal.SIGKILL)

    def last(self):
        """The last iteration of which a GMI has written metrics."""
        return len((self.run.folder / "metrics.jsonl").read_text().splitlines())


@pytest.mark.slow
def test_no_lineage_is_lost_with_a_launcher_and_each_host_says_what_it_ran(tmp_path, monkeypatch):
    launchers = []

    class Noted(NodeAgent):
        def __init__(self, devices):
            super().__init__(devices)
            launchers.append(self._process)

    monkeypatch.setattr(clusters, "NodeAgent", Noted)
    struck = Struck(launchers)
    result = launched(
        tmp_path, on_loss="shrink", callbacks=[struck], run={"total_steps": 10**9},
        comm={"timeout_s": 600},
    )  # fmt: skip
    assert result.state == "stopped"
    last = metrics(result.folder)[-1]["iteration"]
    assert last > struck.silent_from + 5
    with opened(result.folder / "gcs.sqlite") as store:
        versions = [policy.version.number for policy in PolicyReader(store).chain()]
    assert versions == [*range(1, last + 1)]
    assert not (result.folder / "hosts").exists()  # all is merged
    state = read_state(result.folder / "gcs.sqlite")
    # The first host's in the first epoch; the second's in both, in the last one as host 0.
    actors = Counter((actor["name"], actor["state"]) for actor in state.actors)
    assert actors["host 0: gmi0", "alive"] == 1  # as far as its launcher came
    assert actors["host 1: gmi1", "dead"] == actors["host 0: gmi0", "dead"] == 1
    shown = Timeline.read(result.folder / "gcs.sqlite").as_text()
    assert "host 0: gmi0" in shown
    assert "host 1: gmi1" in shown


class Mourned(NodeAgent):
    """An agent of which a driver is told that its launcher has ended after some more talks."""

    agents: ClassVar[list] = []
    ended, unnoticed_talks = "", 0

    def __init__(self, devices):
        super().__init__(devices)
        self.agents.append(self)

    def kill(self, unnoticed_talks):
        """Kills the launcher, and with it its GMIs."""
        self.unnoticed_talks = unnoticed_talks
        os.kill(self._process.pid, signal.SIGKILL)

    def report(self, orders):
        report = super().report(orders)
        self.ended = self.ended or report.ended
        if not self.ended:
            return report
        self.unnoticed_talks -= 1
        return Report(ended=self.ended if self.unnoticed_talks < 0 else "")


class BothLost(gmi_drl.Callback):
    """Loses the first two of three hosts at once, the second of which is noticed first."""

    def __init__(self, hosts):
        self.hosts = hosts

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        if len(metrics["gmi_seconds"]) == 1:
            self.hosts[0].is_lost = self.hosts[1].is_lost = True  # they do not come back
            self.request_stop("the third one trains")
        elif iteration == 8:
            first, second, _ = Mourned.agents
            first.kill(unnoticed_talks=12)
            second.kill(unnoticed_talks=0)


@pytest.mark.slow
def test_no_iteration_is_lost_with_two_hosts_of_which_one_is_noticed_later(tmp_path, monkeypatch):
    monkeypatch.setattr(Mourned, "agents", [])
    monkeypatch.setattr(clusters, "NodeAgent", Mourned)
    hosts = [FakeHost(f"127.0.0.{number}") for number in (2, 3, 4)]
    result = launched(
        tmp_path, hosts=hosts, on_loss="shrink", callbacks=[BothLost(hosts)],
        run={"total_steps": 10**9, "checkpoint_every": 0}, comm={"timeout_s": 600},
    )  # fmt: skip
    assert result.state == "stopped"
    lines = metrics(result.folder)
    assert [line["iteration"] for line in lines] == [*range(1, len(lines) + 1)]
    gmi_counts = [len(line["gmi_seconds"]) for line in lines]
    assert gmi_counts[7] == 3
    assert gmi_counts[-1] == 1


class Overtaken(gmi_drl.Callback):
    """Has the run be of a later epoch after the first iteration, as if others had gone on."""

    def on_start(self, run):
        self.folder = RunFolder(run.folder)

    def on_iteration(self, iteration, metrics):
        if iteration == 1:
            self.folder.update(epoch=99)


@pytest.mark.slow
def test_hosts_that_were_taken_for_lost_write_no_more_metrics(tmp_path):
    with pytest.raises(GmiDrlError, match="has epoch 99, and this host is in epoch 1"):
        launched(
            tmp_path,
            callbacks=[Overtaken()],
            run={"total_steps": 10**9, "checkpoint_every": 0},  # which are refused as well
        )


class Lost(gmi_drl.Callback):
    """Loses a host after eight iterations; ends the run once updates are made without it."""

    def __init__(self, host):
        self.host, self.updates = host, None

    def on_start(self, run):
        self.request_stop = run.request_stop

    def on_iteration(self, iteration, metrics):
        if len(metrics["gmi_seconds"]) == 4:
            self.host.is_lost = self.host.is_lost or iteration == 8
            return
        self.updates = metrics["updates"] if self.updates is None else self.updates
        if metrics["updates"] > self.updates:
            self.request_stop("they are made")


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="agent and trainer of a host need a core each")
def test_agents_feed_replays_of_their_host_and_go_on_without_a_host_that_is_lost(tmp_path):
    hosts = [*map(FakeHost, ADDRESSES)]
    patient = {"comm": {"checksum_every": 1, "timeout_s": 600}}  # they leave before that
    result = launched(
        tmp_path, hosts=hosts, on_loss="shrink", callbacks=[Lost(hosts[0])], **APART | patient,
        algorithm={
            "name": "dqn", "network": [16], "horizon": 8, "batch_size": 32, "replay_start": START,
            "replay_capacity": 500, "updates_per_row": RATIO,
        },
        run={"total_steps": 10**9},
    )  # fmt: skip
    assert result.state == "stopped"
    lines = metrics(result.folder)
    assert [line["iteration"] for line in lines] == [*range(1, len(lines) + 1)]
    before = [line for line in lines if len(line["gmi_seconds"]) == 4]
    after = [line for line in lines if len(line["gmi_seconds"]) == 2]
    assert lines == [*before, *after]
    assert len(before) >= 8
    for line in before:  # as many as are due for what each trainer has had
        assert line["updates"] == math.ceil(max(line["steps"] // 2 - START, 0) * RATIO)
    assert [line["replay_rows"] for line in after[:3]] == [64, 128, 192]  # begun anew
    assert after[1]["updates"] == before[-1]["updates"] < after[-1]["updates"]
    assert after[-1]["steps"] == before[-1]["steps"] + len(after) * SAMPLES
    assert result.experience.add_up
    assert result.experience.trained == len(after)
