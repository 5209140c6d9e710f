"""Steps between hosts, played in one process: sums, the same bits, and how many there are."""

import collections
from typing import get_args

import numpy as np
import pytest

from gmi_drl.comm.hosts import steps


def play(vectors, steps_of):
    """Does the steps of all hosts, each as far as what has been sent to it allows."""
    count = len(vectors)
    todo = [collections.deque(steps_of(rank)) for rank in range(count)]
    sent = collections.defaultdict(collections.deque)
    begun = [False] * count
    numbers = [0] * count  # of the step that each is in
    while any(todo):
        moved = False
        for rank, vector in enumerate(vectors):
            if not todo[rank]:
                continue
            step = todo[rank][0]
            if not begun[rank]:
                for part in step.sends:
                    piece = vector[part.start : part.stop].copy()
                    sent[rank, part.peer].append((numbers[rank], piece))
                begun[rank] = moved = True
            if all(sent[part.peer, rank] for part in step.receives):
                take(rank, vector, step, numbers[rank], sent)
                todo[rank].popleft()
                numbers[rank] += 1
                begun[rank], moved = False, True
        assert moved, f"everybody waits: {todo}"
    assert not any(sent.values())  # nothing is sent that nobody takes


def take(rank, vector, step, number, sent):
    pieces = {}
    for part in step.receives:
        sent_in, pieces[part.peer] = sent[part.peer, rank].popleft()
        assert sent_in == number  # else hosts would take it for another call
    if not step.adds:
        for part in step.receives:
            vector[part.start : part.stop] = pieces[part.peer]
    elif step.receives:
        assert len({part[1:] for part in step.receives}) == 1
        place = slice(*step.receives[0][1:])
        pieces[rank] = vector[place].copy()
        vector[place] = np.add.reduce([pieces[peer] for peer in sorted(pieces)])


@pytest.mark.parametrize("way", get_args(steps.Way))
@pytest.mark.parametrize("count", range(1, 18))
@pytest.mark.parametrize("numel", [0, 1, 5, 1021, 40_000])
def test_all_hosts_have_the_sum_in_the_same_bits(way, count, numel):
    vectors = [
        np.random.default_rng(rank).standard_normal(numel).astype("f4") for rank in range(count)
    ]
    total = np.sum(vectors, axis=0, dtype="f8")
    bound = 1e-6 * np.sum(np.abs(vectors), axis=0)
    play(vectors, lambda rank: steps.all_reduce(way, rank, count, numel))
    for vector in vectors:
        assert (np.abs(vector - total) <= bound).all()
        np.testing.assert_array_equal(vector.view("u4"), vectors[0].view("u4"))


@pytest.mark.parametrize(
    ("count", "nbytes", "way", "most"),
    [
        (2, 4 * 10**6, "one_step", 1),
        (3, 400, "one_step", 1),
        (3, 4 * 10**6, "two_steps", 2),
        (4, 4 * 10**6, "two_steps", 2),
        (5, 400, "halving", 6),
        (64, 4 * 10**6, "halving", 12),
    ],
)
def test_how_many_steps_there_are_where_nothing_is_measured(count, nbytes, way, most):
    assert steps.usual_way(count, nbytes) == way
    assert way in steps.ways(count)
    schedules = [steps.all_reduce(way, rank, count, nbytes // 4) for rank in range(count)]
    assert {*map(len, schedules)} == {most}  # at both ends a part is of the step of that number


def test_which_ways_may_be_the_fastest():
    assert [len(steps.ways(count)) for count in (2, 3, 4, 8, 9, 100)] == [1, 2, 3, 3, 2, 2]


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_gathering_and_broadcasting(count):
    bounds = np.cumsum([0, *range(1, count + 1)]).tolist()  # each has another size
    vectors = [np.full(bounds[-1], float(rank)) for rank in range(count)]
    play(vectors, lambda rank: steps.all_gather(rank, bounds))
    for vector in vectors:
        assert vector.tolist() == [float(rank) for rank in range(count) for _ in range(rank + 1)]
    vectors = [np.full(3, float(rank)) for rank in range(count)]
    play(vectors, lambda rank: steps.broadcast(rank, count, count - 1, 3))
    assert {value for vector in vectors for value in vector.tolist()} == {count - 1.0}


@pytest.mark.parametrize("way", get_args(steps.Way))
@pytest.mark.parametrize("count", range(1, 18))
def test_a_host_sends_what_the_schedules_of_all_say(way, count):
    numel = 1021
    sent = [
        sum(part.stop - part.start for step in schedule for part in step.sends)
        for schedule in (steps.all_reduce(way, rank, count, numel) for rank in range(count))
    ]
    assert steps.sent_bytes(way, count, numel, 4) == 4 * max(sent)


def test_what_thousands_of_hosts_send_is_known_without_a_schedule_of_each():
    """All of them would be millions of parts, for a cluster as large as a config may say."""
    assert steps.sent_bytes("two_steps", 4096, 4096, 4) == 4 * 2 * 4095


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_a_host_sends_the_fewest_bytes_there_can_be(count):
    numel = 1 << 16
    least = 2 * numel * (count - 1) // count * 4
    for way in ("two_steps", "halving"):
        assert steps.sent_bytes(way, count, numel, 4) == least
    assert steps.sent_bytes("one_step", count, numel, 4) == least * count / 2
