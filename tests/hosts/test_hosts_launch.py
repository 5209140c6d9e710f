"""A launch on two and three hosts of a Ray cluster, which are raylets of this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
import yaml

import bodies_clusters
import fake_ray
import gmi_drl
from bodies_clusters import CONFIG, descendants
from cluster import Network, why_no_network
from fake_ray import FakeHost
from run_files import assert_close
from waits import until

# `gmi-drl` itself, on a machine with so many cores as FAKE_CORES says.
COMMAND = """
import fake_cores
from gmi_drl.cli.main import main
from gmi_drl.launcher.start import preload
preload.PRELOAD = ("fake_cores", *preload.PRELOAD)
raise SystemExit(main())
"""
BODIES = Path(bodies_clusters.__file__)
CORES = sorted(os.sched_getaffinity(0))
LAUNCHER = b"gmi_drl.launcher.hosts.host_launcher"
MARK = f"GMI_DRL_TESTS={os.getpid()}"  # in the environment of all that these tests start


@pytest.fixture(autouse=True)
def _marked(monkeypatch):
    monkeypatch.setenv(*MARK.split("="))


@contextmanager
def cluster(hosts, *places):
    """Yields the address of one, which has a token, its program, and the pid of a raylet.

    `places`: namespace=address of each host, if each is in one of its own.
    """
    program = subprocess.Popen(
        [sys.executable, str(BODIES), str(hosts), *places],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        address = next(line for line in program.stdout if ":" in line and " " not in line)
        yield address.strip(), program, int(program.stdout.readline())
    finally:
        program.communicate("", timeout=60)


def started(*namespace, **config):
    """Starts a launch in a process of its own, as Ray reads its token when it is imported."""
    words = [sys.executable, str(BODIES), "launch", json.dumps(config), *namespace]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )


def trained(folder, gmis, **config):
    """Trains for ten iterations by so many GMIs; returns their metrics, and what was learned."""
    steps = 10 * gmis * 8 * 16
    run = {"folder": str(folder), "total_steps": steps, "log": [], "eval_episodes": 0}
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "run": run, **config}))
    command(folder / "config.yaml")
    (checkpoint,) = folder.glob("*/*/checkpoints/iteration_*10")
    return told(folder), torch.load(checkpoint / "shared.pt")


def command(*words):
    """Runs `gmi-drl launch` to its end."""
    with_fake_cores = [sys.executable, "-c", COMMAND, "launch", *map(str, words), "--plain"]
    done = subprocess.run(
        with_fake_cores, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150,
        check=False, cwd=BODIES.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def launchers():
    """Pids of the launchers of these tests' hosts, and of all that they have started."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                marks = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if LAUNCHER in words and MARK.encode() in marks:
                pids.append(int(entry.name))
    return [*pids, *descendants(*pids)]


def agents():
    """Pids of the agents: the parents of the launchers."""
    found = set()
    for pid in launchers():
        if LAUNCHER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            stat = Path(f"/proc/{pid}/stat").read_text()
            found.add(int(stat.rpartition(")")[2].split()[1]))
    return sorted(found)


def runs(pid):
    """Whether a process does; one that is dead and waited for by nobody has no words."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@contextmanager
def waiting(address, folder):
    """Yields a launcher whose GMIs are there on both hosts, and end with it."""
    program = started(
        run={"folder": str(folder), "log": [], "eval_episodes": 0},
        roles={"trainer": "bodies_clusters:Waiter"},
        cluster={"address": address, "hosts": 2},
    )
    there = {f"gmi {gmi_id} of host is there\n" for gmi_id in (0, 1)}
    for line in program.stdout:
        there.discard(line)
        if not there:
            break
    assert len(launchers()) >= 2 * 3  # a fork server and a GMI each
    yield program
    program.communicate(timeout=60)
    until(lambda: not launchers(), within_s=30)


def test_launchers_of_others_are_not_those_of_these_tests():
    words = [sys.executable, "-c", "input()", LAUNCHER]
    others = {name: value for name, value in os.environ.items() if name != MARK.split("=")[0]}
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE) as own,
        subprocess.Popen(words, stdin=subprocess.PIPE, env=others) as other,
    ):
        until(lambda: own.pid in launchers())
        until(lambda: LAUNCHER in Path(f"/proc/{other.pid}/cmdline").read_bytes().split(b"\0"))
        assert launchers() == [own.pid]
        assert agents() == [os.getpid()]
        for program in (own, other):
            program.communicate(b"\n", timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_and_three_hosts(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with cluster(3) as (address, *_):
        # The others wait longer, as Ray gives back what an earlier launch held some seconds later.
        missing, _ = started(cluster={"address": address, "hosts": 4, "wait_s": 3}).communicate(
            timeout=60
        )
        assert "each wants 1 CPU, and after 3 s the cluster at " in missing
        hardware = {"backend": "cpu", "cores": CORES[:1]}
        for count in (2, 3):
            by_hosts, learned_by_hosts = trained(
                tmp_path / f"{count} hosts", count,
                cluster={"address": address, "hosts": count}, hardware=hardware,
            )  # fmt: skip
            monkeypatch.setenv("FAKE_CORES", str(count))  # each GMI of one host needs its own
            by_one, learned_by_one = trained(
                tmp_path / f"{count} of one", count, layout={"gmi_per_gpu": count}
            )
            monkeypatch.delenv("FAKE_CORES")
            assert len(by_hosts) == len(by_one) == 10
            for one, other in zip(by_hosts, by_one, strict=True):
                assert one["steps"] == other["steps"]
                assert one["return_mean"] == pytest.approx(other["return_mean"], rel=1e-6)
            assert_close(learned_by_hosts, learned_by_one)
        (three,) = (tmp_path / "3 hosts").glob("*/*")
        learn = ("run.total_steps=400000", "run.target_return=195")
        command("--resume", three, *(word for setting in learn for word in ("--set", setting)))
        assert told(tmp_path / "3 hosts")[-1]["return_mean"] >= 195  # CartPole is solved
        assert hosts_of(tmp_path / "3 hosts")[-1] == 3
        with waiting(address, tmp_path / "killed") as driver:
            driver.kill()
        with waiting(address, tmp_path / "lost") as driver:
            os.kill(agents()[0], 9)
        assert driver.returncode == 1
        (state,) = (tmp_path / "lost").glob("*/*/run.json")
        assert "its agent is gone" in json.loads(state.read_text())["error"]


PPO = {
    "algorithm": {"network": [16], "minibatches": 2, "epochs": 2, "horizon": 16},
    "hardware": {"backend": "cpu", "cores": CORES[:1]},
}
APART = {  # an agent and a trainer on each host
    "mode": "async",
    "hardware": {"backend": "cpu", "cores": CORES[:2], "num_gpus": 2},
    "experience": {"channels": "mcc", "capacity": 3},
}
DQN = {
    "name": "dqn", "network": [16], "horizon": 16, "batch_size": 32, "replay_start": 500,
    "replay_capacity": 1000, "updates_per_row": 0.05,
}  # fmt: skip

IMPALA = {"name": "impala", "network": [16], "horizon": 16}


def goes_on(folder, address, on_loss, lose, *, iterations=200, cluster=(), **config):
    """Trains on two hosts, of which `lose` takes one; checks that no iteration is lost.

    Returns the metrics, and the manifest of the last checkpoint.
    """
    run = {
        "folder": str(folder), "total_steps": iterations * 8 * 16, "log": [], "eval_episodes": 0,
        "checkpoint_every": 10**6,
    }  # fmt: skip
    cluster = {"address": address, "hosts": 2, "on_loss": on_loss, **dict(cluster)}
    program = started(run=run, cluster=cluster, **config)
    try:
        until(lambda: len(metrics(folder)) >= 10, within_s=300)
        lose()
        output, _ = program.communicate(timeout=200)
    finally:
        program.kill()
    assert program.returncode == 0, output
    made = metrics(folder)
    assert made == [*range(1, len(made) + 1)]  # none is lost, none made twice
    (checkpoints,) = folder.glob("*/*/checkpoints")
    (last,) = checkpoints.glob(f"iteration_*{made[-1]}")
    (saved,) = [path for path in checkpoints.iterdir() if path != last]
    assert json.loads((saved / "manifest.json").read_text())["iteration"] >= 10
    manifest = json.loads((last / "manifest.json").read_text())
    assert manifest["epoch"] == 2
    until(lambda: not launchers(), within_s=30)
    return told(folder), manifest


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("gmis", "config"),
    [
        pytest.param(2, PPO, id="ppo"),
        pytest.param(2, {**PPO, "algorithm": DQN}, id="replays"),
        pytest.param(4, {**APART, "algorithm": IMPALA}, id="agents apart"),
        pytest.param(4, {**APART, "algorithm": DQN}, id="agents apart and replays"),
    ],
)
def test_a_run_goes_on_on_as_many_hosts_when_an_agent_of_ray_is_killed(
    tmp_path, monkeypatch, gmis, config
):
    pytest.importorskip("ray")
    if len(CORES) < gmis // 2:
        pytest.skip("agent and trainer of a host need a core each")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with cluster(2) as (address, *_):
        lines, last = goes_on(tmp_path, address, "wait", lambda: os.kill(agents()[0], 9), **config)
    assert [len(line["gmi_seconds"]) for line in lines] == [gmis] * len(lines)
    assert len(last["gmis"]) == gmis
    assert lines[-1]["steps"] == 100 * 2 * 8 * 16


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_goes_on_without_a_host_whose_raylet_is_killed(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with cluster(2) as (address, hosts_program, _):
        _, last = goes_on(
            tmp_path, address, "shrink",
            lambda: print("raylet", file=hosts_program.stdin, flush=True), **PPO,
        )  # fmt: skip
    assert len(last["gmis"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(len(CORES) < 2, reason="agent and trainer of a host need a core each")
def test_a_host_trains_without_one_that_has_sampled_for_it(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with cluster(2, "=127.0.0.2", "=127.0.0.3") as (address, hosts_program, _):
        lines, last = goes_on(
            tmp_path, address, "shrink",
            lambda: print("raylet", file=hosts_program.stdin, flush=True),
            iterations=2000,  # of which the trainer makes many before the loss is known
            cluster={"trainer_hosts": 1}, **APART, algorithm=IMPALA,
        )  # fmt: skip
    gmis = [len(line["gmi_seconds"]) for line in lines]
    assert gmis == sorted(gmis, reverse=True)
    assert (gmis[0], gmis[-1]) == (4, 2)
    assert len(last["gmis"]) == 2
    assert lines[-1]["steps"] == 2000 * 8 * 16


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["head", "hang"])
def test_a_run_whose_head_is_killed_ends_and_goes_on_on_another_cluster(tmp_path, monkeypatch, how):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with cluster(2) as (address, hosts_program, _):
        program = started(
            run={"folder": str(tmp_path), "total_steps": 10**9, "log": [], "eval_episodes": 0},
            algorithm={"network": [16], "minibatches": 2, "epochs": 2, "horizon": 16},
            hardware={"backend": "cpu", "cores": CORES[:1]},
            cluster={"address": address, "hosts": 2, "on_loss": "shrink"},
        )
        try:
            until(lambda: len(metrics(tmp_path)) >= 10, within_s=300)
            ours = [*agents(), *launchers()]
            assert len(ours) >= 2 * 4  # an agent, its launcher, a fork server and a GMI each
            print(how, file=hosts_program.stdin, flush=True)
            output, _ = program.communicate(timeout=150)  # Ray would end it without a word
        finally:
            program.kill()
        until(lambda: not any(map(runs, ours)), within_s=30)
    assert program.returncode == 1
    said = f"cluster.address={address}: the head of the Ray cluster has not answered there for 10 s"
    assert said in output.splitlines()[-2]
    (run,) = tmp_path.glob("*/*")
    assert f"gmi-drl launch --resume {run}" in output.splitlines()[-1]
    told = json.loads((run / "run.json").read_text())
    assert told["state"] == "failed"
    assert said in told["error"]
    done = metrics(tmp_path)
    assert (run / f"checkpoints/iteration_{done[-1]:06}").exists()
    with fake_ray.cluster(*map(FakeHost, ("127.0.0.2", "127.0.0.3"))) as other:
        more = [f"run.total_steps={(len(done) + 3) * 2 * 8 * 16}"]
        there = [f"cluster.address={other}", "cluster.trusted=true"]
        gmi_drl.launch(resume=run, overrides=[*more, *there], view="plain")
    assert metrics(tmp_path) == [*range(1, len(done) + 4)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_that_is_cut_off_is_done_without_and_taken_in_when_it_is_back(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with cluster(2) as (address, _, raylet):
        program = started(
            run={"folder": str(tmp_path), "total_steps": 10**9, "log": [], "eval_episodes": 0},
            algorithm={"network": [16], "minibatches": 2, "epochs": 2, "horizon": 16},
            hardware={"backend": "cpu", "cores": CORES[:1]},
            cluster={"address": address, "hosts": 2, "on_loss": "shrink"},
        )
        cut = []
        try:
            until(lambda: len(metrics(tmp_path)) >= 10, within_s=100)
            cut = stopped(raylet)
            assert len(cut) >= 4  # it, the agent, its launcher, and a GMI
            until(lambda: hosts_of(tmp_path)[-1] == 1, within_s=100)
            for pid in cut:
                os.kill(pid, signal.SIGCONT)
            until(lambda: hosts_of(tmp_path)[-1] == 2, within_s=100)
            program.send_signal(signal.SIGINT)
            output, _ = program.communicate(timeout=60)
        finally:
            for pid in cut:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            program.kill()
        assert program.returncode == 0, output
        assert "hosts are there again" in output
        hosts = hosts_of(tmp_path)
        changes = [one for one, other in zip(hosts, [0, *hosts], strict=False) if one != other]
        assert changes == [2, 1, 2]
        iterations = metrics(tmp_path)
        assert iterations == [*range(1, len(iterations) + 1)]
        (last,) = tmp_path.glob(f"*/*/checkpoints/iteration_*{iterations[-1]}")
        assert json.loads((last / "manifest.json").read_text())["epoch"] == 3
        until(lambda: not launchers(), within_s=30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cable_that_is_out_for_a_moment_is_waited_for_and_a_host_whose_cable_is_cut_is_not(
    tmp_path, monkeypatch
):
    pytest.importorskip("ray")
    if (why_not := why_no_network()) is not None:
        pytest.skip(why_not)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with Network(2) as network:
        # That of the lower address is host 0, which writes metrics and checkpoints: it is cut off.
        other, head = network.names
        places = [f"{one}={network.addresses[host]}" for host, one in ((1, head), (0, other))]
        with cluster(2, *places) as (address, *_):
            program = started(
                head, **PPO, cluster={"address": address, "hosts": 2, "on_loss": "shrink"},
                run={
                    "folder": str(tmp_path), "total_steps": 60 * 2 * 8 * 16, "log": [],
                    "eval_episodes": 0, "checkpoint_every": 10,
                },
            )  # fmt: skip
            try:
                until(lambda: len(metrics(tmp_path)) >= 10, within_s=300)
                ours = in_namespace([*agents(), *launchers()], other)
                assert len(ours) >= 4  # an agent, its launcher, a fork server and a GMI
                network.cut(0)
                time.sleep(5.0)  # half of the silence after which a host is lost
                network.mend(0)
                before = len(metrics(tmp_path))
                until(lambda: len(metrics(tmp_path)) >= before + 10, within_s=100)
                assert all(map(runs, ours))
                assert set(hosts_of(tmp_path)) == {2}
                network.cut(0)
                output, _ = program.communicate(timeout=400)
            finally:
                program.kill()
            until(lambda: not any(map(runs, ours)), within_s=100)  # nobody can tell them to end
    assert program.returncode == 0, output
    iterations, hosts = metrics(tmp_path), hosts_of(tmp_path)
    assert iterations == [*range(1, len(iterations) + 1)]
    assert hosts == sorted(hosts, reverse=True)
    assert {*hosts} == {1, 2}
    paths = tmp_path.glob("*/*/checkpoints/*/manifest.json")
    manifests = [json.loads(path.read_text()) for path in paths]
    epochs = {manifest["iteration"]: manifest["epoch"] for manifest in manifests}
    assert epochs == {at: 1 if hosts[at - 1] == 2 else 2 for at in epochs}
    assert epochs[iterations[-1]] == 2
    until(lambda: not launchers(), within_s=30)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_says_which_node_it_drains(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with cluster(2) as (address, hosts_program, _):
        words = [sys.executable, str(BODIES), "drained", address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
            try:
                assert program.stdout.readline() == "it is held, and not drained\n"
                print("drain", file=hosts_program.stdin, flush=True)
                assert program.stdout.readline() == "it is drained\n"
            finally:
                program.kill()


def stopped(raylet):
    """Stops a raylet and all that it has started, as if its cable was cut; returns their pids."""
    pids = [raylet, *descendants(raylet)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def in_namespace(pids, namespace):
    """Which of these processes are in a namespace of the network."""
    inode = os.stat(f"/run/netns/{namespace}").st_ino
    return [pid for pid in pids if os.stat(f"/proc/{pid}/ns/net").st_ino == inode]


def hosts_of(folder):
    """Lists how many hosts, of one GMI each, have made each iteration."""
    return [len(one["gmi_seconds"]) for one in told(folder)]


def metrics(folder):
    """Lists the iterations that a run has told of."""
    return [one["iteration"] for one in told(folder)]


def told(folder):
    """Lists the metrics of all iterations of a run."""
    texts = [path.read_text() for path in folder.glob("*/*/metrics.jsonl")]
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]
