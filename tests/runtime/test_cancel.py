"""Taking calls back: queued ones, running ones, and what they have called."""

import threading
from datetime import timedelta

import pytest

import bodies_tasks as bodies
from gmi_drl import runtime

LONG = timedelta(seconds=30)

pytestmark = pytest.mark.usefixtures("shared")


def cancelled(ref):
    """Whether its getting raises TaskCancelledError."""
    with pytest.raises(runtime.TaskCancelledError):
        runtime.get(ref, LONG)
    return True


def test_a_queued_task_is_never_run(tmp_path):
    hogs = [runtime.remote(bodies.wait_for_file).remote(tmp_path / "go") for _ in range(2)]
    queued = [runtime.remote(bodies.total).remote([], tmp_path / f"{i}") for i in range(5)]
    for ref in queued:
        runtime.cancel(ref)
    assert all(map(cancelled, queued))
    (tmp_path / "go").touch()
    runtime.get(hogs, LONG)
    assert runtime.get(runtime.remote(bodies.add).remote(1), LONG) == 1
    assert not any(bodies.marks(tmp_path / f"{i}") for i in range(5))


def test_a_task_can_be_cancelled_as_soon_as_it_is_submitted(tmp_path):
    for number in range(40):
        ref = runtime.remote(bodies.sleeps).remote(tmp_path / f"{number}")
        runtime.cancel(ref)
        assert cancelled(ref)


def test_what_a_method_calls_before_it_hears_that_it_was_cancelled_is_not_kept(shared, tmp_path):
    class Calls:
        def wait(self):
            bodies.wait_for_file(tmp_path / "go")

        def call(self):
            ref = runtime.remote(bodies.add).remote(1)
            bodies.sleeps(tmp_path / "n")
            return ref

    actor = runtime.remote(Calls).options(max_restarts=1).remote()
    first, second = actor.wait.remote(), actor.call.remote()
    entry = shared.actors.table[actor._id]
    bodies.until(lambda: entry.process and len(entry.process.calls) == 2, "both calls are sent")
    gate = threading.Event()
    shared.post(gate.wait)  # and so does not read that the first has ended
    (tmp_path / "go").touch()
    bodies.pid_in(tmp_path / "n")
    cancels = threading.Thread(target=runtime.cancel, args=(second,))
    cancels.start()
    bodies.until(lambda: shared.loop.commands, "the cancellation waits")
    gate.set()
    cancels.join()
    assert cancelled(second)
    runtime.get(first, LONG)
    runtime.kill(actor)


def test_a_task_whose_inputs_are_not_there_yet_is_never_run(tmp_path):
    hog = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
    waiting = runtime.remote(bodies.plus).remote(hog, 1, tmp_path / "ran")
    after = runtime.remote(bodies.add).remote(waiting)
    runtime.cancel(waiting)
    assert cancelled(waiting)
    assert cancelled(after)
    (tmp_path / "go").touch()
    runtime.get(hog, LONG)
    assert not bodies.marks(tmp_path / "ran")


@pytest.mark.parametrize("body", [bodies.sleeps, bodies.computes])
def test_a_running_task_is_interrupted_and_its_worker_lives(tmp_path, body):
    ref = runtime.remote(body).remote(tmp_path / "n")
    pid = bodies.pid_in(tmp_path / "n")
    runtime.cancel(ref)
    assert cancelled(ref)
    assert pid in {runtime.get(runtime.remote(bodies.pid).remote(), LONG) for _ in range(20)}
    assert bodies.marks(tmp_path / "n") == 1


def test_a_task_that_waits_for_another_is_interrupted(tmp_path):
    hog = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
    ref = runtime.remote(bodies.blocks).remote(tmp_path / "n", [hog])
    bodies.pid_in(tmp_path / "n")
    runtime.cancel(ref)
    assert cancelled(ref)
    (tmp_path / "go").touch()
    runtime.get(hog, LONG)


def test_a_task_can_catch_it_and_answer(tmp_path):
    ref = runtime.remote(bodies.swallows).remote(tmp_path / "n")
    bodies.pid_in(tmp_path / "n")
    runtime.cancel(ref)
    assert runtime.get(ref, LONG) == "caught"


@pytest.mark.parametrize("body", [bodies.sleeps, bodies.computes])
def test_force_kills_the_process_and_it_is_not_tried_again(tmp_path, body):
    ref = runtime.remote(body).remote(tmp_path / "n")
    pid = bodies.pid_in(tmp_path / "n")
    runtime.cancel(ref, force=True)
    assert cancelled(ref)
    assert pid != runtime.get(runtime.remote(bodies.pid).remote(), LONG)
    assert bodies.marks(tmp_path / "n") == 1


def test_force_spares_those_that_run_before_it_on_its_worker(tmp_path):
    hogs = [runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", i) for i in range(2)]
    queued = [runtime.remote(bodies.sleeps).remote(tmp_path / "n") for _ in range(10)]
    for ref in queued:
        runtime.cancel(ref, force=True)
    assert all(map(cancelled, queued))
    (tmp_path / "go").touch()
    assert runtime.get(hogs, LONG) == [0, 1]
    assert not bodies.marks(tmp_path / "n")


def test_what_a_cancelled_task_has_called_is_cancelled_with_it(shared, tmp_path):
    root = runtime.remote(bodies.tree).remote(3, tmp_path)
    bodies.pid_in(tmp_path / "2")  # it grows
    runtime.cancel(root)
    assert cancelled(root)
    bodies.until(lambda: not shared.tasks.live, "no task left", 20, lambda: shared.tasks.live)


def test_what_a_cancelled_task_waits_for_is_interrupted(tmp_path):
    root = runtime.remote(bodies.tree).remote(1, tmp_path)
    bodies.until(lambda: bodies.marks(tmp_path / "0") == 2, "both leaves")
    runtime.cancel(root)
    assert cancelled(root)
    bodies.until(lambda: bodies.marks(tmp_path / "over") == 2, "the end of both")


def test_what_a_cancelled_call_calls_later_is_cancelled_with_it(shared, tmp_path):
    pair = runtime.remote(bodies.Pair).options(max_concurrency=2).remote()
    calls = [pair.calls_late.remote(tmp_path / name, tmp_path / "go") for name in "ab"]
    for name in "ab":
        bodies.pid_in(tmp_path / name)
    runtime.cancel(calls[1])  # it is a thread of its actor, and cannot be interrupted
    assert cancelled(calls[1])
    (tmp_path / "go").touch()
    assert runtime.get(runtime.get(calls[0], LONG), LONG) == 1
    bodies.until(lambda: bodies.marks(tmp_path / "b") == 2, "the late call")
    bodies.until(lambda: not shared.tasks.live, "no task left", 20, lambda: shared.tasks.live)


@pytest.mark.parametrize("kind", ["task", "method", "logged method", "async method"])
def test_a_cancelled_call_can_call_others_to_clean_up(tmp_path, kind):
    lock, path = runtime.remote(bodies.Counter).remote(), tmp_path / "n"
    counter = runtime.remote(bodies.Counter)
    if kind == "task":
        ref = runtime.remote(bodies.cleans_up).remote(path, lock)
    else:
        logged = kind == "logged method"
        cls = runtime.remote(bodies.Async) if kind == "async method" else counter
        actor = cls.options(max_restarts=int(logged)).remote()
        ref = actor.cleans_up.remote(path, lock)
    bodies.pid_in(path)
    runtime.cancel(ref)
    assert cancelled(ref)
    bodies.until(lambda: bodies.marks(path) == 2, "the end of the cleaning up")
    assert runtime.get(lock.add.remote(), LONG) == 11


def test_what_is_over_stays():
    ref = runtime.remote(bodies.add).remote(1, 2)
    assert runtime.get(ref, LONG) == 3
    runtime.cancel(ref)
    assert runtime.get(ref, LONG) == 3
    runtime.cancel(runtime.put(1))


def test_a_cancelled_task_is_not_tried_again_whatever_it_raises(tmp_path):
    ref = runtime.remote(bodies.sleeps).options(retry_exceptions=True).remote(tmp_path / "n")
    bodies.pid_in(tmp_path / "n")
    runtime.cancel(ref)
    assert cancelled(ref)
    assert bodies.marks(tmp_path / "n") == 1


def test_a_generator_is_interrupted_after_what_it_has_given(tmp_path):
    items = runtime.remote(bodies.count_to).remote(5, gate=tmp_path / "never")
    first = next(items)
    assert runtime.get(first, LONG) == 0
    runtime.cancel(items)
    assert cancelled(next(items))
    assert runtime.get(first, LONG) == 0


def test_a_tasks_can_cancel_what_it_has_called(tmp_path):
    def outer():
        ref = runtime.remote(bodies.sleeps).remote(tmp_path / "n")
        bodies.pid_in(tmp_path / "n")
        runtime.cancel(ref)
        try:
            runtime.get(ref)
        except runtime.TaskCancelledError:
            return "cancelled"

    assert runtime.get(runtime.remote(outer).remote(), LONG) == "cancelled"


def test_queued_and_running_methods_can_be_cancelled(tmp_path):
    actor = runtime.remote(bodies.Counter).remote()
    running = actor.add_slowly.remote(1, tmp_path / "n", tmp_path / "never")
    queued, after = actor.add.remote(10), actor.add.remote(100)
    bodies.pid_in(tmp_path / "n")
    runtime.cancel(queued)
    assert cancelled(queued)
    runtime.cancel(running)
    assert cancelled(running)
    assert runtime.get(after, LONG) == 100


def test_a_method_that_waits_for_another_is_interrupted(tmp_path):
    busy, actor = (runtime.remote(bodies.Counter).remote() for _ in range(2))
    slow = busy.add_slowly.remote(1, tmp_path / "slow", tmp_path / "go")
    bodies.pid_in(tmp_path / "slow")
    waits = actor.add_to.remote(busy, 10, tmp_path / "waits")
    bodies.pid_in(tmp_path / "waits")
    runtime.cancel(waits)
    assert cancelled(waits)
    (tmp_path / "go").touch()
    assert runtime.get(slow, LONG) == 1


def test_a_method_of_an_actor_that_is_not_built_yet_is_never_run(tmp_path):
    hog = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", tmp_path / "n")
    actor = runtime.remote(bodies.Counter).remote(hog)
    calls = [actor.add.remote(number) for number in (10, 100)]
    runtime.cancel(calls[0])
    assert cancelled(calls[0])
    (tmp_path / "go").touch()
    assert runtime.get(calls[1], LONG) == 100
    assert bodies.marks(tmp_path / "n") == 1


def test_async_methods_are_cancelled_one_by_one():
    actor = runtime.remote(bodies.Async).remote()
    first, second = actor.wait.remote(1), actor.wait.remote(2)
    bodies.until(lambda: runtime.get(actor.plain.remote(), LONG) == 2)
    runtime.cancel(first)
    assert cancelled(first)
    runtime.get(actor.open.remote(), LONG)
    assert runtime.get(second, LONG) == 2


def test_an_async_method_that_is_cancelled_before_the_loop_hears_of_it_is_never_run(
    shared, tmp_path
):
    actor = runtime.remote(bodies.Async).remote()
    busy = actor.keeps_the_loop.remote(tmp_path / "began", tmp_path / "go")
    bodies.pid_in(tmp_path / "began")
    calls = [actor.wait.remote(1) for _ in range(3)]
    for call in calls:
        runtime.cancel(call)
    assert all(map(cancelled, calls))
    (tmp_path / "go").touch()
    runtime.get(busy, LONG)
    nothing_runs(shared)


def test_an_async_method_that_is_cancelled_while_it_waits_for_its_turn_is_never_run(shared):
    actor = runtime.remote(bodies.Async).options(max_concurrency=2).remote()
    running, waiting = [actor.wait.remote(i) for i in range(2)], actor.wait.remote(3)
    bodies.until(lambda: all(len(one.calls) == 3 for one in actors_of(shared)), "three calls")
    runtime.cancel(waiting)
    assert cancelled(waiting)
    bodies.until(lambda: all(len(one.calls) == 2 for one in actors_of(shared)), "its answer")
    for call in running:
        runtime.cancel(call)
    assert all(map(cancelled, running))
    nothing_runs(shared)


def actors_of(driver):
    return [one for one in list(driver.processes.values()) if one.actor is not None]


def nothing_runs(driver):
    """Waits until every call that a process was given is answered."""
    bodies.until(lambda: not any(one.calls for one in list(driver.processes.values())), "answers")
