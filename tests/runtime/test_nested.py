"""Tasks that call tasks, and wait for them: deeper than there are workers, and never stuck."""

import asyncio
import contextlib
from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime

LONG = timedelta(seconds=50)

pytestmark = pytest.mark.usefixtures("shared")

depth, fib = runtime.remote(bodies.depth), runtime.remote(bodies.fib)


@pytest.mark.slow
def test_a_chain_of_fifty_tasks_that_wait_for_each_other_ends_on_two_cpus():
    assert runtime.get(depth.remote(50), LONG) == 50


def test_a_tree_of_tasks_that_wait_for_each_other_ends_on_two_cpus():
    assert runtime.get(fib.remote(8), LONG) == 21


def test_tasks_that_want_all_cpus_may_call_others_that_do():
    def outer():
        return runtime.get(runtime.remote(bodies.add).options(num_cpus=2).remote(1, 2))

    assert runtime.get(runtime.remote(outer).options(num_cpus=2).remote(), LONG) == 3


def test_a_blocked_task_lends_its_cpu_to_those_that_were_there_before(tmp_path):
    submitted, go = tmp_path / "submitted", tmp_path / "go"

    def outer():
        bodies.wait_for_file(submitted)  # what comes next takes the CPUs until `go`
        return runtime.get(runtime.remote(bodies.wait_for_file).remote(go, 5))

    waiting = [runtime.remote(outer).remote() for _ in range(4)]
    others = [runtime.remote(bodies.add).remote(i) for i in range(20)]
    submitted.touch()
    assert runtime.get(others, LONG) == list(range(20))
    go.touch()
    assert runtime.get(waiting, LONG) == [5] * 4


def test_waiting_in_a_task_gives_what_is_ready_and_lets_it_go_on(tmp_path):
    def outer():
        late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
        quick = runtime.remote(bodies.add).remote(1)
        ready, pending = runtime.wait([late, quick], 1, 20)
        none, both = runtime.wait(pending, 1, 0.01)
        (tmp_path / "go").touch()
        runtime.get(pending)
        return ready == [quick], pending == [late], none, both == [late]

    assert runtime.get(runtime.remote(outer).remote(), LONG) == (True, True, [], True)


@pytest.mark.parametrize("by", ["wait", "get"])
def test_a_task_that_no_longer_waits_for_all_counts_as_running_again(shared, tmp_path, by):
    def outer(by):
        late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
        if by == "wait":
            runtime.wait([late, runtime.remote(bodies.add).remote(1)], 1)
        else:  # it raises before the late one is there
            with contextlib.suppress(ZeroDivisionError):
                runtime.get([runtime.remote(bodies.raises).remote(ZeroDivisionError), late])
        bodies.mark(tmp_path / "on")
        bodies.wait_for_file(tmp_path / "go")

    ref = runtime.remote(outer).remote(by)
    bodies.until(lambda: bodies.marks(tmp_path / "on"))
    bodies.until(lambda: not any(p.blocked for p in shared.processes.values()), "nobody blocked")
    (tmp_path / "go").touch()
    runtime.get(ref, LONG)


def test_threads_of_an_actor_wait_each_for_their_own(shared, tmp_path):
    class Waits:
        def for_file(self):
            late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
            return runtime.get(late)

        def for_moment(self, refs):
            return runtime.wait(refs, timeout=0.0)[0]

    actor = runtime.remote(Waits).options(max_concurrency=2).remote()
    hog = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
    ref = actor.for_file.remote()
    bodies.until(lambda: any(p.blocked for p in shared.processes.values()), "it waits")
    assert runtime.get(actor.for_moment.remote([hog]), LONG) == []
    assert any(p.blocked for p in shared.processes.values())
    (tmp_path / "go").touch()
    runtime.get([ref, hog], LONG)


def test_a_task_after_one_that_was_cancelled_while_it_waited_lends_its_cpu(shared, tmp_path):
    hog = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
    waiting = runtime.remote(bodies.get_in_time).remote([hog], None)
    bodies.until(lambda: any(p.blocked for p in shared.processes.values()), "it waits")
    runtime.cancel(waiting)
    with pytest.raises(runtime.TaskCancelledError):
        runtime.get(waiting, LONG)
    assert runtime.get(depth.remote(2), LONG) == 2
    (tmp_path / "go").touch()
    runtime.get(hog, LONG)


def test_an_async_actor_that_waits_no_longer_counts_as_running_again(shared, tmp_path):
    class Waits:
        async def read(self, late):
            items = [await ref async for ref in runtime.remote(bodies.count_to).remote(3)]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(late[0], 0.01)
            bodies.mark(tmp_path / "on")
            await asyncio.to_thread(bodies.wait_for_file, tmp_path / "go")
            return items

    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
    actor = runtime.remote(Waits).remote()
    ref = actor.read.remote([late])
    bodies.until(lambda: bodies.marks(tmp_path / "on"))
    bodies.until(lambda: not any(p.blocked for p in shared.processes.values()), "nobody blocked")
    (tmp_path / "go").touch()
    assert runtime.get(ref, LONG) == [0, 1, 2]


def test_get_in_a_task_can_time_out_and_be_asked_again(tmp_path):
    def outer(refs):
        try:
            runtime.get(refs[0], 0.02)
        except runtime.GetTimeoutError as late:
            (tmp_path / "go").touch()
            return str(late), runtime.get(refs[0])

    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", 4)
    text, value = runtime.get(runtime.remote(outer).remote([late]), LONG)
    assert "get timed out after 0.02 s: wait_for_file" in text
    assert value == 4


def test_references_inside_a_container_are_not_fetched():
    refs = [runtime.remote(bodies.add).remote(i) for i in range(3)]
    names, values = runtime.get(runtime.remote(bodies.in_container).remote(refs), LONG)
    assert names == ["ObjectRef"] * 3
    assert values == [0, 1, 2]


def test_references_as_arguments_are_waited_for_and_replaced(tmp_path):
    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", 2.5)
    got = runtime.remote(bodies.kinds).remote(late, [late], runtime.put("x"))
    (tmp_path / "go").touch()
    assert runtime.get(got, LONG) == ["float", "list", "str"]


def test_references_that_come_inside_a_result_stay_alive():
    holder = runtime.remote(bodies.refs_of).remote(3)
    refs = runtime.get(holder, LONG)["refs"]
    del holder
    assert runtime.get(refs, LONG) == [1, 2, 3]
    (ref,) = runtime.get(runtime.remote(bodies.put_inside).remote(50_000), LONG)
    np.testing.assert_array_equal(runtime.get(ref, LONG), np.arange(50_000))


def test_a_reference_inside_a_result_lives_as_long_as_the_result():
    holder = runtime.remote(bodies.put_inside).remote(50_000)
    runtime.wait([holder], 1, LONG)
    for _ in range(2):  # the first time nobody keeps what it refers to
        assert runtime.get(runtime.get(holder, LONG)[0], LONG)[-1] == 49_999


def test_a_reference_that_came_before_and_was_dropped_can_come_again():
    def looks_twice(box):
        assert len(runtime.get(box[0])) == 1  # and what is in it is dropped
        (inside,) = runtime.get(box[0])
        return runtime.get(inside, 20)

    outer = runtime.put([runtime.put(7)])
    assert runtime.get(runtime.remote(looks_twice).remote([outer]), LONG) == 7


def test_a_reference_travels_through_tasks_that_do_not_look_at_it():
    ref = runtime.put(np.arange(30_000))
    boxed = [ref]
    for _ in range(5):
        boxed = runtime.get(runtime.remote(bodies.echo).remote(boxed), LONG)
    del ref
    assert runtime.get(boxed[0], LONG)[-1] == 29_999


def test_a_nested_call_is_known_by_the_same_id_when_its_caller_is_run_again(tmp_path):
    """The caller dies after its first try; what that had called is not run a second time."""

    def caller():
        value = runtime.get(runtime.remote(bodies.total).remote(np.ones(4), tmp_path / "inner"))
        bodies.mark(tmp_path / "outer")
        if bodies.marks(tmp_path / "outer") == 1:
            bodies.until(lambda: (tmp_path / "go").exists())
            bodies.kill_self()
        return value

    ref = runtime.remote(caller).remote()
    bodies.until(lambda: bodies.marks(tmp_path / "outer"))
    (tmp_path / "go").touch()
    assert runtime.get(ref, LONG) == 4
    assert bodies.marks(tmp_path / "outer") == 2


def test_a_thread_of_a_task_can_call_and_wait():
    def outer():
        import threading

        found = []

        def call(i):
            found.append(runtime.get(runtime.remote(bodies.add).remote(i)))

        threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(found)

    assert runtime.get(runtime.remote(outer).remote(), LONG) == [0, 1, 2, 3]
