"""What is kept of what several hosts tell, and on what hosts their run goes on later."""

import sqlite3
from contextlib import closing

import pytest

import gmi_drl
from bodies_scripted import CORE, Once, Scripted, launched, three_hosts
from gmi_drl import runtime
from gmi_drl.launcher.hosts.stores import merged_stores, store_of_host
from gmi_drl.launcher.watch.policy_log import PolicyLog
from gmi_drl.placement import ConfigError, Device, Layout, Topology, load_config, tcg_ex
from gmi_drl.report.policy_lineage import PolicyReader
from gmi_drl.report.run_state import opened
from gmi_drl.runtime.gcs.gcs import Gcs


def version(number):
    """What a GMI tells of a version of the policy."""
    return {
        "generation": 0, "version": number, "updates": number, "steps": number, "lag": 0,
        "experience": "[]", "replay": "", "made_s": 1.0,
    }  # fmt: skip


BRANCH = {
    "kind": "branch", "generation": 0, "version": 0, "board": -1, "restored": "",
    "optimizer": "all_reduce, PPO", "began_s": 1.0, "last": [],
}  # fmt: skip


class Telling(Scripted):
    """Hosts of which the first passes on no lineage, and the others what they know at their end."""

    def report(self, orders):
        report = super().report(orders)
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


class OnGpus(Scripted):
    """An agent of a host with a GPU, or two, of which the ids begin with `kind`."""

    kind, count = "old", 1

    def report(self, orders):
        report = super().report(orders)
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


def test_stores_of_hosts_are_merged_in_the_order_in_which_they_began(tmp_path, monkeypatch):
    names = ["2-0", "2-1", "9-0", "10-0", "10-1", "10-10"]
    for name in names:
        store_of_host(tmp_path, *map(int, name.split("-"))).touch()
    (tmp_path / "hosts" / "of-a-user.sqlite").touch()
    merged = []
    monkeypatch.setattr(runtime, "merge_gcs", lambda path, host: merged.append((path.stem, host)))
    with merged_stores(tmp_path):
        assert merged == [(name, f"host {name.split('-')[1]}: ") for name in names]


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
