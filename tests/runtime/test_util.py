"""Pools of actors and queues."""

import asyncio
from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime import ActorDiedError
from gmi_drl.runtime.util import ActorPool
from gmi_drl.runtime.util.queue import Empty, Full, Queue

LONG = timedelta(seconds=60)

pytestmark = pytest.mark.usefixtures("shared")


class Doubles:
    def double(self, value):
        return 2 * value

    def gated(self, value, path=None):
        if path:
            bodies.wait_for_file(path)
        return 2 * value

    def fails(self, value):
        raise ValueError(f"not {value}")


def pool_of(number):
    return ActorPool(runtime.remote(Doubles).remote() for _ in range(number))


def double(actor, value):
    return actor.double.remote(value)


# ActorPool.


def test_a_pool_maps_in_order():
    pool = pool_of(2)
    assert list(pool.map(double, range(7))) == [0, 2, 4, 6, 8, 10, 12]
    assert not pool.has_next()
    assert pool.has_free()


def test_a_pool_gives_results_as_they_come_and_keeps_its_actors_at_work(tmp_path):
    def gated(actor, value):
        return actor.gated.remote(value, tmp_path / "go" if value == 0 else None)

    pool = pool_of(2)
    results = pool.map_unordered(gated, range(5))
    assert [next(results) for _ in range(4)] == [2, 4, 6, 8]
    (tmp_path / "go").touch()
    assert list(results) == [0]


def test_a_pool_works_on_while_somebody_waits_for_the_first_result(tmp_path):
    def gated(actor, value):
        if value == 0:
            return actor.gated.remote(value, tmp_path / "go")
        if value == 3:
            (tmp_path / "go").touch()  # only reached if the second actor is given more meanwhile
        return actor.gated.remote(value)

    assert list(pool_of(2).map(gated, range(4))) == [0, 2, 4, 6]


def test_values_are_submitted_one_by_one():
    pool = pool_of(1)
    for value in range(3):
        pool.submit(double, value)
    assert not pool.has_free()
    assert [pool.get_next(LONG), pool.get_next_unordered(LONG), pool.get_next()] == [0, 2, 4]
    with pytest.raises(StopIteration):
        pool.get_next()


def test_a_result_that_is_late_can_be_waited_for_or_given_up(tmp_path):
    pool = pool_of(2)
    pool.submit(lambda actor, value: actor.gated.remote(value, tmp_path / "go"), 1)
    pool.submit(double, 2)
    with pytest.raises(TimeoutError, match="timed out"):
        pool.get_next(0.05)
    with pytest.raises(TimeoutError):
        pool.get_next(0.05, ignore_if_timedout=True)
    assert pool.get_next(LONG) == 4
    assert not pool.has_next()
    (tmp_path / "go").touch()


def test_an_error_is_raised_and_the_actor_stays():
    pool = pool_of(1)
    pool.submit(lambda actor, value: actor.fails.remote(value), 1)
    pool.submit(double, 2)
    with pytest.raises(ValueError, match="not 1"):
        pool.get_next(LONG)
    assert pool.get_next(LONG) == 4


def test_a_value_that_cannot_be_given_to_an_actor_leaves_it_free():
    pool = ActorPool([runtime.remote(bodies.Counter).remote()])
    with pytest.raises(AttributeError, match="no method"):
        pool.submit(lambda actor, value: actor.nothing.remote(value), 1)
    pool.submit(lambda actor, value: actor.add.remote(value), 2)
    assert pool.get_next(LONG) == 2


def test_actors_are_taken_out_and_put_in(tmp_path):
    pool = pool_of(1)
    actor = pool.pop_idle()
    assert runtime.get(actor.double.remote(4), LONG) == 8
    assert pool.pop_idle() is None
    pool.submit(double, 1)
    with pytest.raises(ValueError, match="push"):
        pool.get_next(LONG)
    pool.push(actor)
    assert pool.get_next(LONG) == 2
    with pytest.raises(ValueError, match="already"):
        pool.push(actor)


def test_a_task_uses_a_pool():
    def uses():
        pool = pool_of(2)
        return list(pool.map(double, range(4))), sorted(pool.map_unordered(double, range(4)))

    assert runtime.get(runtime.remote(uses).remote(), LONG) == ([0, 2, 4, 6], [0, 2, 4, 6])


def test_a_pool_as_large_values_flow_keeps_nothing():
    def whole(actor, value):
        return actor.gated.remote(np.full(50_000, value))

    assert [array[0] for array in pool_of(2).map(whole, range(4))] == [0, 2, 4, 6]


# Queue.


def test_items_come_out_in_the_order_they_went_in():
    queue = Queue()
    for i in range(5):
        queue.put(i)
    assert (len(queue), queue.qsize(), queue.empty(), queue.full()) == (5, 5, False, False)
    assert [queue.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert queue.empty()
    queue.put(None)
    assert queue.get() is None


def test_a_queue_that_is_full_or_empty_says_so():
    queue = Queue(maxsize=1)
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    queue.put_nowait(1)
    assert queue.full()
    with pytest.raises(Full):
        queue.put(2, block=False)
    with pytest.raises(Full):
        queue.put(2, timeout=timedelta(milliseconds=10))
    with pytest.raises(ValueError, match="-1"):
        queue.put(2, timeout=-1)
    assert queue.get() == 1


def test_batches_go_whole_or_not_at_all():
    queue = Queue(maxsize=3)
    queue.put_nowait_batch([1, 2])
    with pytest.raises(Full):
        queue.put_nowait_batch([3, 4])
    with pytest.raises(Empty):
        queue.get_nowait_batch(3)
    assert queue.get_nowait_batch(2) == [1, 2]


def test_producers_and_consumers_in_tasks_and_actors():
    def produces(queue, values):
        for value in values:
            queue.put(value)

    def consumes(queue, number):
        return [queue.get() for _ in range(number)]

    queue = Queue(maxsize=2)
    eaten = [runtime.remote(consumes).remote(queue, 4) for _ in range(2)]
    made = [runtime.remote(produces).remote(queue, range(i, i + 4)) for i in (0, 4)]
    runtime.get(made, LONG)
    assert sorted(item for items in runtime.get(eaten, LONG) for item in items) == [*range(8)]


def test_a_queue_in_async_code():
    queue = Queue(maxsize=1)

    async def main():
        puts = asyncio.gather(*(queue.put_async(i) for i in range(3)))
        found = sorted([await queue.get_async() for _ in range(3)])
        await puts
        with pytest.raises(Empty):
            await queue.get_async(timeout=0.01)
        return found

    assert asyncio.run(main()) == [0, 1, 2]


def test_large_items_and_options_of_a_queues_actor():
    queue = Queue(actor_options={"name": "items", "num_cpus": 0.5})
    queue.put(np.ones(50_000))
    assert queue.get().sum() == 50_000
    assert runtime.get_actor("items") == queue.actor


@pytest.mark.parametrize("force", [True, False])
def test_a_queue_that_was_shut_down_is_gone(force):
    queue = Queue()
    queue.put(1)
    queue.shutdown(force)
    with pytest.raises(ActorDiedError, match="shut down"):
        queue.get()
