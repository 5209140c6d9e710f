"""The grouping is chosen by what packets cost: known answers for costs made up for them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.comm.experience import (
    Channel,
    Grouping,
    LinkCost,
    Stream,
    choose_grouping,
    joined,
    mcc,
    measure_cost,
    project,
    ucc,
)
from gmi_drl.comm.transports import create_link

BIG = Channel("observation", (60,), "float32")
SMALL = [Channel(name, (), "float32") for name in ("reward", "done")]
CHANNELS = [BIG, *SMALL]


def linear(alpha_s, byte_s, block_s=0.0):
    """A cost of alpha + beta * bytes at every size."""
    return LinkCost(((0, alpha_s), (1 << 30, alpha_s + byte_s * (1 << 30))), block_s)


FREE_BYTES = linear(alpha_s=1e-3, byte_s=1e-15)
FREE_PACKETS = linear(alpha_s=1e-12, byte_s=1e-9)


def streams(grouping):
    return {(frozenset(stream.channels), stream.rows) for stream in grouping.streams}


def test_where_packets_are_dear_all_is_joined():
    assert streams(choose_grouping(CHANNELS, 16, 256, FREE_BYTES)) == {
        (frozenset({"observation", "reward", "done"}), 16)
    }


def test_where_large_packets_are_dear_steps_travel_alone():
    # Up to 70 KB, the cache of a machine, bytes cost 1; beyond it, 100.
    cost = LinkCost(((100, 1e-7), (70_000, 7e-5), (140_000, 7e-3)))
    chosen = choose_grouping([BIG], 16, 256, cost)
    assert streams(chosen) == {(frozenset({"observation"}), 1)}  # 61 KB each


def test_where_middling_packets_are_dear_small_channels_are_joined_and_the_large_one_is_alone():
    # Joined, everything is beyond the dear size; the small ones alone are below it.
    nbytes = BIG.nbytes(1, 256)
    cost = LinkCost(((100, 1e-5), (nbytes, 2e-5), (nbytes + 1, 1.0), (10 * nbytes, 10.0)))
    assert streams(choose_grouping(CHANNELS, 1, 256, cost)) == {
        (frozenset({"observation"}), 1),
        (frozenset({"reward", "done"}), 1),
    }


def test_a_projection_is_the_sum_of_the_packets():
    cost = linear(1e-4, 1e-9, block_s=1e-6)
    one, many, single = (make(CHANNELS, 16) for make in (joined, mcc, ucc))
    nbytes = 16 * 256 * 62 * 4
    moved = nbytes * 1e-9
    for grouping, packets, blocks in ((one, 1, 3), (many, 3, 3), (single, 16, 48)):
        seconds = nbytes / project(grouping, CHANNELS, 16, 256, cost)
        assert seconds == pytest.approx(packets * 1e-4 + moved + blocks * 1e-6, rel=1e-6)


@given(
    alpha_s=st.floats(1e-7, 1e-3),
    byte_s=st.floats(1e-12, 1e-8),
    bend=st.floats(1, 50),
    widths=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    steps=st.sampled_from([1, 2, 6, 8]),
)
def test_no_grouping_of_channels_in_order_of_size_is_better(alpha_s, byte_s, bend, widths, steps):
    cost = LinkCost(
        ((64, alpha_s), (10_000, alpha_s + 1e4 * byte_s), (20_000, alpha_s + bend * 2e4 * byte_s))
    )
    channels = [Channel(f"c{i}", (width,), "float32") for i, width in enumerate(widths)]
    chosen = project(choose_grouping(channels, steps, 4, cost), channels, steps, 4, cost)
    divisors = [rows for rows in range(1, steps + 1) if steps % rows == 0]
    names = [c.name for c in sorted(channels, key=lambda c: (c.nbytes(1, 4), c.name))]
    for cuts in itertools.product([False, True], repeat=len(names) - 1):
        groups = [[names[0]]]
        for name, cut in zip(names[1:], cuts, strict=True):
            groups.append([name]) if cut else groups[-1].append(name)
        for rows in itertools.product(divisors, repeat=len(groups)):
            split = [Stream(tuple(g), r) for g, r in zip(groups, rows, strict=True)]
            other = project(Grouping("other", tuple(split)), channels, steps, 4, cost)
            assert chosen >= other * (1 - 1e-9)


def test_the_same_cost_gives_the_same_grouping_whatever_the_order_of_the_channels():
    cost = linear(1e-6, 1e-10)
    chosen = [choose_grouping(order, 8, 16, cost) for order in itertools.permutations(CHANNELS)]
    assert len(set(chosen)) == 1


def test_a_link_is_measured_by_a_short_probe():
    cost = measure_cost(create_link("probe", "probe"), sizes=(64, 1 << 20))
    (small, small_s), (large, large_s) = cost.points
    assert (small, large) == (64, 1 << 20)
    assert 0 < small_s < large_s
    assert cost.block_s > 0
