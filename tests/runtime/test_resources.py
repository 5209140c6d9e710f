"""What calls and actors hold while they run, and what nobody has."""

from datetime import timedelta

import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.driver import shortages
from runtime_engines import begin, end

LONG = timedelta(seconds=30)


@pytest.fixture(scope="module")
def machine():
    begin(num_cpus=2, num_gpus=1, resources={"arm": 1}, object_store_bytes=80 << 20)
    yield
    end()


def task(function, **options):
    return runtime.remote(function).options(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_cpus": 3}, "CPU"),
        ({"num_gpus": 1.5}, "GPU"),
        ({"resources": {"arm": 2}}, "arm"),
        ({"resources": {"leg": 1}}, "leg"),
        ({"device": 4}, "4"),
    ],
)
def test_what_no_device_has_is_refused_in_words(machine, options, text):
    with pytest.raises(runtime.OutOfResources, match=text):
        runtime.get(task(bodies.add, **options).remote(1), LONG)
    actor = runtime.remote(bodies.Counter).options(**options).remote()
    with pytest.raises(runtime.ActorDiedError, match=text) as caught:
        runtime.get(actor.add.remote(), LONG)
    assert isinstance(caught.value.cause, runtime.OutOfResources)


@pytest.mark.parametrize("options", [{"num_gpus": 0.5}, {"resources": {"arm": 0.5}}])
def test_two_halves_run_together_and_a_third_waits(machine, options, tmp_path):
    options = {"num_cpus": 0.1, **options}
    go = [tmp_path / f"go{i}" for i in range(3)]
    began = [tmp_path / f"began{i}" for i in range(3)]

    def runs(i):
        bodies.mark(began[i])
        bodies.wait_for_file(go[i])

    refs = [task(runs, **options).remote(i) for i in range(3)]
    bodies.until(lambda: bodies.marks(began[0]) and bodies.marks(began[1]))
    assert not bodies.marks(began[2])
    go[0].touch()
    bodies.until(lambda: bodies.marks(began[2]))
    for path in go:
        path.touch()
    runtime.get(refs, LONG)


def test_no_more_tasks_run_at_once_than_there_are_cpus(machine, tmp_path):
    def runs(i):
        bodies.mark(tmp_path / "began")
        bodies.wait_for_file(tmp_path / "go")

    refs = [task(runs).remote(i) for i in range(6)]
    bodies.until(lambda: bodies.marks(tmp_path / "began") == 2)
    assert runtime.wait(refs, 1, 0.2) == ([], refs)
    assert bodies.marks(tmp_path / "began") == 2
    (tmp_path / "go").touch()
    runtime.get(refs, LONG)
    assert bodies.marks(tmp_path / "began") == 6


def test_what_waits_long_for_what_actors_hold_is_told_of(machine, monkeypatch, capfd):
    monkeypatch.setattr(shortages, "LONG_S", 0.0)
    holds = runtime.remote(bodies.Counter).options(num_cpus=2).remote()
    runtime.get(holds.add.remote(), LONG)
    waits = task(bodies.add).remote(1)
    said = []

    def is_told():
        said.append(capfd.readouterr().err)
        return "add waits for {'CPU': 1.0}: 0 of 2 CPU are free, and actors hold" in "".join(said)

    bodies.until(is_told, "a line")
    runtime.kill(holds)
    runtime.get(waits, LONG)
    assert "".join([*said, capfd.readouterr().err]).count("add waits") == 1


def test_an_actor_waits_for_what_it_wants_and_its_calls_with_it(machine):
    def start():
        return runtime.remote(bodies.Counter).options(num_gpus=1).remote()

    first, second = start(), start()
    assert runtime.get(first.add.remote(), LONG) == 1
    waiting = [second.add.remote() for _ in range(3)]
    assert runtime.wait(waiting, 1, 0.1) == ([], waiting)
    runtime.kill(first)
    assert runtime.get(waiting, LONG) == [1, 2, 3]


def test_what_an_actor_held_is_free_when_its_last_handle_is_gone(machine):
    actor = runtime.remote(bodies.Counter).options(resources={"arm": 1}).remote()
    assert runtime.get(actor.add.remote(), LONG) == 1
    ref = task(bodies.add, resources={"arm": 1}).remote(1)
    assert runtime.wait([ref], 1, 0.1) == ([], [ref])
    del actor
    assert runtime.get(ref, LONG) == 1


def test_an_actor_that_waits_can_be_given_up(machine):
    def start():
        return runtime.remote(bodies.Counter).options(num_gpus=1).remote()

    first, second = start(), start()
    ref = second.add.remote()
    runtime.kill(second)
    with pytest.raises(runtime.ActorDiedError):
        runtime.get(ref, LONG)
    runtime.kill(first)
    assert runtime.get(start().add.remote(), LONG) == 1


def test_a_task_without_a_cpu_runs_at_once(machine, tmp_path):
    hogs = [task(bodies.wait_for_file).remote(tmp_path / "go") for _ in range(2)]
    assert runtime.get(task(bodies.add, num_cpus=0).remote(3), LONG) == 3
    (tmp_path / "go").touch()
    runtime.get(hogs, LONG)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_cpus": -1}, "CPU: -1"),
        ({"resources": {"arm": -2}}, "arm: -2"),
        ({"resources": {"CPU": 1}}, "num_cpus"),
        ({"max_retries": -2}, "max_retries=-2"),
        ({"num_returns": 0}, "num_returns=0"),
    ],
)
def test_demands_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        task(bodies.add, **options)


def test_an_unknown_option_names_those_there_are():
    with pytest.raises(TypeError, match=r"'num_cpu'.*num_cpus"):
        task(bodies.add, num_cpu=1)


def test_a_task_runs_on_the_device_it_names(stopped):
    runtime.init(num_cpus=2, devices=2, object_store_bytes=64 << 20)

    def where():
        return runtime.context().device

    for device in (0, 1):
        assert runtime.get(task(where, device=device).remote(), LONG) == device
