"""Calling actors: results, order, waiting, large and shared data."""

import gc
import threading
from datetime import timedelta

import numpy as np
import pytest

from bodies_runtime import Probe
from gmi_drl import runtime
from gmi_drl.runtime.driver import processes
from runtime_engines import held

LONG = timedelta(seconds=30)


def test_calls_are_answered_in_order_by_one_process(start):
    actor = start(Probe)
    assert runtime.get([actor.add.remote() for _ in range(100)], LONG) == list(range(1, 101))
    assert runtime.get(actor.pid.remote(), LONG) == runtime.process_id(actor)


def test_each_actor_has_its_own_state(start):
    first, second = start(Probe), start(Probe)
    runtime.get([first.add.remote(5), second.add.remote(7)], LONG)
    assert runtime.get([first.add.remote(), second.add.remote()], LONG) == [6, 8]


@pytest.mark.parametrize(
    "value", [None, 0, "", "text", b"bytes", [1, {"a": (2.5, None)}], {1, 2}, range(3)]
)
def test_values_arrive_as_they_were(start, value):
    actor = start(Probe)
    assert runtime.get(actor.echo.remote(value), LONG) == value


def test_keyword_arguments(start):
    assert runtime.get(start(Probe).echo.remote(1, b=2), LONG) == (1, {"b": 2})


def test_functions_go_by_value(start):
    factor = 3
    returned = runtime.get(start(Probe).echo.remote(lambda x: factor * x), LONG)
    assert returned(5) == 15


def test_classes_of_this_file_go_by_value(start):
    class Local:
        def __init__(self, base):
            self.base = base

        def plus(self, number):
            return self.base + number

    actor = start(runtime.remote(Local)._cls, 10)
    assert runtime.get(actor.plus.remote(5), LONG) == 15


def test_a_remote_class_cannot_be_called_and_says_how():
    with pytest.raises(TypeError, match=r"Probe\.remote\("):
        runtime.remote(Probe)()
    with pytest.raises(TypeError, match="a function or a class"):
        runtime.remote(7)


def test_a_method_that_is_not_there(start):
    with pytest.raises(AttributeError, match="no method 'fly'"):
        start(Probe).fly.remote()


def test_get_names_the_late_call_and_can_be_asked_again(start):
    actor = start(Probe, name="sleepy")
    late = actor.sleep.remote(0.3)
    with pytest.raises(runtime.GetTimeoutError, match=r"0\.02 s: sleepy\.sleep"):
        runtime.get(late, timedelta(milliseconds=20))
    with pytest.raises(TimeoutError):
        runtime.get(late, 0)
    assert runtime.get(late, LONG) is None


def test_wait_returns_what_is_ready_first(start):
    quick, slow = start(Probe), start(Probe)
    refs = [slow.sleep_until_asked.remote(), quick.add.remote()]
    ready, pending = runtime.wait(refs, 1, LONG)
    assert (ready, pending) == ([refs[1]], [refs[0]])
    assert runtime.wait(refs, 2, 0.01) == ([refs[1]], [refs[0]])
    runtime.request_stop(slow)
    assert runtime.wait(refs, 2, LONG) == (refs, [])
    assert runtime.wait(refs, 1, LONG) == ([refs[0]], [refs[1]])


@pytest.mark.parametrize("number", [0, 2])
def test_wait_refuses_counts_that_make_no_sense(start, number):
    with pytest.raises(ValueError, match="between 1 and 1"):
        runtime.wait([start(Probe).add.remote()], number)


def test_many_threads_may_call_one_actor(start):
    actor = start(Probe)
    found = []

    def call():
        found.extend(runtime.get([actor.add.remote() for _ in range(50)], LONG))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 201))


def test_results_that_nobody_fetches_are_dropped(start):
    actor = start(Probe)
    for _ in range(100):
        actor.echo.remote(bytes(1000))
    runtime.get(actor.add.remote(), LONG)
    gc.collect()
    runtime.get(actor.add.remote(), LONG)
    assert len(held()) < 10


@pytest.mark.parametrize("length", [0, 1, 511, 512, 40_000, 8 << 20])
def test_arrays_arrive_whole_aligned_and_read_only(start, length):
    array = runtime.get(start(Probe).array.remote(length), LONG)
    np.testing.assert_array_equal(array, np.arange(length))
    assert not array.flags.writeable
    assert array.flags.aligned


@pytest.mark.parametrize("length", [10, 5_000, 1 << 20])
def test_an_argument_is_a_copy(start, length):
    actor = start(Probe)
    array = np.zeros(length)
    answer = actor.echo.remote(array)
    array[:] = 1  # after the call: the actor must not see it
    assert not runtime.get(answer, LONG).any()


def test_several_buffers_in_one_call(start):
    arrays = [np.arange(n, dtype=np.float32) for n in (3_000, 1, 5_001, 70_000)]
    for sent, back in zip(arrays, runtime.get(start(Probe).echo.remote(arrays), LONG), strict=True):
        np.testing.assert_array_equal(sent, back)


def test_a_result_of_64_mebibytes(start):
    assert len(runtime.get(start(Probe).zeros.remote(64 << 20), LONG)) == 64 << 20


def test_shared_memory_goes_both_ways(start):
    ours = runtime.Memfd.create("ours")
    ours.resize(5)
    made = runtime.get(start(Probe).share.remote(ours), LONG)
    assert bytes(ours.map(0, 5)) == b"hello"
    assert bytes(made.map(0, 3)) == b"abc"
    ours.close()
    made.close()


def test_records_arrive_in_order_before_the_result(start):
    actor = start(Probe)
    runtime.get(actor.tell.remote(10_000), LONG)
    assert [record["index"] for record in runtime.records(actor)] == list(range(10_000))
    assert runtime.records(actor) == []
    assert runtime.dropped_records(actor) == 0


def test_records_of_all_actors(start):
    runtime.records()  # of tests before this one
    actors = [start(Probe), start(Probe)]
    runtime.get([actor.tell_object.remote(i) for i, actor in enumerate(actors)], LONG)
    assert sorted(runtime.records()) == [0, 1]


def test_records_of_a_dead_actor_can_still_be_read(start):
    actor = start(Probe)
    runtime.get(actor.tell.remote(3), LONG)
    runtime.stop(actor)
    assert len(runtime.records(actor)) == 3


def test_outside_an_actor_there_is_nobody_to_tell():
    assert runtime.emit({"loss": 1.0}) is False
    assert runtime.stop_requested() is False


def test_records_that_are_dropped_here_are_all_counted(start, monkeypatch):
    monkeypatch.setattr(processes, "RECORDS_KEPT", 10)
    actor = start(Probe)
    for _ in range(3):
        runtime.get(actor.tell.remote(7), LONG)
    assert runtime.dropped_records(actor) == 11
    assert len(runtime.records(actor)) == 10
    runtime.get(actor.tell.remote(7), LONG)
    assert runtime.dropped_records(actor) == 11
