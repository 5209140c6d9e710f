"""What is said of several hosts before one is there: the config's section, checks and plans."""

import json
import os
import re
from dataclasses import replace

import pytest

import gmi_drl
from gmi_drl import runtime
from gmi_drl.cli.main import main
from gmi_drl.comm.links.host_links import keep
from gmi_drl.comm.links.links import Link
from gmi_drl.gmi.usage.processes import HostMemory
from gmi_drl.launcher.hosts.crossings import Crossings
from gmi_drl.launcher.plan.experience import experience_across, sizes_of
from gmi_drl.launcher.plan.planning import across_hosts, planned
from gmi_drl.launcher.plan.wiring import wires_of
from gmi_drl.placement import (
    ConfigError,
    Device,
    Layout,
    Topology,
    check,
    decoupled,
    experience_faults,
    layout_faults_of,
    load_config,
    tcg_ex,
)

CLUSTER = {"address": "10.0.0.1:6379", "hosts": 2}
CORES = sorted(os.sched_getaffinity(0))
TWO_CORES = Topology.from_cores([0, 1])


def config(*overrides, **cluster):
    given = {"version": 1, "env": {"id": "CartPole-v1"}, "cluster": {**CLUSTER, **cluster}}
    return load_config(given, overrides)


def gpus(count):
    devices = tuple(Device(i, "gpu", "A100", (i,), f"GPU-{i}") for i in range(count))
    links = tuple(tuple("" if i == j else "NVLink" for j in range(count)) for i in range(count))
    peers = tuple(tuple(i != j for j in range(count)) for i in range(count))
    return Topology(devices, links, peers)


def test_layouts_of_hosts_are_joined_and_taken_apart_again():
    parts = [tcg_ex(gpus(2), 2, 8, "mps"), tcg_ex(gpus(3), 1, 8, "direct")]
    joined = Layout.joined(parts)
    assert [gmi.gmi_id for gmi in joined.gmis] == list(range(7))
    assert [joined.host_of(gmi.gmi_id) for gmi in joined.gmis] == [0, 0, 0, 0, 1, 1, 1]
    assert [gmi.gpu_id for gmi in joined.on_host(1)] == [2, 3, 4]
    assert joined.topology.links[0][1:3] == ("NVLink", "network")
    assert joined.topology.peers[2][1:] == (False, False, True, True)
    assert [joined.of_host(host) for host in (0, 1)] == parts
    assert Layout.from_json(joined.to_json()) == joined


def test_hosts_may_have_the_same_cores():
    part = tcg_ex(TWO_CORES, 2, 64)
    assert layout_faults_of(config(), Layout.joined([part, part])) == []
    crowded = replace(part, gmis=tuple(replace(gmi, cores=(0,)) for gmi in part.gmis))
    assert len(layout_faults_of(config(), Layout.joined([part, crowded]))) == 1


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"address": "here"}, "must be host:port. Write what `ray start --head` prints"),
        ({"hosts": 0}, "cluster.hosts=0; must be 1 or more"),
        ({"network": "x"}, "cluster.network"),
        ({"interface": "eth1"}, "is for network: trusted, and network is private. Leave one"),
    ],
)
def test_what_is_wrong_with_the_section_is_told(cluster, told):
    with pytest.raises(ConfigError) as raised:
        config(**cluster)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("mode=serving", "hosts of a cluster train together in tcg_ex and decoupled alone"),
        ("layout.template=tdg_ex", "in tcg_ex and decoupled alone. Use tcg_ex or decoupled"),
        ("algorithm={name: es}", "in template tcg_ex hosts of a cluster train together by all_"),
        ("algorithm.drop_slowest=1", "told by a clock, and each host has its own. Leave it out"),
        ("env.num_env=auto", "it is tuned on one machine, and cluster has several"),
    ],
)
def test_what_hosts_cannot_do_is_a_fault(override, told):
    faults = [str(fault) for fault in check(config(override), TWO_CORES)]
    assert any(told in fault for fault in faults), faults
    assert check(config(), TWO_CORES) == []


@pytest.mark.parametrize("name", ["dqn", "sac", "a2c"])
def test_gradients_are_all_that_crosses_between_hosts(name):
    given = config(f"algorithm={{name: {name}}}", "env.id=Pendulum-v1")
    assert [fault for fault in check(given, TWO_CORES) if fault.where != "env.id"] == []


@pytest.mark.parametrize("name", ["impala", "appo", "dqn"])
def test_experience_stays_on_its_host_where_each_has_agents_and_trainers(name):
    apart = ["mode=async", f"algorithm={{name: {name}}}"]
    two_groups = Topology.from_cores([0, 1], num_gpus=2)
    (fault,) = check(config(*apart), two_groups)  # a batch is held until all hosts have met
    assert str(fault) == (
        "experience.capacity=2; trainers take batches of 1 segments, and hold each until the next "
        "has begun, and the links of 1 agents hold 1, beside one more each that is being sent. "
        "Use 3 or more, or lower batch_segments."
    )
    assert check(config(*apart, "experience.capacity=3"), two_groups) == []
    (lacking,) = check(config(*apart, "experience.capacity=3"), TWO_CORES)
    assert "simulation and training need a device each, and there is one. Set" in str(lacking)


def test_links_join_gmis_of_one_host_alone(tmp_path):
    layout = Layout.joined([decoupled(gpus(2), 2, 8, "direct"), decoupled(gpus(3), 1, 8)])
    ids = [(0, [(0, 2), (1, 2), (0, 3), (1, 3)]), (1, [(4, 6), (5, 6)])]
    for host, pairs in ids:
        wires = wires_of(layout, tmp_path, host)
        assert [link[:2] for link in wires.links] == pairs
        assert f"host {host}" in wires.board.writer_name
        assert wires.board.writer_name.startswith(f"gmi {pairs[0][1]}, ")


def test_fewer_hosts_than_there_may_be_are_a_fault(tmp_path):
    (fault,) = check(config(hosts_min=3), TWO_CORES)
    assert str(fault) == "cluster.hosts_min=3; the run has 2 hosts. Use 2 or fewer."
    file = tmp_path / "layout.yaml"
    file.write_text("version: 1\n")
    shrinks = config(f"layout.file={file}", on_loss="shrink")
    assert any("layout.file says what GMIs there are" in str(f) for f in check(shrinks, TWO_CORES))


@pytest.mark.usefixtures("warm")
def test_plan_draws_host_by_host(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file, picture = tmp_path / "config.yaml", tmp_path / "picture.svg"
    file.write_text(
        "version: 1\nenv: {id: CartPole-v1, num_env: 4}\nhardware: {backend: cpu, cores: [0]}\n"
        "cluster: {address: '10.0.0.1:6379', hosts: 3}\n"
    )
    assert main(["plan", str(file), "--no-measure", "--svg", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "CartPole-v1, 12 in all" in shown
    assert "the hosts are taken to be as this machine; launch asks them" in shown
    drawn = [line.split("  ")[1] for line in shown.splitlines() if line.startswith("  host ")]
    assert drawn[-3:] == ["host 0, device 0", "host 1, device 1", "host 2, device 2"]
    assert "gradients  network of GMIs 0-2" in shown
    words = " ".join(shown.split())
    found = re.search(
        r"between 3 hosts ([\d,]+) numbers, .* in two steps; a host sends (\d+) KiB", words
    )
    assert found is not None
    numel = int(found[1].replace(",", ""))
    assert int(found[2]) == round(4 * numel * 4 / 3 / 1024)  # 2 (n - 1) / n of the vector
    assert "3 groups of cores of 3 hosts" in picture.read_text()
    assert "not known: hosts measure them when they train together" in words
    links = {"one_step": Link(0.001, 0.0, 0.0, ()), "two_steps": Link(0.002, 0.0, 0.0, ())}
    keep([f"10.0.0.{host}" for host in (1, 2, 3)], links, "fp32")
    assert main(["plan", str(file), "--no-measure"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert re.search(r"in one step; a host sends (\d+) KiB", words)[1] == str(
        round(8 * numel / 1024)
    )
    assert f"one step 1 ms, two steps 2 ms, so {8 * numel / 1e3:.3g} MB/s from each" in words
    assert "between 10.0.0.1, 10.0.0.2, 10.0.0.3" in words
    assert main(["plan", str(file), "--no-measure", "--set", "run.deterministic=true"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "in two steps; a host sends" in words
    assert "not measured: run.deterministic leaves nothing to a clock" in words
    assert main(["plan", str(file), "--no-measure", "--json"]) == 0
    across = json.loads(capsys.readouterr().out)["across_hosts"]
    assert (across["count"], across["way"], across["sent_bytes"]) == (3, "one_step", 8 * numel)


@pytest.mark.usefixtures("warm")
@pytest.mark.skipif(len(CORES) < 2, reason="agent and trainer of a host need a core each")
def test_plan_draws_channels_within_each_host(tmp_path, capsys):
    file, picture = tmp_path / "config.yaml", tmp_path / "picture.svg"
    file.write_text(
        "version: 1\nmode: async\nenv: {id: CartPole-v1, num_env: 4}\n"
        f"hardware: {{backend: cpu, cores: {CORES[:2]}, num_gpus: 2}}\n"
        "experience: {capacity: 3}\n"
        "cluster: {address: '10.0.0.1:6379', hosts: 2}\n"
    )
    assert main(["plan", str(file), "--no-measure", "--svg", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "gradients  network of GMIs 1,3" in shown
    assert "channels   GMI 0 to GMI 1: experience" in shown
    assert "GMI 2 to GMI 3: experience" in shown
    assert "GMI 0 to GMIs 1,3" not in shown


# Some hosts train, and the others sample for them.


APART = ("mode=async", "algorithm={name: impala}", "env.num_env=8")
ONE_CORE = Topology.from_cores([0])


def plan(*overrides, topologies, **cluster):
    given = config(*APART, *overrides, hosts=len(topologies), **cluster)
    return planned(given, hosts=[(topology, None) for topology in topologies])


def faults_in(*overrides, topologies, **cluster):
    with pytest.raises(ConfigError) as raised:
        plan(*overrides, topologies=topologies, **cluster)
    return [str(fault) for fault in raised.value.faults]


def roles_of(layout):
    """Returns the last role of each GMI, host by host."""
    hosts = range(layout.hosts)
    return [[gmi.roles[-1] for gmi in layout.on_host(host)] for host in hosts]


def pairs_of(layout):
    return [(source.gmi_id, target.gmi_id) for source, target in decoupled.channels(layout)]


def test_hosts_beyond_trainer_hosts_only_sample_and_those_before_may_only_train():
    layout = plan(
        "layout.trainer_gpus=2", "hardware.backend=direct", topologies=[gpus(2)] * 3,
        trainer_hosts=1,
    )  # fmt: skip
    assert roles_of(layout) == [["trainer"] * 2, ["agent"] * 2, ["agent"] * 2]
    assert [gmi.num_env for gmi in layout.gmis] == [0, 0, 8, 8, 8, 8]
    assert pairs_of(layout) == [(agent, trainer) for trainer in (0, 1) for agent in (2, 3, 4, 5)]
    assert layout_faults_of(config(*APART, hosts=3, trainer_hosts=1), layout) == []


def test_a_host_that_trains_may_sample_for_itself_beside_those_that_sample_for_all():
    layout = plan(
        "hardware.backend=direct", topologies=[gpus(2), gpus(3), gpus(1)], trainer_hosts=2
    )
    assert roles_of(layout) == [["agent", "trainer"], ["agent", "agent", "trainer"], ["agent"]]
    assert pairs_of(layout) == [(0, 1), (5, 1), (2, 4), (3, 4), (5, 4)]


def test_hosts_of_one_device_each_can_share_the_work():
    (fault,) = faults_in("experience.capacity=3", topologies=[ONE_CORE] * 2)
    assert "simulation and training need a device each, and there is one" in fault
    layout = plan(topologies=[ONE_CORE] * 2, trainer_hosts=1)
    assert roles_of(layout) == [["trainer"], ["agent"]]


def test_without_hosts_to_ask_both_kinds_are_taken_to_be_as_this_machine():
    here = ("hardware.backend=cpu", f"hardware.cores=[{CORES[0]}]", "experience.capacity=4")
    layout = planned(config(*APART, *here, hosts=5, trainer_hosts=2))
    assert roles_of(layout) == [["trainer"]] * 2 + [["agent"]] * 3
    assert {gmi.cores for gmi in layout.gmis} == {(CORES[0],)}


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["cluster.trainer_hosts=0"], "cluster.trainer_hosts=0; must be 1 or more"),
        (["mode=sync", "algorithm={name: ppo}"], "in template tcg_ex each host trains on what it"),
        (["layout={file: layout.yaml}"], "layout.file says the GMIs of one host, and all hosts"),
    ],
)
def test_some_hosts_train_for_all_in_template_decoupled_alone(overrides, told, tmp_path):
    def tried():
        return check(config(*APART, "cluster.trainer_hosts=1", *overrides), ONE_CORE)

    if "must be" in told:
        with pytest.raises(ConfigError, match=told):
            tried()
    else:
        assert any(told in str(fault) for fault in tried()), tried()


@pytest.mark.parametrize("count", [2, 3])  # 3: as when the run has lost a host
def test_as_many_trainer_hosts_as_hosts_or_more_are_all_of_them(count):
    two = Topology.from_cores([0, 1], 2)
    words = ("experience.capacity=3",)
    layout = plan(*words, topologies=[two] * 2, trainer_hosts=count)
    assert layout == plan(*words, topologies=[two] * 2)
    (fault,) = faults_in(*words, "layout.trainer_gpus=2", topologies=[two] * 2, trainer_hosts=count)
    assert "of 2 devices one or more must be left for simulation. Use 1 or fewer" in fault


def test_a_host_that_trains_has_no_more_trainers_than_devices():
    unlike = [gpus(1), gpus(4), gpus(4)]
    (fault,) = faults_in("layout.trainer_gpus=2", topologies=unlike, trainer_hosts=2)
    assert fault == (
        "host 0: layout.trainer_gpus=2; a host that trains has 1 device. Use 1 or fewer."
    )


def test_a_fault_of_some_hosts_names_them():
    hosts = [Topology.from_cores(range(2))] + [ONE_CORE] * 3
    (fault,) = faults_in("layout.gmi_per_gpu=2", topologies=hosts, trainer_hosts=1)
    assert fault.startswith("hosts 1-3: layout.gmi_per_gpu=2; device 0 has 1 of the 1 cores")


def test_a_batch_has_room_on_the_links_of_the_trainer_that_has_fewest():
    words, two = ("experience.batch_segments=4",), Topology.from_cores([0, 1], 2)
    hosts = [two, Topology.from_cores(range(4), 4), two]
    (fault,) = faults_in(*words, topologies=hosts, trainer_hosts=2)
    assert fault == (
        "experience.capacity=2; trainers take batches of 4 segments, and hold each until the next "
        "has begun, and the links of 3 agents hold 3, beside one more each that is being sent. Use "
        "4 or more, or lower batch_segments."
    )
    plan(*words, "experience.capacity=4", topologies=hosts, trainer_hosts=2)
    alone = [ONE_CORE, *[two] * 2]  # one trainer, which waits for no other
    assert roles_of(plan(*words, topologies=alone, trainer_hosts=1))[0] == ["trainer"]


def test_learning_from_other_hosts_is_checked_with_the_gmis_of_all():
    words = ("algorithm={name: dqn, batch_size: 64, replay_start: 10, horizon: 4}",)
    (fault,) = faults_in(*words, topologies=[ONE_CORE] * 2, trainer_hosts=1)
    assert fault.startswith("algorithm.batch_size=64; must be at most 32, the rows that are there")
    (fault,) = faults_in("algorithm={name: ppo}", topologies=[ONE_CORE] * 2, trainer_hosts=1)
    assert fault.startswith("algorithm.name='ppo'; ")


def test_a_layout_that_some_hosts_train_in_has_agents_and_trainers_in_all():
    layout = plan(topologies=[ONE_CORE] * 3, trainer_hosts=1)
    given = config(*APART, hosts=3, trainer_hosts=1)
    assert layout_faults_of(given, layout) == experience_faults(given, layout) == []
    trainers = replace(
        layout,
        gmis=tuple(replace(gmi, roles=("trainer",), num_env=0) for gmi in layout.gmis),
    )
    faults = [str(fault) for fault in layout_faults_of(given, trainers)]
    assert any("no GMI of the layout holds a agent" in fault for fault in faults), faults
    (fault,) = layout_faults_of(config(*APART, hosts=3, trainer_hosts=2), layout)
    assert str(fault) == (
        "cluster.trainer_hosts=2; the layout has trainers on 1 host. Give as many, or begin a new "
        "run."
    )


def test_a_run_that_may_shrink_has_a_host_left_to_sample():
    hosts = [ONE_CORE] * 3
    (fault,) = faults_in(topologies=hosts, trainer_hosts=1, on_loss="shrink")
    assert fault == (
        "host 0: cluster.hosts_min=1; with so few hosts all of them train, on every device, and "
        "none is left to sample. Use 2 or more."
    )
    plan(topologies=hosts, trainer_hosts=1, on_loss="shrink", hosts_min=2)
    plan(topologies=[Topology.from_cores([0, 1], 2)] * 3, trainer_hosts=1, on_loss="shrink")


def test_links_between_hosts_are_no_descriptors_of_a_process():
    many = Topology.from_cores(range(300), 300)
    layout = plan("hardware.backend=cpu", topologies=[ONE_CORE, many], trainer_hosts=1)
    assert len(pairs_of(layout)) == 300
    (fault,) = faults_in("hardware.backend=cpu", topologies=[many, ONE_CORE], trainer_hosts=1)
    assert "links=299; with their doorbells these are 303 descriptors" in fault


def test_hosts_that_sample_reduce_nothing():
    few = config(*APART, hosts=4, trainer_hosts=1)
    assert across_hosts(few, 1000) is None
    across = across_hosts(config(*APART, hosts=4, trainer_hosts=3), 1000)
    assert across.count == 3


def test_a_host_without_trainers_and_one_without_agents_need_memory_of_their_own():
    given = config(*APART, hosts=2, trainer_hosts=1)

    def plan_with(*free):
        return planned(given, hosts=[(ONE_CORE, HostMemory(1 << 40, size)) for size in free])

    assert len(plan_with(1 << 40, 1 << 40).gmis) == 2
    for host in (0, 1):
        free = [1 << 40, 1 << 40]
        free[host] = 1 << 10
        with pytest.raises(ConfigError, match=rf"host {host}: .* a GMI needs .* and the machine"):
            plan_with(*free)


@pytest.mark.usefixtures("warm")
def test_plan_draws_what_crosses_from_host_to_host(tmp_path, capsys):
    file, picture = tmp_path / "config.yaml", tmp_path / "picture.svg"
    file.write_text(
        "version: 1\nmode: async\nenv: {id: CartPole-v1, num_env: 4}\n"
        f"hardware: {{backend: cpu, cores: [{CORES[0]}]}}\n"
        "algorithm: {network: [8], horizon: 16}\n"
        "cluster: {address: '10.0.0.1:6379', hosts: 3, trainer_hosts: 1}\n"
    )
    assert main(["plan", str(file), "--no-measure", "--svg", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "gradients" not in shown
    assert "channels   GMIs 1-2 to GMI 0: experience" in shown
    words = " ".join(shown.split())
    assert "2 hosts send to the trainers of 1 host" in words
    nbytes = 4 * (16 * (STEP + 4) + 16) + 7 * 8
    assert f"{nbytes / 1e3:.1f} KB, 16 steps of 4 environments" in words
    assert "34 bytes, 0.339 MB/s for each 10,000 steps/s that these hosts sample" in words
    found = re.search(r"([\d.]+) KB to each of these hosts, at most ([\d.]+) MB/s for each", words)
    assert float(found[2]) == pytest.approx(float(found[1]) * 1e3 / 64 * 1e4 / 1e6, rel=0.05)
    assert main(["plan", str(file), "--no-measure", "--json"]) == 0
    across = json.loads(capsys.readouterr().out)["experience_across"]
    assert (across["sampling_hosts"], across["segment_bytes"]) == (2, nbytes)
    assert "3 groups of cores of 3 hosts" in picture.read_text()
    assert main(["plan", str(file), "--no-measure", "--layout", str(tmp_path / "l.yaml")]) == 2
    assert "by cluster.trainer_hosts they differ. Leave it out." in capsys.readouterr().err


STEP = 4 * 4 + 4 + 4 + 4  # observation, action, reward, done


@pytest.mark.parametrize(
    ("algorithm", "step", "begin"),
    [
        ({"name": "impala"}, STEP + 4, 0),  # with the action's probability
        ({"name": "impala", "recurrent": {"cell": "gru", "size": 8}}, STEP + 4, 8),  # and a state
        ({"name": "dqn"}, STEP + 1 + 16, 0),  # with terminated and the next observation
        ({"name": "dqn", "sampler": "prioritized"}, STEP + 1 + 16 + 4, 0),
    ],
)
def test_the_size_of_a_segment_is_that_of_what_an_algorithm_has_sent(algorithm, step, begin):
    words = {"mode": "async", "algorithm": {**algorithm, "network": [8], "horizon": 16}}
    given = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 3}, **words})
    layout = decoupled(Topology.from_cores([0, 1], 2), 1, 3)
    segment_bytes, policy_bytes = sizes_of(given, layout, "gmi_drl.roles:Agent")
    assert segment_bytes == 3 * (16 * step + 16 + 4 * begin) + 7 * 8
    assert policy_bytes > 4 * (4 * 8 + 8 + 8 * 3)


class Lone(gmi_drl.DRL_role):
    def GMI_run(self):
        return None


def test_a_size_that_nobody_can_say_is_not_known():
    given = config(*APART, "env.adapter=isaacgym", hosts=2, trainer_hosts=1)
    layout = Layout.joined([decoupled(TWO_CORES, 1, 8, trainer_gpus=0)])
    across = experience_across(given, layout)
    assert "isaacgym" in across.unknown
    assert across.segment_bytes is across.policy_bytes is None
    assert experience_across(config(*APART), layout) is None
    assert sizes_of(given, layout, Lone) is None


@pytest.mark.parametrize("command", [["tune"], ["search"], ["launch", "--seeds", "2"]])
def test_what_is_for_one_machine_refuses_a_cluster(tmp_path, command, capsys):
    runtime.shutdown()  # as commands start their own
    file = tmp_path / "config.yaml"
    file.write_text(
        "version: 1\nenv: {id: CartPole-v1, num_env: 4}\n"
        "cluster: {address: '10.0.0.1:6379', hosts: 2}\n"
        "search: {ranges: {algorithm.learning_rate: {log_uniform: [1e-4, 1e-2]}}}\n"
    )
    name, *options = command
    assert main([name, str(file), *options]) != 0
    assert "for one machine. Leave out cluster." in capsys.readouterr().err


def test_a_host_with_more_links_than_its_one_trainer_can_be_told_of_is_refused():
    words = ("mode=async", "algorithm={name: impala}", "layout.trainer_gpus=1", "env.num_env=8")
    large = config(*words, "hardware.backend=cpu", "hardware.num_gpus=251")
    with pytest.raises(ConfigError) as raised:
        planned(large, hosts=[(Topology.from_cores(range(251), 251), None)] * 2)
    assert "links=250; with their doorbells these are 254 descriptors" in str(raised.value)


def test_hosts_of_which_some_have_no_gpu_are_refused():
    mixed = [gpus(2), TWO_CORES, TWO_CORES]
    with pytest.raises(ConfigError) as raised:
        planned(config("env.num_env=8", hosts=3), hosts=[(host, None) for host in mixed])
    assert (
        "hardware.backend='auto'; hosts 1 and 2 have no GPU that can be used, and the others "
        "have. Use cpu, by which all train on their cores, or hosts that are alike; with template "
        "decoupled, cluster.trainer_hosts can say how many have GPUs and train."
    ) in str(raised.value)


def test_hosts_with_gpus_train_for_hosts_that_have_none(tmp_path):
    hosts, words = [gpus(2), TWO_CORES, TWO_CORES], ("layout.trainer_gpus=2", "env.num_env=8")
    layout = plan(*words, topologies=hosts, trainer_hosts=1)
    assert roles_of(layout) == [["trainer", "trainer"], ["agent"], ["agent"]]
    assert [gmi.backend for gmi in layout.gmis] == ["direct"] * 2 + ["cpu"] * 2
    crossings = [
        Crossings(layout, host, f"127.0.0.{2 + host}", private(tmp_path / f"host{host}"))
        for host in range(3)
    ]
    told = [crossing.peer_info for crossing in crossings]
    for crossing in crossings:
        crossing.connect(told)
    assert [[link[:2] for link in crossing.experience] for crossing in crossings] == [
        [(2, 0), (3, 0), (2, 1), (3, 1)], [(2, 0), (2, 1)], [(3, 0), (3, 1)],
    ]  # fmt: skip
    assert [len(crossing.policies_out) for crossing in crossings] == [2, 0, 0]
    assert [crossing.policies_into is None for crossing in crossings] == [True, False, False]


def private(folder):
    """Makes a private folder."""
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize("gpu_hosts", [1, 3])
def test_hosts_of_one_kind_are_alike(gpu_hosts):
    hosts = [gpus(1)] * gpu_hosts + [TWO_CORES] * (4 - gpu_hosts)
    (fault,) = faults_in("env.num_env=8", topologies=hosts, trainer_hosts=2)
    assert "no GPU that can be used, and the others have" in fault


def test_each_host_has_to_have_the_memory_that_its_gmis_need():
    def plan(*free):
        hosts = [(TWO_CORES, HostMemory(1 << 40, size)) for size in free]
        return planned(config("env.num_env=8"), hosts=hosts)

    assert len(plan(1 << 40, 1 << 40).gmis) == 2
    with pytest.raises(ConfigError, match=r"host 1: .* a GMI needs .* and the machine has"):
        plan(1 << 40, 1 << 10)
