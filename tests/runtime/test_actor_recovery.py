"""Actors whose process dies: rebuilt to what they were, each call answered once and in order."""

import os
import signal
from datetime import timedelta

import numpy as np
import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from killers import lose
from runtime_engines import ON_RAY

LONG = timedelta(seconds=30)

pytestmark = pytest.mark.usefixtures("shared")


def counter(*args, cls=bodies.Counter, **options):
    return runtime.remote(cls).options(**{"max_restarts": -1, **options}).remote(*args)


def kill_dash_nine(actor):
    """Kills its process, and waits until a new one answers."""
    pid = runtime.get(actor.pid.remote(), LONG)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_after_three_increments_and_a_kill_the_fourth_gives_four():
    actor = counter()
    assert runtime.get([actor.add.remote() for _ in range(3)], LONG) == [1, 2, 3]
    pid = kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(), LONG) == 4
    assert runtime.get(actor.pid.remote(), LONG) != pid
    assert runtime.get(actor.where.remote(), LONG)[2] == 1
    assert len(runtime.deaths(actor)) == 1


def test_it_can_happen_again_and_again():
    actor = counter()
    for i in range(1, 5):
        assert runtime.get(actor.add.remote(), LONG) == i
        kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(), LONG) == 5


def test_pipelined_calls_across_kills_are_answered_once_and_in_order():
    actor = counter()
    refs, pids = [], set()
    for _ in range(4):
        refs += [actor.add.remote() for _ in range(100)]
        pids.add(kill_dash_nine(actor))
        refs += [actor.add.remote() for _ in range(100)]
    assert runtime.get(refs, LONG) == list(range(1, 801))


def test_callers_keep_their_order_across_a_kill():
    def calls(actor, number):
        return runtime.get([actor.add.remote() for _ in range(number)])

    actor = counter()
    runtime.get(actor.add.remote(0), LONG)
    refs = [runtime.remote(calls).remote(actor, 200) for _ in range(2)]
    kill_dash_nine(actor)
    answers = runtime.get(refs, LONG)
    assert all(answer == sorted(answer) for answer in answers)
    assert sorted(answers[0] + answers[1]) == list(range(1, 401))


def test_the_method_in_flight_is_run_again_on_the_state_before_it(tmp_path):
    actor = counter()
    runtime.get(actor.add.remote(5), LONG)
    ref = actor.add_slowly.remote(1, tmp_path / "began", tmp_path / "go")
    after = actor.add.remote(10)
    os.kill(bodies.pid_in(tmp_path / "began"), signal.SIGKILL)
    bodies.until(lambda: bodies.marks(tmp_path / "began") == 2)
    (tmp_path / "go").touch()
    assert runtime.get([ref, after], LONG) == [6, 16]


def test_with_checkpoints_only_the_calls_after_the_last_are_run_again(tmp_path):
    actor = counter(tmp_path / "n", cls=bodies.Saves, checkpoint_every=10)
    assert runtime.get([actor.add.remote() for _ in range(24)], LONG)[-1] == 24
    kill_dash_nine(actor)  # asks for the pid: the 25th call
    assert runtime.get(actor.add.remote(), LONG) == 25
    assert bodies.marks(tmp_path / "n") == 24 + 4 + 1


def test_a_large_checkpoint_lies_in_the_object_store():
    actor = counter(None, 50_000, cls=bodies.Saves, checkpoint_every=2)
    runtime.get([actor.add.remote() for _ in range(5)], LONG)
    kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(), LONG) == 6
    assert runtime.get(actor.first.remote(), LONG) == 6


def test_a_checkpoint_keeps_alive_what_it_refers_to():
    actor, other = counter(cls=bodies.Saves, checkpoint_every=1), counter()
    runtime.get(actor.keep.remote([runtime.put(np.ones(50_000)), other]), LONG)
    del other
    runtime.get(actor.add.remote(), LONG)
    kill_dash_nine(actor)
    ((ref, other),) = runtime.get(actor.get_kept.remote(), LONG)
    assert runtime.get(ref, LONG).sum() == 50_000
    assert runtime.get(other.add.remote(), LONG) == 1


def test_checkpoints_need_their_two_methods():
    with pytest.raises(TypeError, match=r"save\(self\).*restore\(self, state\)"):
        counter(checkpoint_every=1)


def test_what_a_method_called_is_not_called_again_when_it_is_replayed(tmp_path):
    actor = counter()
    assert runtime.get([actor.submit.remote(tmp_path / "n") for _ in range(3)], LONG)[-1] == 30
    kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(0), LONG) == 30
    assert bodies.marks(tmp_path / "n") == 3


def test_the_actors_a_replayed_method_started_are_the_ones_there_are(tmp_path):
    actor = counter()
    runtime.get(actor.start_child.remote(tmp_path / "n"), LONG)
    assert runtime.get([actor.add_to_child.remote(5) for _ in range(3)], LONG) == [5, 10, 15]
    kill_dash_nine(actor)
    assert runtime.get(actor.add_to_child.remote(1), LONG) == 16
    assert bodies.marks(tmp_path / "n") == 4


def test_what_init_started_and_called_is_known_again_and_goes_with_the_actor(tmp_path):
    actor = counter(tmp_path / "n", cls=bodies.Parent, name="parent")
    assert runtime.get(actor.about.remote(), LONG) == ("parent", 1, 1)
    child = runtime.get(actor.child_pid.remote(), LONG)
    os.kill(runtime.process_id(actor), signal.SIGKILL)
    assert runtime.get(actor.about.remote(), LONG) == ("parent", 1, 1)
    assert runtime.get(actor.child_pid.remote(), LONG) == child
    runtime.kill(actor)
    bodies.until(lambda: not os.path.exists(f"/proc/{child}"), "the end of the child")


def test_a_call_one_of_whose_results_was_dropped_is_not_made_again():
    actor, other = counter(), counter(max_restarts=0)
    for _ in range(3):
        runtime.get(actor.use_one_of_pair.remote(other), LONG)
    kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(0), LONG) == 1 + 2 + 3
    assert runtime.get(other.add.remote(0), LONG) == 3


def test_calls_that_went_to_the_dead_process_come_before_later_ones(shared):
    """The race is made by hand: the process is over, and the runtime has not noticed yet."""
    actor = counter()
    runtime.get(actor.add.remote(0), LONG)
    found = shared.actors.table[actor._id]
    noticed, killed = shared.spawner.gone, found.process
    refs = []

    def gone(process):
        if process is killed:
            refs.append(actor.keep.remote("first"))
        noticed(process)
        if process is killed:
            refs.append(actor.keep.remote("second"))

    shared.spawner.gone = gone
    try:
        os.kill(killed.pid, signal.SIGKILL)
        bodies.until(lambda: len(refs) == 2, "its end")
    finally:
        del shared.spawner.gone
    assert runtime.get(refs, LONG) == [1, 2]
    assert runtime.get(actor.get_kept.remote(), LONG) == ["first", "second"]


def test_arguments_of_replayed_calls_are_still_there():
    actor = counter()
    runtime.get(actor.keep.remote(runtime.put(np.ones(50_000))), LONG)
    runtime.get(actor.keep.remote(np.full(50_000, 2.0)), LONG)
    runtime.get(actor.keep.remote([runtime.put(3)]), LONG)
    kill_dash_nine(actor)
    ones, twos, (ref,) = runtime.get(actor.get_kept.remote(), LONG)
    assert (ones.sum(), twos.sum()) == (50_000, 100_000)
    assert runtime.get(ref, LONG) == 3


def test_what_raised_is_replayed_too():
    actor = counter()
    with pytest.raises(ValueError, match="count is 1"):
        runtime.get(actor.raises.remote(), LONG)
    kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(), LONG) == 2


def test_a_large_answer_is_there_after_the_crash_and_a_lost_one_is_not():
    actor = counter()
    runtime.get(actor.add.remote(7), LONG)
    ref = actor.array.remote(50_000)
    runtime.wait([ref], 1, LONG)
    kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(), LONG) == 8
    assert runtime.get(ref, LONG)[0] == 7


def test_a_lost_answer_of_a_method_says_why_it_cannot_be_made_again():
    actor = counter()
    ref = actor.array.remote(50_000)
    runtime.wait([ref], 1, LONG)
    lose(ref)
    with pytest.raises(runtime.ObjectLostError, match="actor"):
        runtime.get(ref, LONG)
    assert runtime.get(actor.add.remote(), LONG) == 1


def test_items_of_a_generator_come_once_across_a_kill(tmp_path):
    actor = counter()
    runtime.get(actor.add.remote(), LONG)
    items = actor.numbers.remote(4, tmp_path / "go")
    assert runtime.get(next(items), LONG) == 0
    os.kill(runtime.process_id(actor), signal.SIGKILL)
    (tmp_path / "go").touch()
    assert [runtime.get(item, LONG) for item in items] == [1, 2, 3]


def test_when_the_restarts_are_used_up_it_is_dead():
    actor = counter(max_restarts=1)
    runtime.get(actor.add.remote(), LONG)
    kill_dash_nine(actor)
    assert runtime.get(actor.add.remote(), LONG) == 2
    kill_dash_nine(actor)
    with pytest.raises(runtime.ActorDiedError, match="SIGKILL"):
        runtime.get(actor.add.remote(), LONG)
    assert [death.signal for death in runtime.deaths(actor)] == [signal.SIGKILL]


def test_a_method_that_always_kills_it_uses_the_restarts_up():
    actor = counter(max_restarts=2)
    with pytest.raises(runtime.ActorDiedError, match="SIGKILL"):
        runtime.get(actor.die.remote(), LONG)
    assert len(runtime.deaths(actor)) == 2


def test_kill_ends_it_for_good_unless_told_otherwise():
    actor = counter()
    runtime.get(actor.add.remote(), LONG)
    runtime.kill(actor, no_restart=False)
    assert runtime.get(actor.add.remote(), LONG) == 2
    runtime.kill(actor)
    with pytest.raises(runtime.ActorDiedError, match="killed by kill"):
        runtime.get(actor.add.remote(), LONG)


def test_an_actor_that_leaves_of_its_own_accord_stays_away():
    class Leaves:
        def leave(self):
            raise SystemExit(0)

    actor = counter(cls=Leaves)
    with pytest.raises(runtime.ActorDiedError):
        runtime.get(actor.leave.remote(), LONG)
    assert runtime.deaths(actor) == []


def test_threads_and_async_methods_come_back_without_their_state():
    actor = counter(3, cls=bodies.Meets, max_concurrency=3)
    runtime.get([actor.meet.remote() for _ in range(3)], LONG)
    os.kill(runtime.process_id(actor), signal.SIGKILL)
    threads = runtime.get([actor.meet.remote() for _ in range(3)], LONG)
    assert len(set(threads)) == 3


def test_async_methods_go_on_from_the_last_checkpoint_and_are_not_run_again():
    class Adds:
        def __init__(self):
            self.count = 0

        async def add(self):
            self.count += 1
            return self.count

        def save(self):
            return self.count

        def restore(self, count):
            self.count = count

    for options, answer in (({}, 1), ({"checkpoint_every": 2}, 5)):
        actor = counter(cls=Adds, **options)
        assert [runtime.get(actor.add.remote(), LONG) for _ in range(5)] == [1, 2, 3, 4, 5]
        runtime.kill(actor, no_restart=False)
        bodies.until(lambda: runtime.deaths(actor), "its end")  # noqa: B023
        assert runtime.get(actor.add.remote(), LONG) == answer


def test_a_restarted_actor_keeps_its_name_and_its_handles(tmp_path):
    actor = counter(name="stays")
    runtime.get(actor.add.remote(), LONG)
    kill_dash_nine(actor)
    assert runtime.get(runtime.get_actor("stays").add.remote(), LONG) == 2
    assert runtime.get(runtime.remote(bodies.call_add).remote(actor, 1), LONG) == 3


def test_a_call_of_which_the_actor_dies_can_fail_alone(tmp_path):
    actor = counter(tmp_path / "n", cls=bodies.Poisoned, max_restarts=2, max_task_retries=0)
    calls = [actor.add.remote(i == 3) for i in range(6)]
    assert runtime.get(calls[:3], LONG) == [1, 2, 3]
    death = "" if ON_RAY else "SIGKILL: .*"
    with pytest.raises(runtime.ActorDiedError, match=death + r"max_task_retries=0.*goes on"):
        runtime.get(calls[3], LONG)
    answers = runtime.get(calls[4:], LONG)
    assert (sorted(answers) if ON_RAY else answers) == [4, 5]  # Ray may send them in another order
    assert bodies.marks(tmp_path / "n") == len(runtime.deaths(actor)) == 1


@pytest.mark.parametrize("by_method", [True, False])
def test_a_call_of_which_the_actor_dies_is_run_again_as_often_as_is_said(tmp_path, by_method):
    actor = counter(tmp_path / "n", cls=bodies.Poisoned, max_restarts=5)
    if by_method:
        poisonous = actor.twice.remote()
    else:
        poisonous = actor.add.options(max_task_retries=1).remote(True)
    with pytest.raises(runtime.ActorDiedError, match="max_task_retries=1"):
        runtime.get(poisonous, LONG)
    assert runtime.get(actor.add.remote(), LONG) == 1
    assert bodies.marks(tmp_path / "n") == 2


class Waits:
    """Waits for gates, and writes down what it has seen."""

    def __init__(self):
        self.seen = []

    def wait(self, path, gate, then_die=False):
        bodies.mark(path)
        bodies.until(gate.exists, "the gate")
        if then_die:
            bodies.kill_self()

    def see(self, what, _=None):
        self.seen.append(what)
        return self.seen


class WaitsInGroups(Waits):
    @runtime.method(concurrency_group="io")
    def io(self, path, gate):
        self.wait(path, gate)


def test_what_waits_for_a_call_that_is_given_up_lets_nothing_overtake(tmp_path):
    actor = counter(cls=Waits, max_task_retries=0)
    gate = tmp_path / "gate"
    poisonous = actor.wait.remote(tmp_path / "n", gate, True)
    first, second = actor.see.remote(1), actor.see.remote(2, poisonous)
    third = actor.see.remote(3)
    gate.touch()
    with pytest.raises(runtime.ActorDiedError, match="goes on without this call"):
        runtime.get(second, LONG)
    assert runtime.get([first, third], LONG) == [[1], [1, 3]]


def test_only_calls_that_were_running_in_their_group_are_given_up(tmp_path):
    actor = counter(cls=WaitsInGroups, max_task_retries=0, concurrency_groups={"io": 1})
    gate = tmp_path / "gate"
    running = [actor.wait.remote(tmp_path / "first", gate)]
    behind = actor.wait.remote(tmp_path / "behind", gate)
    running.append(actor.io.remote(tmp_path / "io", gate))
    bodies.pid_in(tmp_path / "first")
    os.kill(bodies.pid_in(tmp_path / "io"), signal.SIGKILL)
    for call in running:
        with pytest.raises(runtime.ActorDiedError, match="goes on without this call"):
            runtime.get(call, LONG)
    gate.touch()
    assert runtime.get(behind, LONG) is None
    assert [bodies.marks(tmp_path / name) for name in ("first", "io", "behind")] == [1, 1, 1]


def test_a_method_that_was_cancelled_is_not_run_again_after_a_crash(tmp_path):
    class Dies(bodies.Counter):
        def wait(self, path):
            bodies.mark(path)
            try:
                bodies.wait_for_file(path.with_name("never"))
            finally:  # it is cancelled
                bodies.kill_self()

    actor = counter(cls=Dies)
    call, after = actor.wait.remote(tmp_path / "n"), actor.add.remote()
    bodies.pid_in(tmp_path / "n")
    runtime.cancel(call)
    with pytest.raises(runtime.TaskCancelledError):
        runtime.get(call, LONG)
    assert runtime.get(after, LONG) == 1
    assert bodies.marks(tmp_path / "n") == 1


def test_a_call_that_waits_to_be_sent_again_can_be_cancelled(shared, tmp_path, monkeypatch):
    actor = counter()
    array = runtime.put(np.ones(50_000))
    call = actor.add_slowly.remote(array, tmp_path / "began", tmp_path / "go")
    pid = bodies.pid_in(tmp_path / "began")
    with monkeypatch.context() as held:
        held.setattr(shared.dispatch, "_pin", lambda *_: None)  # as if it came from disk
        os.kill(pid, signal.SIGKILL)
        bodies.until(lambda: shared.actors.table[actor._id].restarts, "a new process")
        runtime.cancel(call)
        with pytest.raises(runtime.TaskCancelledError):
            runtime.get(call, LONG)
    assert runtime.get(actor.add.remote(), LONG) == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_an_actor_whose_state_cannot_be_restored_says_why(shared, is_first):
    """What it was built from, or what a call that is run again was given, is lost."""
    array = runtime.put(np.zeros(50_000))
    actor = counter(*[array] * is_first)
    assert runtime.get(actor.keep.remote(None if is_first else array), LONG) == 1
    lose(array)
    os.kill(runtime.process_id(actor), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(runtime.ActorDiedError, match=r"could not be built, .* is lost: a test"):
            runtime.get(actor.add.remote(), LONG)
