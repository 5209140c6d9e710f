"""Actors: handles passed on, names, generators, calls at once, and when they end."""

from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from gmi_drl.runtime.util.state import list_actors

LONG = timedelta(seconds=30)

pytestmark = pytest.mark.usefixtures("shared")


def counter(*args, **options):
    return runtime.remote(bodies.Counter).options(**options).remote(*args)


def gone(handle):
    """Waits for the actor's end, and gives it."""
    return runtime.get(runtime.death(handle), LONG)


# Handles.


def test_a_handle_can_be_passed_to_tasks():
    actor = counter()
    call = runtime.remote(bodies.call_add)
    assert sorted(runtime.get([call.remote(actor, 1) for _ in range(10)], LONG)) == [*range(1, 11)]


def test_a_handle_can_be_passed_to_actors_and_back():
    first, second = counter(), counter()
    assert runtime.get(second.add_to.remote(first, 5), LONG) == 5
    runtime.get(second.keep.remote(first), LONG)
    (back,) = runtime.get(second.get_kept.remote(), LONG)
    assert back == first
    assert runtime.get(back.add.remote(1), LONG) == 6


def test_a_task_can_start_an_actor_that_outlives_it():
    actor = runtime.get(runtime.remote(bodies.starts_counter).remote(), LONG)
    assert runtime.get([actor.add.remote() for _ in range(3)], LONG) == [1, 2, 3]


def test_arguments_of_actors_may_be_references():
    actor = counter()
    large = runtime.put(np.ones(50_000))
    assert runtime.get(actor.keep.remote(runtime.remote(bodies.add).remote(1)), LONG) == 1
    assert runtime.get(actor.keep.remote(large), LONG) == 2
    assert runtime.get(actor.keep.remote([large]), LONG) == 3
    one, array, (ref,) = runtime.get(actor.get_kept.remote(), LONG)
    assert one == 1
    assert array.sum() == runtime.get(ref, LONG).sum() == 50_000


def test_a_reference_that_an_actor_keeps_stays_alive():
    actor = counter()
    runtime.get(actor.keep.remote([runtime.put(np.ones(50_000))]), LONG)
    ((ref,),) = runtime.get(actor.get_kept.remote(), LONG)
    assert runtime.get(ref, LONG).sum() == 50_000


def test_calls_of_one_caller_run_in_order_also_when_one_waits_for_its_argument(tmp_path):
    actor = counter()
    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", 10)
    calls = [actor.add.remote(), actor.add.remote(late), actor.add.remote()]
    assert runtime.get(calls[0], LONG) == 1
    assert runtime.get(runtime.remote(bodies.call_add).remote(actor, 100), LONG) == 101
    (tmp_path / "go").touch()
    assert runtime.get(calls[1:], LONG) == [111, 112]


def test_a_call_whose_argument_failed_is_left_out_and_the_next_is_run():
    actor = counter()
    bad = runtime.remote(bodies.raises).remote(KeyError, "no")
    calls = [actor.add.remote(), actor.add.remote(bad), actor.add.remote()]
    with pytest.raises(KeyError):
        runtime.get(calls[1], LONG)
    assert runtime.get([calls[0], calls[2]], LONG) == [1, 2]


def test_methods_give_several_results_and_items():
    actor = counter()
    runtime.get(actor.add.remote(3), LONG)
    assert runtime.get(actor.pair.options(num_returns=2).remote(), LONG) == [3, -3]
    assert [runtime.get(item, LONG) for item in actor.numbers.remote(4)] == [0, 1, 2, 3]
    streamed = actor.pair.options(num_returns="streaming").remote()
    assert [runtime.get(item, LONG) for item in streamed] == [3, -3]


def test_an_item_of_a_method_can_be_read_while_it_still_runs(tmp_path):
    items = counter().numbers.remote(3, tmp_path / "go")
    assert runtime.get(next(items), LONG) == 0
    (tmp_path / "go").touch()
    assert [runtime.get(item, LONG) for item in items] == [1, 2]


# Names.


def test_an_actor_is_found_by_its_name_everywhere():
    actor = counter(name="found")
    assert runtime.get(runtime.get_actor("found").add.remote(2), LONG) == 2
    assert runtime.get(runtime.remote(bodies.named_add).remote("found", 3), LONG) == 5
    assert runtime.get_actor("found") == actor


def test_a_name_that_nobody_has_says_which_there_are():
    actor = counter(name="somebody")
    runtime.get(actor.add.remote(), LONG)
    with pytest.raises(ValueError, match=r"'nobody'.*somebody"):
        runtime.get_actor("nobody")


def test_a_name_that_is_taken_is_refused_and_free_after_the_actors_end():
    actor = counter(name="one")
    runtime.get(actor.add.remote(), LONG)
    with pytest.raises(ValueError, match="'one'"):
        counter(name="one")
    runtime.kill(actor)
    assert runtime.get(counter(name="one").add.remote(), LONG) == 1


# Several calls at once.


def test_methods_run_in_as_many_threads_as_asked_for():
    actor = runtime.remote(bodies.Meets).options(max_concurrency=3).remote(3)
    threads = runtime.get([actor.meet.remote() for _ in range(3)], LONG)
    assert len(set(threads)) == 3


def test_async_methods_take_turns():
    actor = runtime.remote(bodies.Async).remote()
    waiting = [actor.wait.remote(i) for i in range(50)]
    bodies.until(lambda: runtime.get(actor.plain.remote(), LONG) == 50)
    assert runtime.get(actor.open.remote(), LONG) == 50
    assert runtime.get(waiting, LONG) == list(range(50))


def test_async_methods_at_once_are_limited_by_max_concurrency():
    actor = runtime.remote(bodies.Async).options(max_concurrency=3).remote()
    waiting = [actor.wait.remote(i) for i in range(2)]
    assert runtime.get(actor.open.remote(), LONG) <= 2
    assert runtime.get(waiting, LONG) == [0, 1]


def test_async_generators_errors_and_context():
    actor = runtime.remote(bodies.Async).remote()
    assert [runtime.get(item, LONG) for item in actor.numbers.remote(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="async"):
        runtime.get(actor.raises.remote(), LONG)
    refs = [actor.where.remote() for _ in range(5)]
    assert runtime.get(refs, LONG) == [ref.id[:16] for ref in refs]


def test_an_async_actor_can_wait_for_results_in_a_thread(tmp_path):
    actor = runtime.remote(bodies.Async).remote()
    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", 8)
    waiting = actor.wait_for_ref.remote([late])
    assert runtime.get(actor.plain.remote(), LONG) == 0
    (tmp_path / "go").touch()
    assert runtime.get(waiting, LONG) == 8


def test_a_reference_can_be_awaited_in_async_methods():
    class Awaits:
        async def plus_one(self, refs):
            return await refs[0] + 1

        async def fails(self, refs):
            return await refs[0]

    actor = runtime.remote(Awaits).remote()
    assert runtime.get(actor.plus_one.remote([runtime.remote(bodies.add).remote(2)]), LONG) == 3
    with pytest.raises(KeyError):
        runtime.get(actor.fails.remote([runtime.remote(bodies.raises).remote(KeyError)]), LONG)


# The end.


def test_an_actor_ends_when_its_last_handle_is_gone_and_has_answered_then():
    actor = counter()
    pid, death = runtime.process_id(actor), runtime.death(actor)
    ref = actor.add.remote()
    del actor
    assert runtime.get(ref, LONG) == 1
    assert "nobody had a handle" in str(runtime.get(death, LONG))
    assert pid is None or pid


def test_an_actor_lives_as_long_as_a_call_or_a_value_has_its_handle(tmp_path):
    actor = counter()
    death = runtime.death(actor)

    def uses_late(actor):
        bodies.wait_for_file(tmp_path / "go")
        return runtime.get(actor.add.remote())

    value, call = runtime.put({"actor": actor}), runtime.remote(uses_late).remote(actor)
    del actor
    assert runtime.wait([death], 1, 0.1) == ([], [death])
    (tmp_path / "go").touch()
    assert runtime.get(call, LONG) == 1
    actor = runtime.get(value, LONG)["actor"]
    assert runtime.get(actor.add.remote(), LONG) == 2
    del actor
    assert runtime.wait([death], 1, 0.1) == ([], [death])
    del value
    assert "nobody had a handle" in str(runtime.get(death, LONG))


def test_a_named_actor_ends_with_its_last_handle_too():
    actor = counter(name="brief")
    death = runtime.death(actor)
    del actor
    runtime.get(death, LONG)
    with pytest.raises(ValueError, match="'brief'"):
        runtime.get_actor("brief")


def test_the_name_of_an_actor_is_free_as_soon_as_its_last_handle_is_dropped():
    for _ in range(5):
        actor = counter(name="again")
        assert runtime.get(actor.add.remote(), LONG) == 1
        del actor


def test_an_actor_that_is_found_by_its_name_in_time_does_not_end(tmp_path):
    actor = counter(name="found")
    slow = actor.add_slowly.remote(1, tmp_path / "began", tmp_path / "go")
    bodies.pid_in(tmp_path / "began")
    del actor
    driver = session.driver()
    bodies.until(
        lambda: driver.actors.names["default", "found"].unreferenced, "the drop of its handle"
    )
    found = runtime.get_actor("found")
    (tmp_path / "go").touch()
    assert runtime.get(slow, LONG) == 1
    assert runtime.get([found.add.remote() for _ in range(3)], LONG) == [2, 3, 4]


def test_two_actors_that_have_each_others_handle_live_until_they_are_killed():
    first, second = counter(), counter()
    runtime.get([first.keep.remote(second), second.keep.remote(first)], LONG)
    deaths = [runtime.death(first), runtime.death(second)]
    assert runtime.get(first.add_to.remote(second, 1), LONG) == 1
    runtime.kill([first])
    del first, second
    runtime.get(deaths, LONG)


def test_an_actor_that_has_its_own_handle_can_be_killed():
    actor = counter()
    runtime.get(actor.keep.remote(actor), LONG)
    runtime.kill(actor)
    assert "it was killed" in str(gone(actor))


def test_calls_of_a_dead_actor_fail_at_once_with_the_cause():
    actor = counter(name="dying")
    first = actor.die.remote()
    for _ in range(2):
        with pytest.raises(runtime.ActorDiedError, match=r"dying .*SIGKILL"):
            runtime.get(first, LONG)
        first = actor.add.remote()
    with pytest.raises(runtime.ActorDiedError, match="SIGKILL"):
        runtime.get(runtime.remote(bodies.call_add).remote(actor, 1), LONG)


def test_a_task_can_kill_an_actor():
    def kills(actor):
        runtime.kill(actor, reason="a task said so")

    actor = counter()
    runtime.get(actor.add.remote(), LONG)
    runtime.get(runtime.remote(kills).remote(actor), LONG)
    assert "a task said so" in str(gone(actor))


def test_an_actor_knows_who_it_is():
    actor = counter(name="who")
    id, name, *rest = runtime.get(actor.where.remote(), LONG)
    assert (id, name, rest) == (actor._id, "who", [0, 0, False])


@pytest.mark.parametrize(("code", "found"), [(0, 0), (3, 3), (None, 0)])
def test_an_actor_with_threads_can_leave_and_cuts_its_other_calls_off(tmp_path, code, found):
    actor = runtime.remote(bodies.Leaves).options(max_concurrency=2).remote()
    others = [actor.wait.remote(tmp_path / "other")]
    bodies.pid_in(tmp_path / "other")
    for ref in (actor.leave.remote(code), *others, actor.leave.remote(code)):
        with pytest.raises(runtime.ActorDiedError) as caught:
            runtime.get(ref, LONG)
        assert caught.value.exit_code == found


def test_an_async_actor_can_leave():
    actor = runtime.remote(bodies.Async).remote()
    for ref in (actor.leave.remote(4), actor.plain.remote()):
        with pytest.raises(runtime.ActorDiedError) as caught:
            runtime.get(ref, LONG)
        assert caught.value.exit_code == 4


def test_an_async_actor_that_is_to_run_one_call_at_a_time_does():
    actor = runtime.remote(bodies.Turns).options(max_concurrency=1).remote()
    runtime.get([actor.turn.remote() for _ in range(3)], LONG)
    assert runtime.get(actor.history.remote(), LONG) == ["begin", "end"] * 3


def test_an_attribute_does_not_hide_a_method_of_its_name():
    actor = runtime.remote(bodies.Shadowed).remote()
    calls = [actor.value.remote(), actor.twice.remote(4), actor.kind.remote()]
    assert runtime.get(calls, LONG) == [3, 8, "Shadowed"]


@pytest.mark.parametrize("cls", [bodies.AtOnce, bodies.Async])
def test_where_calls_run_at_once_one_that_waits_for_its_argument_holds_up_no_other(tmp_path, cls):
    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go", 1)
    actor = runtime.remote(cls).options(max_concurrency=2).remote()
    first, second = actor.echo.remote(late), actor.echo.remote(2)
    assert runtime.get(second, LONG) == 2
    failing = actor.echo.remote(runtime.remote(bodies.raises).remote(KeyError, "x"))
    with pytest.raises(KeyError):
        runtime.get(failing, LONG)
    (tmp_path / "go").touch()
    assert runtime.get(first, LONG) == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda cls, actor: actor.two.remote(), "'a'.*takes"),
        (lambda cls, actor: actor.two.remote(1, 2, 3), "too many"),
        (lambda cls, actor: actor.two.remote(1, c=3), "'c'"),
        (lambda cls, actor: actor.named.remote(1), "too many"),
        (lambda cls, actor: actor.named.remote(), "'a'"),
        (lambda cls, actor: actor.static.remote(), "'a'"),
        (lambda cls, actor: cls.remote(), r"Arguments: .*'first'.*\(first, second=\.\.\.\)"),
        (lambda cls, actor: cls.remote(1, third=3), "'third'"),
        (lambda cls, actor: runtime.remote(bodies.echo).remote(1, 2), "echo: too many"),
    ],
)
def test_wrong_arguments_are_told_at_the_call_and_start_nothing(call, text):
    cls = runtime.remote(bodies.Arguments)
    actor = cls.remote(1)
    calls = [actor.two.remote(1, b=2), actor.named.remote(a=3), actor.static.remote(4)]
    assert runtime.get([*calls, actor.anything.remote(1, 2, x=3)], LONG) == [3, 3, 4, 3]
    before = {state.actor_id for state in list_actors()}
    with pytest.raises(TypeError, match=text):
        call(cls, actor)
    assert {state.actor_id for state in list_actors()} <= before


def test_a_remote_class_that_no_module_has_is_started_in_a_task():
    class Local:
        def one(self):
            return 1

    cls = runtime.remote(Local)
    assert runtime.get(runtime.remote(lambda: runtime.get(cls.remote().one.remote())).remote()) == 1
