"""References as futures, and awaited; static methods; polling."""

import asyncio
import concurrent.futures
import gc
import time
from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime

LONG = timedelta(seconds=60)
LONG_S = LONG.total_seconds()

pytestmark = pytest.mark.usefixtures("shared")


def task(function, *args):
    return runtime.remote(function).remote(*args)


def test_a_reference_as_a_future(tmp_path):
    late = task(bodies.wait_for_file, tmp_path / "go", 3).future()
    large = task(bodies.zeros, 50_000).future()
    assert large.result(LONG_S).shape == (50_000,)
    assert not late.done()
    (tmp_path / "go").touch()
    assert late.result(LONG_S) == 3
    assert runtime.put(5).future().result(LONG_S) == 5
    del large


def test_futures_are_done_in_the_order_of_their_results(tmp_path):
    late = task(bodies.wait_for_file, tmp_path / "go", "late").future()
    early = [task(bodies.add, i).future() for i in range(50)]
    done, _ = concurrent.futures.wait([late, *early], LONG_S, "FIRST_COMPLETED")
    assert late not in done
    assert [each.result(LONG_S) for each in early] == [*range(50)]
    (tmp_path / "go").touch()
    assert late.result(LONG_S) == "late"


def test_a_future_raises_what_get_raises_and_can_be_cancelled(tmp_path):
    failed = task(bodies.raises, KeyError, "no").future()
    assert isinstance(failed.exception(LONG_S), KeyError)
    assert isinstance(failed.exception(), runtime.TaskError)
    late = task(bodies.wait_for_file, tmp_path / "go")
    future = late.future()
    assert future.cancel()
    (tmp_path / "go").touch()
    runtime.get(late, LONG)
    assert future.cancelled()
    failed = None


def test_callbacks_of_a_future_may_call_the_runtime():
    seen = concurrent.futures.Future()
    task(bodies.zeros, 50_000).future().add_done_callback(
        lambda future: seen.set_result(runtime.get(task(bodies.total, future.result())))
    )
    assert seen.result(LONG_S) == 0


@pytest.mark.parametrize("number", [1, 3])
def test_futures_in_tasks_and_async_methods(tmp_path, number):
    def uses(number):
        futures = [task(bodies.add, i).future() for i in range(number)]
        return [future.result(60) for future in futures]

    class Uses:
        async def uses(self, number):
            futures = [task(bodies.add, i).future() for i in range(number)]
            return await asyncio.gather(*map(asyncio.wrap_future, futures))

        async def uses_after_a_collection(self, path):
            future = asyncio.wrap_future(task(bodies.wait_for_file, path, 3).future())
            gc.collect()
            path.touch()
            return await future

    assert runtime.get(task(uses, number), LONG) == [*range(number)]
    actor = runtime.remote(Uses).remote()
    assert runtime.get(actor.uses.remote(number), LONG) == [*range(number)]
    assert runtime.get(actor.uses_after_a_collection.remote(tmp_path / "go"), LONG) == 3


def test_references_are_awaited_together_and_in_time(tmp_path):
    async def main():
        late = task(bodies.wait_for_file, tmp_path / "go", 9)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late, 0.05)
        values = await asyncio.gather(*(task(bodies.add, i) for i in range(3)))
        (tmp_path / "go").touch()
        return [*values, await late]

    assert asyncio.run(main()) == [0, 1, 2, 9]


def test_a_task_that_polls_sees_results():
    def polls(many):
        refs = [task(bodies.add, i) for i in range(3)]
        if many:
            runtime.wait(refs, 3)
            return len(runtime.wait(refs, 3, 0)[0])
        found = 0
        while found < 3:
            found = len(runtime.wait(refs, 3, 0)[0])
            time.sleep(0.005)  # between two looks
        return found

    assert runtime.get([task(polls, many) for many in (False, True)], LONG) == [3, 3]


def test_what_is_there_is_seen_at_once_by_a_wait_of_no_time():
    def looks(refs):
        return [len(runtime.wait(refs, 2, timeout)[0]) for timeout in (0, 0.0, 0.001)]

    refs = [runtime.put(np.ones(50_000)), task(bodies.add, 1)]
    runtime.wait(refs, 2, LONG)
    assert runtime.get(task(looks, refs), LONG) == [2, 2, 2]


class Static:
    @staticmethod
    def double(value):
        return 2 * value

    @classmethod
    def name(cls):
        return cls.__name__

    def method(self):
        return self.double(2)


def test_static_methods_are_called_through_the_class_and_on_actors():
    remote = runtime.remote(Static)
    assert remote.double(3) == 6
    assert remote.name() == "Static"
    actor = remote.remote()
    calls = [actor.double.remote(3), actor.name.remote(), actor.method.remote()]
    assert runtime.get(calls, LONG) == [6, "Static", 4]
    with pytest.raises(AttributeError, match="start one"):
        remote.method()
