"""Sleeping and waking on shared memory, and the words of the meeting point."""

import threading
from datetime import timedelta

import pytest

import bodies_comm as bodies
from gmi_drl.comm.group.barrier import Barrier, header_bytes
from gmi_drl.comm.group.tags import BROADCAST, EXCHANGE, MEAN, describe, make_tag
from gmi_drl.comm.shm.futex import Futex
from ranks import run_ranks


def header(size):
    return memoryview(bytearray(header_bytes(size)))


def test_a_sleeper_is_woken_when_the_word_changes():
    memory = memoryview(bytearray(64))
    word, sleeper, waker = memory.cast("Q"), Futex(memory, 8), Futex(memory, 8)
    seen = []

    def sleep():
        while word[1] == 0:
            sleeper.wait(0, 10.0)
        seen.append(word[1])

    thread = threading.Thread(target=sleep)
    thread.start()
    word[1] = 2**40 + 1  # the futex looks at the low half
    waker.wake()
    thread.join(20)
    assert seen == [2**40 + 1]


def test_nobody_sleeps_on_a_word_that_has_changed_already():
    memory = memoryview(bytearray(64))
    memory.cast("Q")[0] = 1
    Futex(memory, 0).wait(0, 1e6)  # would outlast this test's time limit


@pytest.mark.parametrize("body", [bodies.without_wake_ups, bodies.without_futexes])
def test_lost_wake_ups_make_it_late_and_never_hang(body):
    assert run_ranks(body, 3, 20) == [3000.0] * 3


def test_threads_meet_like_processes():
    memory, members = header(3), ["a", "b", "c"]
    ends = [Barrier(memory, rank, members, timedelta(seconds=20)) for rank in range(3)]
    seen = [[] for _ in range(3)]

    def run(rank):
        for step in range(300):
            assert ends[rank].meet(make_tag(EXCHANGE, count=step), 1000 * step + rank)
            seen[rank].append(ends[rank].values())

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert seen == [[[1000 * step + rank for rank in range(3)] for step in range(300)]] * 3


def test_texts_of_any_length_and_language_can_be_left():
    end = Barrier(header(2), 1, ["a", "b"], timedelta(seconds=1))
    end.write_text("größer")
    assert end.read_text(1) == "größer"
    end.write_text("x" * 5000)
    assert set(end.read_text(1)) == {"x"}
    assert end.read_text(0) == ""


def test_tags_can_be_read():
    assert describe(make_tag(MEAN, 1, 7), ["'a'", "'b'"]) == "reduce (mean) of bucket 'b', call 7"
    assert describe(make_tag(MEAN, 1, 7)) == "reduce"
    text = describe(make_tag(BROADCAST, 5, 2**32 - 1, 4095), ["'a'"])
    assert text == "broadcast (from rank 4095) of bucket number 5, call 4294967295"
