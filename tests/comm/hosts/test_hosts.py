"""Groups over several hosts, each an address of this machine: sums, generations, errors."""

import time

import numpy as np
import pytest

import bodies_comm
import bodies_hosts as bodies
from cluster import Cluster
from gmi_drl.comm import CommError, GroupMismatch, PeerLeft, ReduceTimeout
from gmi_drl.comm.hosts import read_endpoint
from gmi_drl.comm.links.host_links import newest
from gmi_drl.comm.links.links import LINK_KINDS
from ranks import pipe
from waits import until

LENGTHS = [0, 1, 997, 65_537]
TRUSTED = {"trusted": True}  # gloo between hosts
MEASURED = {**TRUSTED, "measures": True}
BOTH = pytest.mark.parametrize("spec", [{}, TRUSTED], ids=["private", "trusted"])
ALL = pytest.mark.parametrize(
    "spec", [{}, TRUSTED, MEASURED], ids=["private", "trusted", "measured"]
)


def check(outcomes, sizes, lengths, error=1e-6):
    size = sum(sizes)
    assert not [outcome for outcome in outcomes if not isinstance(outcome, tuple)], outcomes
    for index, numel in enumerate(lengths):
        vectors = [bodies_comm.vector(rank, numel, index).astype("f8") for rank in range(size)]
        total, bound = sum(vectors), sum(map(np.abs, vectors))
        for (found, *_), *_ in outcomes:
            for op, share in ((0, 1), (1, size)):
                result = found[op * len(lengths) + index]
                assert (np.abs(result - total / share) <= error * bound / share).all()
                first = outcomes[0][0][0][op * len(lengths) + index]
                np.testing.assert_array_equal(result.view("u4"), first.view("u4"))  # bits
    for (_, rows, sent), numbers, rank, generation in outcomes:
        assert rows.tolist() == [[10.0 + rank] * 5 for rank in range(size)]
        assert [set(values) for values in sent] == [{101.0 * src} for src in range(size)]
        assert numbers == [rank + 2**63 for rank in range(size)]
        assert generation == 0
    assert [outcome[2] for outcome in outcomes] == list(range(size))


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        pytest.param((2, 2), {}, marks=pytest.mark.slow),
        ((1, 2, 1), {}),
        ((2, 3), {"strategy": "har", "devices": [(0, 1), (0, 1, 1)]}),
        pytest.param((2, 2), {"strategy": "mrr", "devices": (0, 1)}, marks=pytest.mark.slow),
        ((1, 2, 1), {"wire": "bf16"}),
        pytest.param((1, 1, 1, 1, 1), {}, marks=pytest.mark.slow),
        ((1, 2, 1), {"spec": TRUSTED}),
        pytest.param((2, 2), {"spec": {**TRUSTED, "interface": "lo"}}, marks=pytest.mark.slow),
    ],
)
def test_hosts_reduce_as_one_and_all_gmis_read_the_same_bits(sizes, options):
    with Cluster(bodies.everything, sizes, LENGTHS, **options) as cluster:
        # rounded in a host, between hosts, and as a sum
        check(cluster.outcomes(), sizes, LENGTHS, 3 * 2**-8 if "wire" in options else 1e-6)


def test_large_sums_alone_travel_by_gloo_and_between_leaders():
    with Cluster(bodies.count_gloo, (2, 1), spec=TRUSTED) as cluster:
        assert cluster.outcomes() == [[977], [], [977]]


def test_leaders_measure_each_way_and_take_the_fastest():
    with Cluster(bodies.reduce_by_the_fastest, (1, 2, 1), spec=MEASURED) as cluster:
        outcomes = cluster.outcomes()
    measured, note, _ = outcomes[0]
    assert [outcome[0] for outcome in outcomes] == [measured, measured, {}, measured]
    assert [outcome[2] for outcome in outcomes] == [[10.0, 10.0, 10.0]] * 4
    kept = newest(3, "", "fp32")
    assert kept.addresses == ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    assert measured == {
        way: (link.alpha_s, link.beta_s_per_byte) for way, link in kept.links.items()
    }
    assert sorted(measured) == ["gloo", "one_step", "two_steps"]
    fastest = LINK_KINDS[min(measured, key=lambda way: measured[way][0] + 2.8e6 * measured[way][1])]
    assert note.startswith(f"3 hosts combine 2,734 KiB in {fastest}; measured: one step ")


def test_leaders_that_were_interrupted_measure_anew_so_that_all_know_the_same():
    with Cluster(bodies.measure_twice, (1, 2, 1), spec={"measures": True}) as cluster:
        outcomes = cluster.outcomes()
    measured, _ = outcomes[0]
    assert sorted(measured) == ["one_step", "two_steps"]
    assert outcomes == [(measured, 0), (measured, 0), ({}, 0), (measured, 0)]


def test_gmis_wait_for_their_leader_however_long_it_measures():
    with Cluster(
        bodies.wait_for_a_slow_network, (1, 2), timeout_s=4.0, spec={"measures": True}
    ) as cluster:
        assert cluster.outcomes() == [[0, 1, 2]] * 3


def test_a_leader_that_is_killed_while_it_measures_is_replaced():
    with Cluster(bodies.measure_until_killed, (2, 1), spec=MEASURED) as cluster:
        until((cluster.folders[1] / "measures").exists, "it measures")
        cluster.hosts[1].kill(0)
        cluster.hosts[1].restart(0)
        first, other, second = cluster.outcomes()
    assert first == second
    assert sorted(first[1]) == ["gloo", "one_step"]
    assert other == ([0, 1, 2], {})


def test_hosts_that_gloo_cannot_bind_to_are_told():
    with Cluster(bodies.count_gloo, (1, 1), spec={**TRUSTED, "interface": "none7"}) as cluster:
        outcomes = cluster.outcomes()
    assert all(isinstance(outcome, CommError) for outcome in outcomes), outcomes
    assert any("gloo cannot be connected to the other hosts at none7" in str(o) for o in outcomes)


@ALL
def test_a_gmi_that_is_replaced_brings_all_hosts_to_a_new_epoch(spec):
    told, stop = pipe()
    args = [(told,), (None,), (None,), (None,)]
    with Cluster(bodies.reduce_through_deaths, (2, 2), args_of=args, spec=spec) as cluster:
        for generation, (host, rank) in enumerate([(1, 1), (1, 0), (0, 0)]):
            cluster.until_reduced(generation)
            cluster.hosts[host].kill(rank)
            cluster.hosts[host].restart(rank)
        cluster.until_reduced(3)
        stop.send("stop")
        assert cluster.outcomes() == [(3, 10.0)] * 4


@pytest.mark.parametrize("rank", [0, 1], ids=["its leader", "another one"])
def test_other_hosts_are_told_of_a_gmi_that_is_replaced_before_it_is_set_up(rank):
    told, stop = pipe()
    args = [(told,), (None,), (None,)]
    with Cluster(bodies.set_up_for_long, (1, 2), args_of=args, timeout_s=16.0) as cluster:
        cluster.until_reduced(0)
        cluster.hosts[1].kill(rank)
        cluster.hosts[1].restart(rank)
        cluster.until_reduced(1)
        stop.send("stop")
        assert cluster.outcomes() == [(1, 6.0)] * 3


@pytest.mark.slow
def test_a_host_that_is_lost_is_waited_for_and_comes_back():
    told, stop = pipe()
    with Cluster(bodies.reduce_through_deaths, (1, 1), args_of=[(told,), (None,)]) as cluster:
        cluster.until_reduced(0)
        cluster.hosts[1].kill(0)
        cluster.driver.away.add(1)
        until((cluster.folders[0] / "told0").exists, "told of it")
        cluster.hosts[1].restart(0)
        until(lambda: read_endpoint(cluster.folders[1]).serial == 2, "host 1 is back")
        cluster.driver.away.clear()
        cluster.until_reduced(2)
        stop.send("stop")
        assert cluster.outcomes() == [(2, 3.0)] * 2


def test_gmis_that_come_back_when_other_hosts_have_finished_are_told_the_outcome():
    with Cluster(bodies.finish_or_stay, (1, 2)) as cluster:
        cluster.until_reduced(0)
        assert cluster.hosts[0].outcome(0) is None
        for rank in (0, 1):
            cluster.hosts[1].kill(rank)
        for rank in (0, 1):
            cluster.hosts[1].restart(rank)
        told = [cluster.hosts[1].outcome(rank) for rank in (0, 1)]
    assert told == [(0, "gmi 0", "done"), (0, "gmi 1", "done")]  # by the other host; by its leader


@BOTH
def test_a_host_that_is_killed_is_named_within_the_deadline(spec):
    listen, ready = pipe()
    args = [(None,), (None,), (ready,)]
    with Cluster(
        bodies.reduce_until_it_fails, (2, 1), args_of=args, timeout_s=4.0, spec=spec
    ) as cluster:
        assert listen.poll(60)
        began_s = time.monotonic()
        cluster.hosts[1].kill(0)
        outcomes = [cluster.hosts[0].outcome(rank) for rank in range(2)]
        assert time.monotonic() - began_s < 20  # 2 s, and a busy machine
    leader, other = outcomes
    assert isinstance(leader, ReduceTimeout)
    assert str(leader) == (
        "reduce timed out after 2 s: rank 2 (gmi 2, of host 1 at 127.0.0.2) has not arrived"
    )
    assert isinstance(other, PeerLeft)
    assert str(leader) in str(other)


def test_a_host_that_gives_up_tells_the_others_why():
    with Cluster(bodies.reduce_then_fail, (1, 2)) as cluster:
        outcomes = cluster.outcomes()
    assert [type(outcome) for outcome in outcomes] == [PeerLeft, PeerLeft, ValueError]
    assert "of host 1 at 127.0.0.2" in str(outcomes[0])
    assert "a reduction was given up: ValueError no more" in str(outcomes[0])


@BOTH
def test_hosts_that_do_different_things_are_told_so(spec):
    with Cluster(bodies.differently, (1, 1), spec=spec) as cluster:
        outcomes = cluster.outcomes()
    assert any(isinstance(outcome, GroupMismatch) for outcome in outcomes), outcomes
    assert {type(outcome) for outcome in outcomes} <= {GroupMismatch, PeerLeft}
    assert any("of another size" in str(outcome) for outcome in outcomes)
