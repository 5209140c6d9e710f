"""Ways between hosts: what is measured, kept, planned by, and what each takes of a vector."""

from dataclasses import replace

import pytest

from gmi_drl.comm.hosts import steps
from gmi_drl.comm.links import link_record
from gmi_drl.comm.links.host_links import keep, newest, reduction_across
from gmi_drl.comm.links.links import Link, fastest
from gmi_drl.comm.reducers.host_ways import SIZES, measure

LINKS = {"one_step": Link(1e-3, 9e-9, 0.0, ()), "two_steps": Link(3e-3, 1e-9, 0.0, ())}
HOSTS = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gmi-drl" / "links.json"


class Network:
    """Takes alpha + beta n for a vector of n bytes, by a clock of its own."""

    def __init__(self, links):
        self.links, self.calls, self.spent_s = links, [], 0.0

    def all_reduce(self, way, vector):
        self.calls.append((way, vector.nbytes))
        self.spent_s += self.links[way].seconds(vector.nbytes)

    def largest(self, _):
        spent_s, self.spent_s = self.spent_s, 0.0
        return spent_s


def measured(links):
    """What leaders measure on a network, and in how many steps."""
    network, steps_done = Network(links), 0
    measuring = measure([*links], network.all_reduce, network.largest)
    while True:
        try:
            steps_done += next(measuring)
        except StopIteration as stop:
            return network, steps_done, stop.value


def test_each_way_is_measured_at_several_sizes():
    network, steps_done, found = measured(LINKS)
    assert steps_done == 3 * len(LINKS) * len(SIZES)
    for way, link in found.items():
        assert (link.alpha_s, link.beta_s_per_byte) == pytest.approx(
            (LINKS[way].alpha_s, LINKS[way].beta_s_per_byte)
        )
    assert {nbytes for _, nbytes in network.calls} == {*SIZES}


def test_a_slow_network_is_measured_at_two_sizes_once():
    network, steps_done, links = measured({"two_steps": Link(1.0, 1e-6, 0.0, ())})
    assert links["two_steps"].alpha_s == pytest.approx(1.0)
    assert [nbytes for _, nbytes in network.calls] == [size for size in SIZES[:2] for _ in range(4)]
    assert steps_done == 2


def test_what_a_slow_network_does_not_bring_across_in_time_is_not_tried():
    network, _, links = measured({"two_steps": Link(0.0, 1e-6, 0.0, ())})  # 1 MB/s
    assert links["two_steps"].beta_s_per_byte == pytest.approx(1e-6)
    assert {nbytes for _, nbytes in network.calls} == {*SIZES[:2]}
    assert len(network.calls) > 8  # and the others more than once


def test_what_takes_least_depends_on_the_size():
    assert fastest(LINKS, 4) == "one_step"
    assert fastest(LINKS, 1 << 20) == "two_steps"


def test_links_between_hosts_are_kept_beside_those_of_machines(cache):
    machine = {"processor": "i"}
    key = link_record.LinkKey("host", 2, 1, 1, 2)
    link_record.store(cache, machine, {key: LINKS["one_step"]})
    keep(HOSTS, LINKS, "fp32")
    assert link_record.load(cache, machine) == ({key: LINKS["one_step"]}, "")
    assert link_record.load(cache, {"processor": "j"})[1].endswith("links are measured anew")
    assert newest(2, "", "fp32") is None
    assert newest(3, "", "fp32").links == LINKS
    assert newest(3, "", "fp32").addresses == tuple(HOSTS)
    cache.write_text("{")
    assert newest(3, "", "fp32") is None


def test_sets_of_hosts_never_push_a_machine_out_of_the_record(cache):
    machine, key = {"processor": "i"}, link_record.LinkKey("host", 2, 1, 1, 2)
    link_record.store(cache, machine, {key: LINKS["one_step"]})
    for number in range(40):  # as many runs in containers, whose addresses are never the same
        keep([f"10.0.{number}.1", f"10.0.{number}.2"], LINKS, "fp32")
    assert link_record.load(cache, machine)[0] == {key: LINKS["one_step"]}
    assert len(link_record.machines(cache)) == 33
    assert newest(2, "10.0.39.1", "fp32").addresses[0] == "10.0.39.1"
    assert newest(2, "10.0.0.1", "fp32").addresses[0] == "10.0.39.1"


@pytest.mark.parametrize("folder", ["a_file/below", "missing/too"])
def test_a_cache_that_cannot_be_written_or_is_not_there_ends_nothing(tmp_path, monkeypatch, folder):
    (tmp_path / "a_file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
    keep(HOSTS, LINKS, "fp32")
    found = newest(3, "", "fp32")
    assert (found is None) == (folder == "a_file/below")


def test_the_newest_hosts_are_taken_but_for_those_of_the_cluster():
    keep(HOSTS, LINKS, "fp32")
    keep(["10.0.1.1", "10.0.1.2", "10.0.1.3"], LINKS, "fp32")
    assert newest(3, "10.0.0.9", "fp32").addresses[0] == "10.0.1.1"
    assert newest(3, "10.0.0.2", "fp32").addresses == tuple(HOSTS)


def test_a_plan_takes_the_fastest_way_that_the_network_allows():
    def plan(numel, wire="fp32", **given):
        return reduction_across(
            3, numel, "", wire, **{"trusted": False, "repeatable": False, **given}
        )

    usual = plan(50_000)
    assert (usual.way, usual.measured) == ("two_steps", None)
    assert usual.sent_bytes == pytest.approx(4 * 50_000 * 4 / 3, abs=8)
    assert plan(250_000, trusted=True).way == "gloo"
    keep(HOSTS, {**LINKS, "gloo": Link(1e-4, 1e-9, 0.0, ())}, "fp32")
    assert plan(50_000).way == "one_step"
    assert plan(50_000).sent_bytes == 2 * 4 * 50_000
    assert plan(700_000).way == "two_steps"
    assert {*plan(50_000).measured.links} == {*LINKS}
    half = plan(50_000, "bf16")  # which nobody has measured
    assert (half.way, half.sent_bytes) == ("two_steps", usual.sent_bytes // 2)
    assert plan(50_000, trusted=True).way == "gloo"
    assert plan(50_000, repeatable=True) == replace(usual, repeatable=True)
    assert steps.usual_way(3, 200_000) == usual.way
    assert plan(50_000).measured.links["one_step"].alpha_s == 1e-3
