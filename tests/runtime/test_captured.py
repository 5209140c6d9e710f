"""References and actor handles in the closures and globals of functions and actor classes."""

import os
import signal
from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from killers import lose
from runtime_engines import held

LONG = timedelta(seconds=60)


def by_value(source, **variables):
    """A function or class of a script: its globals travel with it."""
    namespace = {"__name__": "__main__", "runtime": runtime, **variables}
    exec(source, namespace)
    return namespace["defined"]


def test_a_function_uses_a_reference_of_its_closure(shared):
    large = runtime.put(np.arange(50_000.0))
    call = runtime.remote(lambda i: runtime.get(large)[i])
    assert runtime.get([call.remote(i) for i in range(4)], LONG) == [0, 1, 2, 3]


def test_a_function_uses_references_and_handles_of_its_globals(shared):
    large = runtime.put(np.arange(50_000.0))
    actor = runtime.remote(bodies.Counter).remote()
    defined = by_value(
        "def defined(n):\n"
        "    return runtime.get(actor.add.remote(n)), len(runtime.get(inside['large']))",
        actor=actor,
        inside={"large": large},
    )
    call = runtime.remote(defined)
    assert runtime.get(call.remote(2), LONG) == (2, 50_000)
    assert runtime.get(call.remote(3), LONG) == (5, 50_000)


def test_a_task_passes_a_function_on_with_what_it_captures(shared):
    large = runtime.put(np.arange(50_000.0))
    inner = runtime.remote(lambda: runtime.get(large).sum())

    def outer():
        return runtime.get(inner.remote())

    def given(function):
        return runtime.get(function.remote())

    expected = np.arange(50_000.0).sum()
    assert runtime.get(runtime.remote(outer).remote(), LONG) == expected
    assert runtime.get(runtime.remote(given).remote(inner), LONG) == expected


def test_what_a_function_captures_lives_as_long_as_the_function_and_no_longer(shared):
    first = runtime.put(np.ones(50_000))

    def uses(add):
        return runtime.get(first).sum() + add

    call, id = runtime.remote(uses), first.id
    assert runtime.get(call.remote(1), LONG) == 50_001
    first = None  # the pickled function, which is what is called, still refers to it
    assert runtime.get(call.remote(2), LONG) == 50_002
    del uses, call
    bodies.until(lambda: id not in held(), "the end of what it captured")


def test_a_call_on_its_way_keeps_what_its_function_captures(shared, tmp_path):
    value = runtime.put(np.ones(50_000))

    def uses(_):
        return runtime.get(value).sum()

    call = runtime.remote(uses)
    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
    result = call.remote(late)
    value = None
    del call, uses
    (tmp_path / "go").touch()
    assert runtime.get(result, LONG) == 50_000


def test_a_task_begun_again_still_has_what_its_function_captures(shared, tmp_path):
    large = runtime.put(np.arange(50_000.0))

    def dies(path):
        bodies.dies_at_first(path, 2)
        return runtime.get(large)[3]

    result = runtime.remote(dies).remote(tmp_path / "marks")
    assert runtime.get(result, LONG) == 3
    assert bodies.marks(tmp_path / "marks") == 3


def test_captured_references_of_a_generator_live_while_it_yields(shared, tmp_path):
    value = runtime.put(np.arange(50_000))

    def yields(path):
        for i in range(3):
            if i == 1:
                bodies.wait_for_file(path)
            yield runtime.get(value)[i]

    items = runtime.remote(yields).remote(tmp_path / "go")
    value = None
    del yields
    assert runtime.get(next(items), LONG) == 0
    (tmp_path / "go").touch()
    assert [runtime.get(item, LONG) for item in items] == [1, 2]


def test_an_actor_class_captures_and_its_actor_keeps_it_across_a_restart(shared):
    value = runtime.put(np.ones(50_000))
    helper = runtime.remote(bodies.Counter).remote()

    class Uses:
        def total(self):
            return runtime.get(helper.add.remote()), runtime.get(value).sum(), os.getpid()

    actor = runtime.remote(Uses).options(max_restarts=1).remote()
    value = None
    del Uses
    *first, pid = runtime.get(actor.total.remote(), LONG)
    os.kill(pid, signal.SIGKILL)
    *second, new_pid = runtime.get(actor.total.remote(), LONG)
    assert (first, second) == ([1, 50_000], [2, 50_000])
    assert new_pid != pid


def test_a_handle_that_only_a_function_captures_keeps_its_actor_alive(shared):
    actor = runtime.remote(bodies.Counter).remote()
    death = runtime.death(actor)

    def adds():
        return runtime.get(actor.add.remote())

    call = runtime.remote(adds)
    assert runtime.get(call.remote(), LONG) == 1
    actor = None
    assert runtime.get(call.remote(), LONG) == 2
    del call, adds
    assert "nobody had a handle" in str(runtime.get(death, LONG))


def test_another_value_is_another_function(shared):
    def make(ref):
        return runtime.remote(lambda: runtime.get(ref))

    calls = [make(runtime.put(i)) for i in range(3)]
    assert runtime.get([call.remote() for call in calls], LONG) == [0, 1, 2]


def test_a_lost_result_is_made_again_by_a_function_that_captures(shared):
    base = runtime.remote(bodies.zeros).remote(50_000)

    def uses():
        return runtime.get(base) + 1

    result = runtime.remote(uses).remote()
    runtime.wait([result], 1, LONG)
    lose(base, result)
    assert runtime.get(result, LONG).sum() == 50_000


def test_a_memfd_in_a_closure_is_refused(shared):
    memfd = runtime.Memfd.create("captured", 64)
    with pytest.raises(runtime.SerializationError, match="Give it as an argument"):
        runtime.remote(lambda: memfd.size).remote()
    memfd.close()


def test_a_function_used_in_the_next_runtime_captures_what_there_is_then(stopped):
    ref = None

    def uses():
        return runtime.get(ref)

    call = runtime.remote(uses)
    for i in range(2):
        runtime.init(num_cpus=1)
        ref = runtime.put(i)
        assert runtime.get(call.remote(), LONG) == i
        runtime.shutdown()
