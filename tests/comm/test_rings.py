"""Rings when a rank is late, fails or dies inside them: who is told what, and what is left."""

import threading

import pytest

import bodies_comm
import bodies_rings as bodies
from gmi_drl.comm import GroupMismatch, PeerLeft, ReduceTimeout, RingBroken
from ranks import Ranks, run_ranks
from waits import until

MRR = {"strategy": "mrr", "devices": (0, 0, 1, 1)}
HAR = {"strategy": "har", "devices": (0, 0, 1, 1)}


def kept(folder):
    files = [folder / str(rank) for rank in range(4)]
    return max(int(file.read_text()) if file.exists() else 0 for file in files)


@pytest.mark.parametrize(
    ("group", "at", "begun"),
    [
        pytest.param(MRR, 1, False, marks=pytest.mark.slow),  # the first ring
        (MRR, 2, True),  # the last one
        pytest.param(MRR, 6, False, marks=pytest.mark.slow),  # the way back
        (HAR, 1, True),
        pytest.param(HAR, 5, False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_rank_killed_inside_a_ring_is_replaced_and_the_rings_are_built_anew(
    tmp_path, group, at, begun
):
    victim = 0  # an endpoint, and a leader
    with Ranks(
        bodies.die_in_ring, 4, str(tmp_path), victim, at, begun, directory=tmp_path, **group
    ) as ranks:
        ranks.processes[victim].join(30)
        assert ranks.processes[victim].exitcode == -9
        ranks.restart(victim)
        more = kept(tmp_path) + 5
        until(lambda: kept(tmp_path) >= more, "five reductions more")
        (tmp_path / "enough").touch()
        outcomes = ranks.outcomes()
    assert outcomes == [(outcomes[0][0], 0)] * 4
    assert not list(tmp_path.glob("rings-*"))


@pytest.mark.parametrize("group", [MRR, HAR], ids=str)
def test_a_rank_that_stops_inside_a_ring_is_named_by_the_others(tmp_path, group):
    with Ranks(bodies.hang_in_ring, 4, 2, directory=tmp_path, **group) as ranks:
        for rank in (0, 1, 3):
            outcome = ranks.outcome(rank)
            assert isinstance(outcome, (ReduceTimeout, PeerLeft)), outcome
            assert "rank 2 (gmi 5, GPU 1) has not arrived" in str(outcome)


@pytest.mark.parametrize("group", [MRR, HAR], ids=str)
def test_a_rank_that_is_interrupted_in_a_ring_has_left_the_group(tmp_path, group):
    victim = 0  # an endpoint, and a leader
    outcomes = run_ranks(bodies.interrupted_in_ring, 4, victim, directory=tmp_path, **group)
    assert outcomes.pop(victim) == "interrupted"
    for outcome in outcomes:
        assert isinstance(outcome, PeerLeft)
        assert "given up: KeyboardInterrupt" in str(outcome)


@pytest.mark.parametrize("group", [MRR, HAR], ids=str)
def test_a_rank_that_comes_back_into_a_ring_too_late_is_told_so(tmp_path, group):
    victim = 2
    outcomes = run_ranks(bodies.pause_in_ring, 4, victim, directory=tmp_path, **group)
    assert isinstance(outcomes[victim], PeerLeft)
    for outcome in outcomes:
        assert "rank 2 (gmi 5, GPU 1) has not arrived" in str(outcome)


@pytest.mark.parametrize("group", [MRR, HAR], ids=str)
def test_a_ring_that_breaks_while_all_are_there_is_an_error_of_all(tmp_path, group):
    outcomes = run_ranks(bodies.fail_in_ring, 4, 2, directory=tmp_path, **group)
    assert {type(outcome) for outcome in outcomes} == {RingBroken}
    assert len({str(outcome) for outcome in outcomes}) == 1


def test_a_ring_that_torch_does_not_make_is_an_error_of_all_that_says_why(tmp_path):
    outcomes = run_ranks(bodies.refused_a_ring, 4, 0, timeout_s=4, directory=tmp_path, **HAR)
    assert {type(outcome) for outcome in outcomes} == {RingBroken}
    assert "no device for a ring" in str(outcomes[1])


@pytest.mark.parametrize("group", [MRR, HAR], ids=str)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (bodies_comm.different_numel, "'gradient' of 101 float32"),
        (bodies_comm.different_step, "'gradient', call 3"),
        (bodies_comm.different_op, "reduce (sum)"),
    ],
)
def test_ranks_of_rings_that_do_different_things_are_told(tmp_path, group, body, says):
    outcomes = run_ranks(body, 4, directory=tmp_path, **group)
    assert {type(outcome) for outcome in outcomes} == {GroupMismatch}
    assert says in str(outcomes[0])


@pytest.mark.parametrize("group", [MRR, HAR], ids=str)
def test_a_closed_group_leaves_no_thread_socket_or_file_of_its_rings(tmp_path, group):
    before = set(threading.enumerate())  # libraries that other tests used may have some
    for had, is_as_before, folder in run_ranks(
        bodies.left_after, 4, 1000, directory=tmp_path, **group
    ):
        assert is_as_before
        assert not folder
        assert had or group is HAR  # where only leaders are in a ring
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) <= before


def test_rings_listen_on_the_loopback_address_alone(tmp_path):
    for addresses in run_ranks(bodies.listening, 4, directory=tmp_path, **MRR):
        assert set(addresses) == {"0100007F"}
