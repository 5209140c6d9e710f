"""When the ranks of a group do not agree, or one is gone: everyone is told who and what."""

import pickle
import signal
import subprocess
import sys
from datetime import timedelta

import pytest

import bodies_comm as bodies
from gmi_drl.comm import (
    CommError,
    GroupClosed,
    GroupMismatch,
    PeerLeft,
    ReduceTimeout,
    create_group,
    solo_group,
)
from ranks import Died, Ranks, pipe, run_ranks


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (bodies.different_numel, ["'gradient' of 100 float32", "'gradient' of 101 float32"]),
        (bodies.different_names, ["bucket 'third'", "bucket 'second'"]),
        (bodies.different_dtypes, ["4 float32", "4 float64"]),
        (bodies.different_order, ["reduce (mean) of bucket 'a'", "reduce (mean) of bucket 'b'"]),
        (bodies.different_op, ["reduce (mean)", "reduce (sum)"]),
        (bodies.different_source, ["from rank 0", "from rank 1"]),
        (bodies.different_step, ["'gradient', call 2", "'gradient', call 3"]),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_do_different_things_all_get_the_same_error(body, says, size):
    outcomes = run_ranks(body, size)
    assert len({str(outcome) for outcome in outcomes}) == 1
    for outcome in outcomes:
        assert isinstance(outcome, GroupMismatch)
        assert len(outcome.calls) == size
        for words in says:
            assert words in str(outcome)
        assert "rank 1 (gmi 4, GPU 0):" in str(outcome)


def test_after_a_mismatch_the_group_is_over():
    assert run_ranks(bodies.mismatch_again, 2) == [True, True]


def test_a_killed_rank_is_named_by_all_others_at_the_deadline():
    listener, ready = pipe()
    with Ranks(bodies.ready_then_hang, 3, ready, 2) as ranks:
        assert listener.poll(30)
        ranks.kill(2)
        first, second, third = ranks.outcomes()
    for outcome in (first, second):
        assert isinstance(outcome, ReduceTimeout)
        assert isinstance(outcome, TimeoutError)
        assert outcome.late == ((2, "gmi 5, GPU 1"),)
        assert str(outcome) == (
            "reduce timed out after 1.5 s: rank 2 (gmi 5, GPU 1) has not arrived"
        )
    assert third == Died(-signal.SIGKILL)
    listener.close()
    ready.close()


def test_all_late_ranks_are_named():
    gates, openers = zip(pipe(), pipe(), strict=True)  # one each: two readers would mix messages
    with Ranks(bodies.late_rank, 3, args_of=lambda rank: ((None, *gates)[rank],)) as ranks:
        first = ranks.outcome(0)
        assert str(first).endswith(
            "rank 1 (gmi 4, GPU 0) and rank 2 (gmi 5, GPU 1) have not arrived"
        )
        for opener in openers:
            opener.send(True)
        for outcome in (ranks.outcome(1), ranks.outcome(2)):
            # They arrive after all, and hear at once that there is nobody left to reduce with.
            assert isinstance(outcome, PeerLeft)
            assert "rank 0 (gmi 3, GPU 0) has left the group: reduce timed out" in str(outcome)
    for end in (*gates, *openers):
        end.close()


def test_a_rank_that_closes_is_reported_at_once():
    first, *others = run_ranks(bodies.closes_early, 3)
    assert first is None
    for outcome in others:
        assert isinstance(outcome, PeerLeft)
        assert (outcome.rank, outcome.reason) == (0, "the group was closed")


def test_a_rank_joins_once():
    spec = create_group(["gmi 0", "gmi 1"])
    group = spec.join(0)
    with pytest.raises(GroupClosed, match=r"rank 0 \(gmi 0\) of this group was joined already"):
        spec.join(0)
    group.close()
    with pytest.raises(GroupClosed, match="was closed"):
        group.barrier()


def test_a_rank_that_is_given_up_for_a_dead_process_is_not_waited_for():
    spec = create_group(["gmi 0", "gmi 1"])
    group = spec.join(0)
    spec.give_up(1, "its device is lost")
    with pytest.raises(PeerLeft, match=r"gmi 1.*its device is lost"):
        group.barrier()


def test_an_interrupted_wait_ends_the_membership():
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    group = create_group(["gmi 0", "gmi 1"]).join(0)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            group.barrier()
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(GroupClosed, match="KeyboardInterrupt"):
        group.barrier()


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: create_group([]), "0 members"),
        (lambda: create_group(["a", "b"]).join(2), "rank 2: this group has ranks 0 to 1"),
        (lambda: create_group(["a"]).join(0, timedelta(0)), "timeout 0:00:00"),
        (lambda: solo_group().bucket("b", -1), "numel -1"),
        (lambda: solo_group().bucket("b", 3).reduce("max"), "op 'max'"),
        (lambda: solo_group().bucket("b", 3).broadcast(1), "src 1"),
        (lambda: create_group(["a", "b"]).join(0).bucket("b", -1), "numel -1"),
    ],
)
def test_wrong_arguments_are_refused(attempt, says):
    with pytest.raises(ValueError, match=says):
        attempt()


def test_integers_are_refused():
    import torch

    with pytest.raises(ValueError, match=r"torch.int64 cannot be reduced. Use float32 or float64"):
        solo_group().bucket("counts", 3, torch.int64)


@pytest.mark.parametrize(
    "error",
    [
        ReduceTimeout("reduce", 30.0, [(2, "gmi 5, GPU 1")]),
        GroupMismatch(["reduce", "gather"], ["gmi 0", "gmi 1"]),
        PeerLeft("reduce", 1, "gmi 1", "it was closed"),
        GroupClosed("it was closed"),
    ],
)
def test_errors_cross_processes_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, CommError)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_the_launcher_makes_groups_without_torch():
    code = (
        "import sys; from gmi_drl.comm import create_group; create_group(['a', 'b']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0
