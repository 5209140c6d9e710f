"""Actors found by a name: again if it exists, in namespaces, and in lists."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.util import list_named_actors
from gmi_drl.runtime.util.state import list_actors

LONG = timedelta(seconds=60)


def counter(*args, **options):
    return runtime.remote(bodies.Counter).options(**options).remote(*args)


def state_of(handle):
    (found,) = list_actors([("actor_id", "=", handle._id.hex())])
    return found


def test_get_if_exists_gives_the_actor_that_has_the_name(shared):
    first = counter(name="one", get_if_exists=True)
    assert runtime.get(first.add.remote(), LONG) == 1
    again = counter(name="one", get_if_exists=True)
    assert again == first
    assert runtime.get(again.add.remote(), LONG) == 2
    runtime.kill(first)
    assert runtime.get(counter(name="one", get_if_exists=True).add.remote(), LONG) == 1


def test_of_many_who_get_or_start_it_at_once_one_starts_it(shared):
    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(lambda _: counter(name="one", get_if_exists=True), range(16)))
    assert len(set(handles)) == 1
    assert sorted(runtime.get([each.add.remote() for each in handles], LONG)) == [*range(1, 17)]


class Uses:
    """Calls an actor that it gets or starts, and drops the handle at once."""

    def use(self):
        for _ in range(15):
            actor = counter(name="one", get_if_exists=True)
            assert runtime.get(actor.add.remote(), LONG) >= 1
            del actor


def test_an_actor_found_by_its_name_does_not_end_before_it_is_called(shared):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Uses().use(), range(4)))
    user = runtime.remote(Uses).options(max_concurrency=4).remote()
    runtime.get([user.use.remote() for _ in range(4)], LONG)


def test_tasks_find_or_start_the_same_actor(shared):
    def add():
        actor = runtime.remote(bodies.Counter).options(name="both", get_if_exists=True).remote()
        return runtime.get(actor.add.remote())

    held = counter(name="both")
    call = runtime.remote(add)
    assert sorted(runtime.get([call.remote() for _ in range(4)], LONG)) == [1, 2, 3, 4]
    assert runtime.get(held.add.remote(0), LONG) == 4


def test_an_actor_rebuilt_after_it_found_one_by_name_calls_nothing_anew(shared, tmp_path):
    class Finds:
        def find(self, path):
            same = runtime.remote(bodies.Counter).options(name="same", get_if_exists=True)
            self.other = same.remote(path)
            return runtime.get(self.other.add.remote())

        def again(self):
            return runtime.get(self.other.add.remote())

    finder = runtime.remote(Finds).options(max_restarts=1).remote()
    assert runtime.get(finder.find.remote(tmp_path / "marks"), LONG) == 1
    assert runtime.get(finder.again.remote(), LONG) == 2
    runtime.kill(finder, no_restart=False)
    bodies.until(lambda: runtime.deaths(finder), "its death")
    assert runtime.get(finder.again.remote(), LONG) == 3
    assert bodies.marks(tmp_path / "marks") == 3


def test_a_name_is_free_as_soon_as_its_actor_is_to_end(shared):
    for _ in range(5):
        actor = counter(name="brief", get_if_exists=True)
        assert runtime.get(actor.add.remote(), LONG) == 1
        del actor
        bodies.until(lambda: not list_named_actors(), "a free name")


def test_arguments_of_an_actor_whose_name_was_taken_are_not_kept(shared):
    first = counter(name="one")
    for start in (
        counter,
        lambda *args, **options: runtime.get(
            runtime.remote(lambda: bool(counter(bytes(1 << 20), name="one"))).remote(), LONG
        ),
    ):
        with pytest.raises(ValueError, match="get_if_exists"):
            start(bytes(1 << 20), name="one")
    assert runtime.get(first.add.remote(), LONG) == 1  # `shared` sees that nothing is left


def test_a_name_is_one_for_each_namespace(shared):
    mine = counter(name="one")
    other = counter(name="one", namespace="other")
    assert mine != other
    assert runtime.get_actor("one") == mine
    assert runtime.get_actor("one", "other") == other
    with pytest.raises(ValueError, match=r"'two' in namespace 'other'. There are: one"):
        runtime.get_actor("two", "other")


def test_named_actors_are_listed_by_namespace(shared):
    held = [counter(name="b"), counter(name="a"), counter(name="c", namespace="other"), counter()]
    assert list_named_actors() == ["a", "b"]
    assert list_named_actors(all_namespaces=True) == [
        {"namespace": "default", "name": "a"},
        {"namespace": "default", "name": "b"},
        {"namespace": "other", "name": "c"},
    ]
    assert runtime.get(runtime.remote(list_named_actors).remote(), LONG) == ["a", "b"]
    assert held


def test_actors_are_listed_with_their_states(shared, tmp_path):
    late = runtime.remote(bodies.wait_for_file).remote(tmp_path / "go")
    named, waiting = counter(name="named", max_restarts=1), counter(late)
    runtime.get(named.add.remote(), LONG)
    about = state_of(named)
    assert (about.class_name, about.state, about.name) == ("Counter", "ALIVE", "named")
    assert (about.namespace, about.num_restarts) == ("default", 0)
    assert about.pid == runtime.process_id(named)
    assert state_of(waiting).state == "DEPENDENCIES_UNREADY"
    (tmp_path / "go").touch()
    runtime.get(waiting.pid.remote(), LONG)
    assert state_of(waiting).state == "ALIVE"
    runtime.kill(waiting, reason="it was of no use")
    bodies.until(lambda: state_of(waiting).state == "DEAD", "its end")
    assert "it was of no use" in state_of(waiting).death_cause
    runtime.kill(named, no_restart=False)
    bodies.until(lambda: state_of(named).num_restarts == 1, "its restart")
    bodies.until(lambda: state_of(named).state == "ALIVE", "its second life")


def test_a_listing_is_filtered_and_limited(shared):
    held = [counter(num_cpus=0.5), counter(), counter()]
    alive = [("state", "!=", "DEAD"), ("class_name", "=", "Counter")]
    assert len(list_actors(alive)) == 3
    assert len(list_actors(alive, limit=2)) == 2
    assert [dict(each.required_resources) for each in list_actors(alive)] == [{"CPU": 0.5}, {}, {}]
    with pytest.raises(ValueError, match="are: actor_id"):
        list_actors([("colour", "=", "red")])
    assert held


@pytest.mark.parametrize("options", [{"get_if_exists": True}, {"namespace": "somewhere"}])
def test_options_that_want_a_name_say_so(options):
    with pytest.raises(ValueError, match="found by its name"):
        runtime.remote(bodies.Counter).options(**options)


def test_the_namespace_of_init_is_that_of_everything_in_the_runtime(stopped):
    runtime.init(num_cpus=1, namespace="mine")
    held = counter(name="one")
    assert runtime.get(runtime.remote(bodies.named_add).remote("one", 2), LONG) == 2
    assert list_named_actors(all_namespaces=True) == [{"namespace": "mine", "name": "one"}]
    with pytest.raises(ValueError, match="no actor"):
        runtime.get_actor("one", "default")
    assert held
