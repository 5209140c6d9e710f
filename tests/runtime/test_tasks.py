"""Tasks: results, several results, generators, waiting, errors, and what is run again."""

import os
import sys
import types
from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.driver import function_table
from gmi_drl.runtime.gcs.database import GcsError
from killers import lose

LONG = timedelta(seconds=30)

pytestmark = pytest.mark.usefixtures("shared")


def task(function, **options):
    return runtime.remote(function).options(**options)


def test_a_task_runs_in_another_process():
    assert runtime.get(task(bodies.pid).remote(), LONG) != os.getpid()


def test_results_come_in_the_order_of_the_references():
    refs = [task(bodies.add).remote(i, b=1) for i in range(200)]
    assert runtime.get(refs[::-1], LONG) == list(range(200, 0, -1))


def test_a_result_can_be_had_any_number_of_times():
    ref = task(bodies.add).remote(1, 1)
    assert [runtime.get(ref, LONG) for _ in range(3)] == [2, 2, 2]


def test_functions_of_this_file_go_by_value_with_what_they_close_over():
    factor = 3

    @runtime.remote
    def times(number):
        return factor * number

    assert runtime.get(times.remote(5), LONG) == 15


def test_functions_are_not_kept_for_ever_and_can_be_called_again(shared):
    nbytes, number = 1 << 20, 60
    kept = task(bodies.closure(99, nbytes))
    refs = [kept.remote()] + [task(bodies.closure(i, nbytes)).remote() for i in range(number)]
    assert [ref[0] for ref in runtime.get(refs, LONG)] == [99, *range(number)]
    assert shared.functions.recent.nbytes <= function_table.KEPT_BYTES
    known = runtime.get([task(bodies.known_functions).remote() for _ in range(4)], LONG)
    assert max(known) <= function_table.KEPT_BYTES // nbytes + 10
    first = shared.objects.slots[refs[0].id].task.function
    assert first not in shared.functions.recent
    lose(refs[0])
    assert runtime.get(refs[0], LONG)[0] == 99  # its function is read from the control store
    assert first in shared.functions.recent
    assert runtime.get(kept.remote(), LONG)[0] == 99


def test_a_function_that_cannot_be_read_fails_its_calls(shared, monkeypatch):
    def damaged(row_class, id):
        raise GcsError("gcs.sqlite: damaged")

    large = runtime.put(np.zeros(100_000))
    monkeypatch.setattr(shared.functions, "recent", function_table.RecentFunctions())
    monkeypatch.setattr(shared.functions, "add", lambda *_: None)
    monkeypatch.setattr(shared.functions._gcs, "get", damaged)
    with pytest.raises(runtime.ActorRuntimeError, match=r"cannot be read: gcs\.sqlite: damaged"):
        runtime.get(task(lambda x: 1).remote(large), LONG)
    monkeypatch.undo()
    assert runtime.get(task(lambda x: x.shape).remote(large), LONG) == (100_000,)
    bodies.until(
        lambda: not any(each.pins.total() for each in shared.processes.values()), "no pins"
    )


def test_a_remote_function_can_be_called_from_tasks():
    double = runtime.remote(lambda x: 2 * x)

    @runtime.remote(num_cpus=0.5)
    def outer(x):
        return runtime.get(double.remote(x)) + 1

    assert runtime.get(outer.remote(4), LONG) == 9


def test_a_remote_function_says_how_it_is_called():
    with pytest.raises(TypeError, match=r"add\.remote\(.*__wrapped__"):
        task(bodies.add)(1)
    assert task(bodies.add).__wrapped__(1, 2) == 3


def test_several_results_are_several_references():
    refs = task(bodies.several, num_returns=3).remote(3)
    assert runtime.get(refs, LONG) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"gave 2 values.*num_returns=3"):
        runtime.get(task(bodies.several, num_returns=3).remote(2)[2], LONG)


def test_one_of_several_results_may_be_dropped():
    first, _, third = task(bodies.several, num_returns=3).remote(3)
    assert runtime.get([first, third], LONG) == [0, 2]


def test_wait_gives_what_is_ready_first(tmp_path):
    late = task(bodies.wait_for_file).remote(tmp_path / "go")
    quick = [task(bodies.add).remote(i) for i in range(3)]
    ready, pending = runtime.wait([late, *quick], 3, LONG)
    assert (ready, pending) == (quick, [late])
    assert runtime.wait([late], 1, 0.01) == ([], [late])
    assert runtime.wait([late], 1, 0) == ([], [late])
    (tmp_path / "go").touch()
    assert runtime.wait([late], 1, LONG) == ([late], [])


def test_get_names_the_task_that_is_late(tmp_path):
    late = task(bodies.wait_for_file).remote(tmp_path / "go", 3)
    quick = task(bodies.add).remote(1)
    runtime.get(quick, LONG)
    with pytest.raises(runtime.GetTimeoutError, match=r"0\.01 s: wait_for_file"):
        runtime.get([quick, late], 0.01)
    (tmp_path / "go").touch()
    assert runtime.get(late, LONG) == 3


# Generators.


def test_a_generators_items_are_there_one_after_the_other():
    assert [runtime.get(ref, LONG) for ref in task(bodies.count_to).remote(5)] == list(range(5))
    assert list(task(bodies.count_to).remote(0)) == []


def test_an_item_can_be_read_while_the_generator_still_runs(tmp_path):
    items = task(bodies.count_to).remote(3, gate=tmp_path / "go")
    assert runtime.get(next(items), LONG) == 0
    (tmp_path / "go").touch()
    assert [runtime.get(ref, LONG) for ref in items] == [1, 2]


def test_large_items_lie_in_shared_memory():
    items = task(bodies.count_to).remote(4, size=50_000)
    assert [float(runtime.get(ref, LONG).mean()) for ref in items] == [0, 1, 2, 3]


def test_what_a_generator_raises_comes_after_its_items():
    items = task(bodies.count_to).remote(5, fail_at=2)
    assert [runtime.get(next(items), LONG) for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="at 2"):
        runtime.get(next(items), LONG)
    with pytest.raises(StopIteration):
        next(items)


def test_items_outlive_the_generator_that_gave_them():
    first = next(task(bodies.count_to).remote(3, size=20_000))
    assert float(runtime.get(first, LONG).sum()) == 0


def test_a_task_can_read_the_items_of_a_generator_it_started():
    def reads(number):
        items = runtime.remote(bodies.count_to).remote(number)
        return sum(runtime.get(ref) for ref in items)

    assert runtime.get(task(reads).remote(10), LONG) == 45


def test_a_generator_can_be_read_where_it_was_not_started():
    def reads(items):
        return [runtime.get(ref) for ref in items]

    assert runtime.get(task(reads).remote(task(bodies.count_to).remote(4)), LONG) == [0, 1, 2, 3]


# What goes wrong.


def test_an_error_is_of_its_own_class_and_has_the_remote_traceback():
    with pytest.raises(ZeroDivisionError, match=r"bodies_tasks.py") as caught:
        runtime.get(task(bodies.raises).remote(ZeroDivisionError, "no"), LONG)
    assert isinstance(caught.value, runtime.TaskError)
    assert type(caught.value.cause) is ZeroDivisionError


def test_an_error_passes_through_the_tasks_that_depend_on_it(tmp_path):
    bad = task(bodies.raises).remote(KeyError, "here")
    after = task(bodies.add).remote(task(bodies.add).remote(bad))
    with pytest.raises(KeyError, match="here"):
        runtime.get(after, LONG)
    never = task(bodies.plus).remote(bad, 1, tmp_path / "ran")
    runtime.wait([never], 1, LONG)
    assert bodies.marks(tmp_path / "ran") == 0


def test_an_error_in_a_nested_task_is_seen_by_its_caller_and_the_callers_caller():
    def outer():
        return runtime.get(runtime.remote(bodies.raises).remote(LookupError, "deep"))

    with pytest.raises(LookupError, match="LookupError: deep"):
        runtime.get(task(outer).remote(), LONG)


def test_what_an_application_raises_is_not_tried_again(tmp_path):
    with pytest.raises(ValueError, match="attempt 1"):
        runtime.get(task(bodies.fails_at_first).remote(tmp_path / "n", 1), LONG)
    assert bodies.marks(tmp_path / "n") == 1


def test_it_is_tried_again_when_asked_for(tmp_path):
    again = task(bodies.fails_at_first, retry_exceptions=True)
    assert runtime.get(again.remote(tmp_path / "n", 2), LONG) == 3
    chosen = task(bodies.fails_at_first, retry_exceptions=(ValueError,), max_retries=1)
    assert runtime.get(chosen.remote(tmp_path / "m", 1), LONG) == 2
    with pytest.raises(KeyError):
        runtime.get(chosen.remote(tmp_path / "k", 1, KeyError), LONG)
    with pytest.raises(ValueError, match="attempt 2"):
        runtime.get(chosen.remote(tmp_path / "l", 9), LONG)


def test_a_task_whose_worker_dies_is_run_again_three_times(tmp_path):
    assert runtime.get(task(bodies.dies_at_first).remote(tmp_path / "n", 3), LONG) == 3
    with pytest.raises(runtime.WorkerDiedError, match="SIGKILL; it was tried 4 times") as caught:
        runtime.get(task(bodies.dies_at_first).remote(tmp_path / "m", 9), LONG)
    assert caught.value.attempts == bodies.marks(tmp_path / "m") == 4


def test_without_retries_the_first_death_is_the_last(tmp_path):
    with pytest.raises(runtime.WorkerDiedError, match="dies_at_first"):
        runtime.get(task(bodies.dies_at_first, max_retries=0).remote(tmp_path / "n", 1), LONG)
    assert bodies.marks(tmp_path / "n") == 1


def test_those_that_waited_behind_a_dying_task_lose_no_attempt(tmp_path):
    dying = task(bodies.dies_at_first, max_retries=1).remote(tmp_path / "n", 1)
    others = [task(bodies.where, max_retries=0).remote() for _ in range(50)]
    assert runtime.get(dying, LONG) == 1
    assert {attempt for _, attempt, _ in runtime.get(others, LONG)} == {0}


# Who am I.


def test_a_task_knows_its_id_and_its_attempt(tmp_path):
    ref = task(bodies.where, name="who").remote()
    assert runtime.get(ref, LONG) == (ref.id[:16], 0, "who")
    assert runtime.context().name == "driver"


def test_the_ids_of_what_a_task_calls_are_the_same_when_it_is_run_again(tmp_path):
    def told(path):
        found = bodies.submit_ids(3)
        with open(path, "ab") as file:
            file.write(b"".join(found))
        if runtime.context().attempt == 0:
            bodies.kill_self()
        return found

    first = runtime.get(task(told).remote(tmp_path / "ids"), LONG)
    assert len(set(first)) == 4
    assert (tmp_path / "ids").read_bytes() == 2 * b"".join(first)
    other = runtime.get(task(bodies.submit_ids).remote(3), LONG)
    assert not set(first) & set(other)


def test_a_class_that_cannot_be_imported_may_be_what_is_tried_again(shared):
    class Flaky(Exception):
        pass

    assert runtime.get(task(bodies.echo, retry_exceptions=(Flaky,)).remote(1), LONG) == 1
    shared.gcs.flush()
    assert shared.gcs.failure == ""


def test_a_task_can_call_others_with_such_a_class(shared, tmp_path):
    class Flaky(Exception):
        pass

    def calls(path):
        again = runtime.remote(bodies.fails_at_first).options(retry_exceptions=(Flaky,))
        return runtime.get(again.remote(path, 2, Flaky))

    assert runtime.get(task(calls).remote(tmp_path / "n"), LONG) == 3


def test_a_task_says_that_the_driver_cannot_import_what_its_calls_are_tried_again_for(tmp_path):
    (tmp_path / "only_there.py").write_text("class Flaky(Exception):\n    pass\n")

    def calls():
        sys.path.append(str(tmp_path))
        import only_there

        sys.path.remove(str(tmp_path))
        flaky = runtime.remote(bodies.add).options(retry_exceptions=(only_there.Flaky,))
        return runtime.get([runtime.remote(bodies.add).remote(1), flaky.remote(2)], 20)

    with pytest.raises(ValueError, match=r"cannot import its retry_exceptions \(.*only_there") as e:
        runtime.get(task(calls).remote(), LONG)
    assert "add: the process that called init()" in str(e.value)


def test_a_message_that_cannot_be_handled_does_not_stop_those_behind_it(shared, monkeypatch):
    handled = []

    def handle(process, message):
        handled.append(message)
        if message == "bad":
            raise ValueError

    monkeypatch.setattr(shared.requests, "handle", handle)
    channel = types.SimpleNamespace(read=lambda: (["bad", "good"], True))
    process = types.SimpleNamespace(channel=channel)
    assert shared.loop.ask(lambda then: then(shared.spawner._read(process))) == (True, True)
    assert handled == ["bad", "good"]


def test_nothing_is_left_of_two_thousand_tasks(shared):
    refs = [task(bodies.echo).remote(bytes(i % 7)) for i in range(2_000)]
    assert runtime.get(refs, LONG)[-1] == bytes(1999 % 7)


def test_what_raised_and_is_begun_again_calls_anew():
    actor = runtime.remote(bodies.Counter).remote()
    ref = task(bodies.inner_at_least, retry_exceptions=True).remote(actor, 3, False)
    assert runtime.get(ref, LONG) == 3


def test_what_died_and_is_begun_again_finds_the_answers_that_it_had():
    actor = runtime.remote(bodies.Counter).remote()
    with pytest.raises(runtime.WorkerDiedError):
        runtime.get(task(bodies.inner_at_least).remote(actor, 2, True), LONG)
    assert runtime.get(actor.add.remote(), LONG) == 2


def test_options_that_are_no_whole_numbers_and_async_functions_are_refused():
    for options in ({"max_retries": 0.7}, {"max_retries": "3"}, {"max_retries": True}):
        with pytest.raises(TypeError, match=r"max_retries=.*whole number"):
            runtime.remote(bodies.add).options(**options)
    for name in ("max_restarts", "max_task_retries", "checkpoint_every", "max_concurrency"):
        with pytest.raises(TypeError, match=f"{name}=1.5.*whole number"):
            runtime.remote(bodies.Counter).options(**{name: 1.5})
        with pytest.raises(ValueError, match=f"{name}=-2"):
            runtime.remote(bodies.Counter).options(**{name: -2})

    async def waits():
        pass

    async def yields():
        yield 1

    for function in (waits, yields):
        with pytest.raises(TypeError, match=r"async function.*asyncio\.run"):
            runtime.remote(function)
