"""What keeps hosts from training together is told before anything trains: value, rule, remedy."""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bodies_scripted
import fake_ray
from bodies_scripted import CORE, Instant, Once, Scripted, launched, three_hosts
from fake_ray import FakeHost
from gmi_drl.gmi.usage.processes import HostMemory
from gmi_drl.launcher.hosts import drains, host_launcher
from gmi_drl.launcher.hosts.agent import same_folder
from gmi_drl.launcher.hosts.cluster import joined
from gmi_drl.launcher.hosts.messages import HostPart, HostsError
from gmi_drl.launcher.plan.user_modules import digests_beside, other_files
from gmi_drl.placement import ConfigError, Layout, Topology, load_config, tcg_ex
from gmi_drl.roles.role.job import RunFacts


def config(address, **cluster):
    return load_config(bodies_scripted.config(address, **{"hosts": 2, "wait_s": 0.1, **cluster}))


def refusal(monkeypatch, *hosts, **cluster):
    """What `joined` says of a cluster of these hosts."""
    monkeypatch.setattr("gmi_drl.launcher.hosts.cluster.NodeAgent", Instant)
    with (
        fake_ray.cluster(*hosts) as address,
        pytest.raises(HostsError) as raised,
        joined(config(address, **cluster)),
    ):
        pass
    return str(raised.value)


@pytest.mark.parametrize("url", ["s3://bucket/runs", "memory://runs", "file:///shared/runs"])
def test_a_url_as_the_folder_of_a_run_is_a_fault(url):
    with pytest.raises(ConfigError) as raised:
        load_config({"version": 1, "env": {"id": "CartPole-v1"}}, [f"run.folder={url}"])
    assert f"run.folder={url}" in str(raised.value).replace("'", "")
    assert "is a URL; a run locks, renames and appends to files" in str(raised.value)
    assert "Mount it, and give the path there" in str(raised.value)


def test_hosts_that_are_alike_are_joined_in_the_order_of_their_addresses():
    hosts = [FakeHost("127.0.0.20"), FakeHost("127.0.0.3", clock_off_s=2.0)]
    with fake_ray.cluster(*hosts) as address, joined(config(address)) as found:
        assert [host.facts.address for host in found.hosts] == ["127.0.0.3", "127.0.0.20"]
        assert [len(host.topology.devices) for host in found.hosts] == [1, 1]


@pytest.mark.parametrize("what", ["Python", "torch", "gmi-drl", "mujoco"])
def test_a_host_with_another_version_is_named(what, monkeypatch):
    told = refusal(
        monkeypatch, FakeHost("127.0.0.2"), FakeHost("127.0.0.3", versions={what: "0.1"})
    )
    assert told.startswith("host 127.0.0.3 (")
    assert f"it has {what} 0.1, and this program " in told
    assert told.endswith("Install the same on all hosts.")


@pytest.mark.parametrize(("off_s", "side"), [(3600.0, "ahead of"), (-3600.0, "behind")])
def test_a_host_whose_clock_is_far_off_is_named(off_s, side, monkeypatch):
    told = refusal(monkeypatch, FakeHost("127.0.0.2"), FakeHost("127.0.0.3", clock_off_s=off_s))
    assert told.startswith("host 127.0.0.3 (")
    assert f" s {side} that of this program; 10 s are let pass. Set both by NTP" in told


def test_a_host_that_ray_drains_is_named(monkeypatch):
    told = refusal(monkeypatch, FakeHost("127.0.0.2"), FakeHost("127.0.0.3", is_drained=True))
    assert told.startswith("host 127.0.0.3 (")
    assert "Ray drains it: it is taken away soon. Wait until another one" in told


@pytest.mark.parametrize("name", ["GcsClient", "get_all_node_info"])
def test_a_release_of_ray_that_does_not_say_which_hosts_it_drains_is_warned_of(name, monkeypatch):
    monkeypatch.setattr(drains, "_ASK_S", 0.01)
    with fake_ray.cluster() as address:
        where = sys.modules["ray._raylet"] if name == "GcsClient" else fake_ray.GcsClient
        monkeypatch.delattr(where, name)
        with pytest.warns(UserWarning, match=f"does not say which hosts it drains.*{name}"):
            drained = drains.Drains(address)
        drained._thread.join(20)
    assert not drained._thread.is_alive()  # it asks no more
    assert drained.nodes == frozenset()


def test_fewer_hosts_than_asked_are_told_with_what_each_has_free(monkeypatch):
    told = refusal(monkeypatch, FakeHost("127.0.0.2", cpus=4.0))
    assert told.startswith("cluster.hosts=2: each wants 1 CPU, and after 0.1 s the cluster at ")
    assert "has 1 host: 127.0.0.2 has 4 of 4 CPU free. Add hosts" in told


def test_a_cluster_whose_head_hangs_is_not_joined(monkeypatch):
    with fake_ray.cluster(), socket.create_server(("127.0.0.1", 0)) as server:  # nobody takes it
        from gmi_drl.runtime.engines.ray import nodes

        monkeypatch.setattr(nodes, "_CONNECT_S", 0.1)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(HostsError) as raised, joined(config(address)):
            pass
    told = str(raised.value)
    assert told.startswith(f"cluster.address={address}: this cluster cannot be joined")
    assert "nothing answers there within 0.1 s (timed out)" in told


def part_of(folder, given, role_folder=None, **more):
    """Returns what host 1 of two is told of a run."""
    layout = Layout.joined([tcg_ex(Topology.from_cores([CORE]), 1, 8)] * 2)
    run = RunFacts(
        layout=layout, config=given, folder=folder, resume=None, classes={},
        role_folder=role_folder, session="", epoch=1,
    )  # fmt: skip
    return HostPart(
        host=1, addresses=("10.0.0.1", "10.0.0.2"), run=run, folder=folder, started=1.0,
        max_restarts=0, traced=frozenset(), keeps_gcs=False, **more,
    )  # fmt: skip


def test_a_folder_that_hosts_do_not_share_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(host_launcher, "_SHARED_S", 0.0)
    part = part_of(tmp_path, config("10.0.0.1:1"))
    with pytest.raises(HostsError) as raised:
        host_launcher._run(part, None)
    told = str(raised.value)
    assert told.startswith(f"run.folder={tmp_path}: host 1 (10.0.0.2) does not see what the driver")
    assert told.endswith("Put it on a file system that all hosts share, at the same path.")


def test_an_interface_that_a_host_has_not_is_told(tmp_path):
    (tmp_path / "run.json").write_text('{"started": 1.0}')
    given = config("10.0.0.1:1", network="trusted", interface="none7")
    part = part_of(tmp_path, given)
    with pytest.raises(HostsError) as raised:
        host_launcher._run(part, None)
    told = str(raised.value)
    assert told.startswith("cluster.interface=none7: host 1 (10.0.0.2) has lo")
    assert told.endswith("Name one that all hosts have, or none.")


def test_a_folder_is_shared_if_it_has_what_the_driver_has_written(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"started": 1.0}')
    assert same_folder(tmp_path, 1.0, 0.0)
    assert not same_folder(tmp_path, 2.0, 0.0)


def test_an_address_where_nobody_answers_is_told():
    with (
        fake_ray.cluster(),
        pytest.raises(HostsError) as raised,
        joined(config("127.0.0.1:9")),
    ):
        pass
    told = str(raised.value)
    assert told.startswith("cluster.address=127.0.0.1:9: this cluster cannot be joined (")
    assert "nothing answers there within 10 s" in told
    assert told.endswith("give the address that `ray start --head` has printed.")


def test_a_host_with_other_code_of_the_user_is_told(tmp_path):
    run, here, there = (tmp_path / name for name in ("run", "here", "there"))
    for folder in (run, here, there):
        folder.mkdir()
    (run / "run.json").write_text('{"started": 1.0}')
    given = {
        **config("10.0.0.1:1").model_dump(mode="json"),
        "env": {"id": "world:World-v0", "wrappers": [{"pack.wrap:Wrap": {"by": 2}}]},
        "roles": {"trainer": "mine:Mine"},
    }
    (here / "pack").mkdir()
    for name in ("world.py", "pack/wrap.py", "mine.py", "unnamed.py"):
        (here / name).write_text(name)
    digests = digests_beside(load_config(given), here)
    assert sorted(digests) == ["mine.py", "pack/wrap.py", "world.py"]
    assert other_files(digests, here) == []
    (there / "world.py").write_text("world.py")
    (there / "mine.py").write_text("of last week")
    assert sorted(other_files(digests, there)) == ["mine.py", "pack/wrap.py"]
    wanted = {"mine.py": digests["mine.py"]}
    part = part_of(run, config("10.0.0.1:1"), there, digests=wanted)
    with pytest.raises(HostsError) as raised:
        host_launcher._run(part, None)
    assert str(raised.value) == (
        f"{there}/mine.py: host 1 (10.0.0.2) has none, or another one than the launching program. "
        "Copy it to all hosts, or launch from a folder that they share."
    )


def test_memory_is_that_of_each_host(tmp_path, monkeypatch):
    class Small(Scripted):
        def report(self, orders):
            report = super().report(orders)
            return replace(report, memory=HostMemory(1 << 10, 1 << 10))

    with (
        three_hosts(monkeypatch, agent=Small) as (_, given),
        pytest.raises(ConfigError, match=r"GMI needs .* and the machine has"),
    ):
        launched(given, tmp_path, Once())
