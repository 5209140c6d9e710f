"""MPR against sums computed here: every length, every rank the same bits, under any timing."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bodies_comm as bodies
from gmi_drl.comm import solo_group
from gmi_drl.comm.reducers.sums import rank_slice
from ranks import Ranks, pipe, run_ranks

LENGTHS = [0, 1, 2, 15, 16, 17, 997, 65_537, 750_000]  # the last is 3 MB of float32


def expected(size, numel, seed, op, dtype="float32"):
    total = sum(bodies.vector(rank, numel, seed, dtype).astype("float64") for rank in range(size))
    return total / size if op == "mean" else total


def check(outcomes, size, lengths, op, dtype="float32"):
    for index, numel in enumerate(lengths):
        want = expected(size, numel, index, op, dtype)
        for found in outcomes:
            assert found[index].dtype == dtype
            np.testing.assert_allclose(found[index], want, atol=1e-6 * size, rtol=1e-6)
            np.testing.assert_array_equal(found[index], outcomes[0][index])  # the same bits


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_a_reduction_is_the_sum_or_mean_and_the_same_bits_on_every_rank(size, op):
    check(run_ranks(bodies.reduce_each, size, LENGTHS, op), size, LENGTHS, op)


def test_float64_is_reduced_in_float64():
    outcomes = run_ranks(bodies.reduce_each, 3, [5, 1009], "mean", "float64")
    for index, numel in enumerate([5, 1009]):
        want = expected(3, numel, index, "mean", "float64")
        np.testing.assert_allclose(outcomes[2][index], want, atol=1e-15)


@settings(max_examples=6)
@given(
    st.integers(2, 4),
    st.lists(st.integers(0, 5000), min_size=1, max_size=12),
    st.sampled_from(["mean", "sum"]),
)
def test_any_lengths_can_be_reduced(size, lengths, op):
    check(run_ranks(bodies.reduce_each, size, lengths, op), size, lengths, op)


def test_a_group_of_one_does_what_mpr_does():
    group = solo_group()
    bucket = group.bucket("gradient", 997)
    bucket.buffer.copy_(torch.from_numpy(bodies.vector(0, 997, 0)))
    result = bucket.reduce()
    assert torch.equal(result, bucket.buffer)
    bucket.buffer.zero_()  # the result is not the buffer
    assert result.abs().sum() > 0
    assert bucket.gather().shape == (1, 997)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_mean_of_equal_gradients_is_that_gradient(size):
    for furthest, sum_error in run_ranks(bodies.reduce_equal, size, 4099):
        assert furthest <= (0.0 if size != 3 else 1e-6)
        assert sum_error <= 1e-5


@given(st.integers(0, 10**6), st.sampled_from([4, 8]), st.integers(1, 64))
def test_parts_cover_everything_once_and_share_no_cache_line(numel, itemsize, size):
    parts = [rank_slice(numel, itemsize, rank, size) for rank in range(size)]
    assert parts[0][0] == 0
    assert parts[-1][1] == numel
    for (_, stop), (start, _) in itertools.pairwise(parts):
        assert stop == start
        assert start * itemsize % 64 == 0 or start == numel


def test_gathered_rows_stay_while_the_next_contribution_is_written():
    ranks = np.arange(3.0).reshape(-1, 1)
    for first, second in run_ranks(bodies.gather_twice, 3, 5):
        np.testing.assert_array_equal(first, np.broadcast_to(ranks, (3, 5)))
        np.testing.assert_array_equal(second, np.broadcast_to(ranks + 10, (3, 5)))


@pytest.mark.parametrize("size", [1, 3])
def test_broadcast_gives_the_source_s_buffer_to_all(size):
    for found in run_ranks(bodies.broadcast_from_each, size, 7):
        assert [set(values) for values in found] == [{101.0 * src} for src in range(size)]


def test_exchange_gives_one_number_of_each_rank():
    assert run_ranks(bodies.exchange_ranks, 3) == [[2**63, 2**63 + 1, 2**63 + 2]] * 3


def test_buckets_of_one_group_do_not_disturb_each_other():
    outcomes = run_ranks(bodies.two_buckets, 3)
    assert outcomes == [([3.0, 3.0, 3.0], 1.5, 1.5, 6.0, 3.0)] * 3


def test_autograd_writes_into_shared_memory_and_the_mean_is_the_gradient_of_all_data():
    assert max(run_ranks(bodies.gradients_in_place, 2)) < 1e-6


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("uneven", [False, True])
def test_two_thousand_rapid_reductions_are_all_right(size, uneven):
    assert run_ranks(bodies.many_reductions, size, 1000, 2000, uneven) == [0] * size


def test_ranks_wait_for_the_one_that_is_late():
    gate, opener = pipe()
    with Ranks(
        bodies.wait_then_reduce, 3, args_of=lambda rank: (gate if rank == 1 else None,)
    ) as ranks:
        ranks.until_asleep(0, waiting_for=1)
        ranks.until_asleep(2, waiting_for=1)
        opener.send(True)
        assert ranks.outcomes() == [(6.0, True)] * 3
    gate.close()
    opener.close()


def test_nothing_stays_in_dev_shm_and_no_thread_is_started():
    assert run_ranks(bodies.left_open, 2, 750_000) == [([], 1)] * 2
