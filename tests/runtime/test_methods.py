"""Options of methods: how many results, what is retried, and which group they run in."""

import asyncio
import os
import signal
import sys
import threading
import types
from datetime import timedelta

import pytest

import bodies_tasks as bodies
from gmi_drl import runtime

LONG = timedelta(seconds=60)

pytestmark = pytest.mark.usefixtures("shared")


def start(cls, *args, **options):
    return runtime.remote(cls).options(**options).remote(*args)


def crash(actor):
    runtime.kill(actor, no_restart=False)
    bodies.until(lambda: runtime.deaths(actor), "its death")


# Several results.


class Returns:
    @runtime.method(num_returns=2)
    def pair(self):
        return 1, 2

    @runtime.method
    def one(self):
        return 3

    @runtime.method(num_returns="streaming")
    def listed(self):
        return [4, 5]

    @runtime.method(num_returns=1)
    def generated(self):
        return 6
        yield


def test_a_method_says_itself_how_many_results_it_has():
    actor = start(Returns)
    assert runtime.get(actor.pair.remote(), LONG) == [1, 2]
    assert runtime.get(actor.one.remote(), LONG) == 3
    assert [runtime.get(item, LONG) for item in actor.listed.remote()] == [4, 5]
    assert runtime.get(actor.pair.options(num_returns=1).remote(), LONG) == (1, 2)
    passed = runtime.remote(lambda actor: runtime.get(actor.pair.remote()))
    assert runtime.get(passed.remote(actor), LONG) == [1, 2]


def test_unknown_options_of_methods_name_the_known_ones():
    with pytest.raises(TypeError, match=r"num_return'.*concurrency_group, .*num_returns"):
        runtime.method(num_return=2)
    with pytest.raises(TypeError, match="num_return'"):
        start(Returns).pair.options(num_return=2)
    with pytest.raises(ValueError, match="num_returns=0"):
        runtime.method(num_returns=0)


def test_options_of_a_method_are_added_to_those_it_was_given(tmp_path):
    actor = start(Fails, tmp_path / "n", 1)
    chosen = actor.plain.options(retry_exceptions=[KeyError]).options(max_task_retries=1)
    assert runtime.get(chosen.options(num_returns=2).remote(), LONG) == [2, 1]


@pytest.mark.parametrize("cls", [Returns, bodies.Turns])
def test_classes_that_the_actor_cannot_import_are_no_matter_until_it_raises(cls, monkeypatch):
    module = types.ModuleType("only_here")
    module.Odd = type("Odd", (Exception,), {"__module__": "only_here"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    actor = start(cls, concurrency_groups={"io": 1})
    method = actor.one if cls is Returns else actor.history
    found = runtime.get(method.options(retry_exceptions=[module.Odd]).remote(), LONG)
    assert found == (3 if cls is Returns else [])


# Retries.


class Fails:
    """Fails the first `times` times; counts all attempts in its state."""

    def __init__(self, path, times):
        self.path, self.times, self.attempts, self.order = path, times, 0, []

    def _try(self, kind):
        self.attempts += 1
        if self.attempts <= self.times:
            raise kind(f"attempt {self.attempts}")
        self.order.append("tried")
        return self.attempts, runtime.context().attempt

    @runtime.method(retry_exceptions=True)
    def anything(self):
        return self._try(KeyError)

    @runtime.method(retry_exceptions=[OSError])
    def os_error(self, kind):
        return self._try(kind)

    @runtime.method(retry_exceptions=[OSError])
    def nested(self):
        self.attempts += 1
        value = runtime.get(runtime.remote(bodies.fails_at_first).remote(self.path, self.times))
        return value, self.attempts

    @runtime.method(retry_exceptions=[ValueError])
    def yields(self):
        yield 1
        yield self._try(ValueError)

    def plain(self):
        return self._try(KeyError)

    def seen(self):
        self.order.append("seen")
        return self.attempts, self.order


def test_a_method_that_raises_is_called_again_in_its_turn(tmp_path):
    actor = start(Fails, tmp_path / "marks", 2)
    calls = [actor.anything.remote(), actor.seen.remote()]
    assert runtime.get(calls, LONG) == [(3, 2), (3, ["tried", "seen"])]


def test_a_method_is_called_four_times_at_most(tmp_path):
    actor = start(Fails, tmp_path / "marks", 10)
    with pytest.raises(KeyError, match="attempt 4"):
        runtime.get(actor.anything.remote(), LONG)
    assert runtime.get(actor.seen.remote(), LONG)[0] == 4


@pytest.mark.parametrize("where", ["of the actor", "of the method", "of the call"])
def test_max_task_retries_says_how_often(tmp_path, where):
    class Limited(Fails):
        @runtime.method(retry_exceptions=True, max_task_retries=5)
        def limited(self):
            return self._try(KeyError)

    if where == "of the actor":
        call = start(Fails, tmp_path, 5, max_task_retries=5).anything
    elif where == "of the method":
        call = start(Limited, tmp_path, 5).limited
    else:
        call = start(Fails, tmp_path, 5).anything.options(max_task_retries=-1)
    assert runtime.get(call.remote(), LONG) == (6, 5)
    never = start(Fails, tmp_path, 1, max_task_retries=0).anything
    with pytest.raises(KeyError, match="attempt 1"):
        runtime.get(never.remote(), LONG)


def test_only_the_exceptions_named_are_retried(tmp_path):
    actor = start(Fails, tmp_path / "marks", 2)
    with pytest.raises(KeyError, match="attempt 1"):
        runtime.get(actor.os_error.remote(KeyError), LONG)
    assert runtime.get(actor.os_error.remote(FileNotFoundError), LONG) == (3, 1)


def test_a_call_says_for_itself_what_is_retried(tmp_path):
    class Own(Exception):
        pass

    actor = start(Fails, tmp_path / "marks", 1)
    with pytest.raises(KeyError):
        runtime.get(actor.anything.options(retry_exceptions=False).remote(), LONG)
    other = start(Fails, tmp_path / "marks", 2)
    call = other.os_error.options(retry_exceptions=(Own,))
    assert runtime.get(call.remote(Own), LONG) == (3, 2)
    third = start(Fails, tmp_path / "marks", 2)
    assert runtime.get(third.plain.options(retry_exceptions=True).remote(), LONG) == (3, 2)


def test_what_a_retried_method_calls_is_called_anew(tmp_path):
    actor = start(Fails, tmp_path / "marks", 2)
    nested = actor.nested.options(retry_exceptions=True)
    assert runtime.get(nested.remote(), LONG) == (3, 3)


def test_an_actor_that_had_retried_is_rebuilt_to_the_same_state(tmp_path):
    actor = start(Fails, tmp_path / "marks", 2, max_restarts=1)
    nested = actor.nested.options(retry_exceptions=True)
    assert runtime.get([nested.remote(), actor.seen.remote()], LONG)[1] == (3, ["seen"])
    crash(actor)
    assert runtime.get(actor.seen.remote(), LONG) == (3, ["seen", "seen"])
    assert bodies.marks(tmp_path / "marks") == 3


def test_a_generator_that_is_retried_gives_each_item_once(tmp_path):
    actor = start(Fails, tmp_path / "marks", 2)
    assert [runtime.get(item, LONG) for item in actor.yields.remote()] == [1, (3, 2)]


def test_an_async_method_is_retried():
    class Async:
        attempts = 0

        @runtime.method(retry_exceptions=True)
        async def fails(self):
            self.attempts += 1
            if self.attempts < 3:
                raise KeyError("async")
            return self.attempts

    assert runtime.get(start(Async).fails.remote(), LONG) == 3


def test_a_cancelled_method_is_not_retried(tmp_path):
    class Sleeps:
        @runtime.method(retry_exceptions=True)
        def sleep(self, path):
            bodies.sleeps(path)

    actor = start(Sleeps)
    call = actor.sleep.remote(tmp_path / "began")
    bodies.pid_in(tmp_path / "began")
    runtime.cancel(call)
    with pytest.raises(runtime.TaskCancelledError):
        runtime.get(call, LONG)
    assert bodies.marks(tmp_path / "began") == 1


# Concurrency groups.


class Grouped:
    def __init__(self):
        self.gate, self.inside, self.most = threading.Event(), 0, 0
        self.lock = threading.Lock()

    @runtime.method(concurrency_group="io")
    def wait(self):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.gate.wait(60)
        with self.lock:
            self.inside -= 1
        return threading.current_thread().name

    def count(self):
        return self.inside

    def open(self):
        self.gate.set()
        return self.most


class AsyncGrouped:
    def __init__(self):
        self.inside = 0

    @runtime.method(concurrency_group="io")
    async def wait(self, path):
        self.inside += 1
        while not path.exists():
            await asyncio.sleep(0.005)  # between two looks
        return self.inside

    async def count(self):
        return self.inside


def test_a_group_runs_so_many_calls_at_once_beside_the_others():
    actor = start(Grouped, concurrency_groups={"io": 2})
    waiting = [actor.wait.remote() for _ in range(4)]
    bodies.until(lambda: runtime.get(actor.count.remote(), LONG) == 2, "two inside")
    assert runtime.get(actor.open.remote(), LONG) == 2
    names = runtime.get(waiting, LONG)
    assert all("io" in name for name in names)


def test_a_group_of_an_async_actor_is_limited(tmp_path):
    actor = start(AsyncGrouped, concurrency_groups={"io": 2})
    waiting = [actor.wait.remote(tmp_path / "go") for _ in range(4)]
    bodies.until(lambda: runtime.get(actor.count.remote(), LONG) == 2, "two inside")
    (tmp_path / "go").touch()
    assert max(runtime.get(waiting, LONG)) == 4


def test_a_call_chooses_another_group():
    actor = start(Grouped, concurrency_groups={"io": 1, "other": 1})
    waiting = [actor.wait.remote(), actor.wait.options(concurrency_group="other").remote()]
    bodies.until(lambda: runtime.get(actor.count.remote(), LONG) == 2, "two inside")
    runtime.get(actor.open.remote(), LONG)
    assert "other" in runtime.get(waiting, LONG)[1]


def test_a_group_that_there_is_not_says_which_there_are():
    with pytest.raises(ValueError, match="'io'; the actor has none"):
        start(Grouped)
    actor = start(Grouped, concurrency_groups={"io": 1})
    with pytest.raises(ValueError, match="'disk'; the actor has io"):
        runtime.get(actor.count.options(concurrency_group="disk").remote(), LONG)
    with pytest.raises(ValueError, match="it must be 1 or more"):
        start(Grouped, concurrency_groups={"io": 0})


def test_an_actor_with_groups_begins_anew_after_a_crash():
    class Counts(bodies.Counter):
        @runtime.method(concurrency_group="io")
        def die(self):
            os.kill(os.getpid(), signal.SIGKILL)

    actor = start(Counts, concurrency_groups={"io": 1}, max_restarts=1)
    assert runtime.get(actor.add.remote(), LONG) == 1
    crash(actor)
    assert runtime.get(actor.add.remote(), LONG) == 1
