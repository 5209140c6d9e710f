"""What there is, what is free, and what each call and actor holds of it."""

import collections
from datetime import timedelta
from types import SimpleNamespace

import pytest

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.driver.gpus import Gpus
from runtime_engines import begin, end

LONG = timedelta(seconds=60)


@pytest.fixture(scope="module")
def _with_gpus():
    begin(num_cpus=4, num_gpus=2, resources={"license": 3})
    yield
    end()


@pytest.fixture
def gpus(_with_gpus):
    """A runtime that says it has two GPUs, which nobody touches."""


def held():
    here = runtime.get_runtime_context()
    return here.get_assigned_resources(), runtime.get_gpu_ids()


def held_until(began, go):
    bodies.mark(began)
    bodies.wait_for_file(go)
    return runtime.get_gpu_ids()


class Holds:
    def held(self):
        return held()

    def about(self):
        here = runtime.get_runtime_context()
        return (
            here.get_task_id(), here.get_actor_id(), here.get_actor_name(), here.namespace,
            here.was_current_actor_reconstructed, here.get_accelerator_ids(),
        )  # fmt: skip


def start(**options):
    return runtime.remote(Holds).options(**options).remote()


def crash(actor):
    runtime.kill(actor, no_restart=False)
    bodies.until(lambda: runtime.deaths(actor), "its death")


def test_all_that_there_is(gpus):
    everything = {"CPU": 4.0, "GPU": 2.0, "license": 3.0}
    assert runtime.cluster_resources() == everything
    assert runtime.get(runtime.remote(runtime.cluster_resources).remote(), LONG) == everything


def test_what_is_free_while_others_hold_some(gpus, tmp_path):
    wanted = {"num_cpus": 3, "num_gpus": 0.5, "resources": {"license": 3}}
    call = runtime.remote(held_until).options(**wanted).remote(tmp_path / "began", tmp_path / "go")
    bodies.pid_in(tmp_path / "began")
    assert runtime.available_resources() == {"CPU": 1.0, "GPU": 1.5}
    (tmp_path / "go").touch()
    runtime.get(call, LONG)
    bodies.until(lambda: runtime.available_resources() == runtime.cluster_resources(), "the rest")


def test_tasks_and_actors_know_what_they_hold(gpus):
    call = runtime.remote(held)
    assert runtime.get(call.remote(), LONG) == ({"CPU": 1.0}, [])
    assert runtime.get(call.options(num_cpus=0).remote(), LONG) == ({}, [])
    wanted = {"num_cpus": 0.5, "resources": {"license": 2}}
    assert runtime.get(call.options(**wanted).remote(), LONG) == ({"CPU": 0.5, "license": 2}, [])
    assert runtime.get(start().held.remote(), LONG) == ({}, [])
    resources, ids = runtime.get(start(num_gpus=1).held.remote(), LONG)
    assert (resources, len(ids)) == ({"GPU": 1}, 1)
    assert held() == ({}, [])


def test_two_that_hold_a_whole_gpu_have_different_ones(gpus, tmp_path):
    call = runtime.remote(held_until).options(num_gpus=1)
    files = [(tmp_path / f"began{i}", tmp_path / "go") for i in range(2)]
    calls = [call.remote(*each) for each in files]
    for began, _ in files:
        bodies.pid_in(began)
    (tmp_path / "go").touch()
    assert sorted(runtime.get(calls, LONG)) == [[0], [1]]
    assert runtime.get(runtime.remote(held).options(num_gpus=2).remote(), LONG)[1] == [0, 1]


def test_a_gpu_is_free_for_others_when_its_actor_is_gone_and_kept_across_a_restart(gpus):
    first, second = (start(num_gpus=1, max_restarts=1) for _ in range(2))
    before = runtime.get([first.held.remote(), second.held.remote()], LONG)
    assert sorted(ids for _, ids in before) == [[0], [1]]
    crash(second)
    assert runtime.get(second.held.remote(), LONG) == before[1]
    runtime.kill(first)
    third = start(num_gpus=1)
    assert runtime.get(third.held.remote(), LONG) == before[0]


def test_parts_of_a_gpu_are_taken_of_one_before_the_next(gpus):
    halves = [start(num_gpus=0.5) for _ in range(4)]
    ids = [runtime.get(half.held.remote(), LONG)[1] for half in halves]
    assert ids in ([[0], [0], [1], [1]], [[1], [1], [0], [0]])  # an actor of before may still end


def test_the_context_under_rays_names(gpus):
    actor = start(name="me", max_restarts=1, num_gpus=1)
    ref = actor.about.remote()
    task_id, *rest = runtime.get(ref, LONG)
    assert task_id == ref.id[:16].hex()
    *rest, assigned = rest
    assert rest == [actor._id.hex(), "me", "default", False]
    assert assigned in ({"GPU": ["0"]}, {"GPU": ["1"]})
    crash(actor)
    assert runtime.get(actor.about.remote(), LONG)[4] is True
    here = runtime.get_runtime_context()
    assert (here.get_task_id(), here.get_actor_id(), here.get_actor_name()) == (None, None, "")


def table(monkeypatch, visible, devices, actors=()):
    """The GPUs of an driver whose actors hold (device, ids, how much)."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    held_by = {
        i: SimpleNamespace(device=device, gpu_ids=ids, dead=False, demand={"GPU": amount})
        for i, (device, ids, amount) in enumerate(actors)
    }
    return Gpus({i: {"GPU": amount} for i, amount in enumerate(devices)}, {}, held_by)


def test_gpus_have_the_names_that_the_environment_gives_them(monkeypatch):
    assert table(monkeypatch, "5,GPU-ab", [2]).choose(0, 2) == (5, "GPU-ab")
    assert table(monkeypatch, "5", [2]).choose(0, 2) == (0, 1)
    assert table(monkeypatch, "", [2]).choose(0, 2) == (0, 1)


def test_devices_that_share_a_gpu_have_parts_of_it(monkeypatch):
    gpus = table(monkeypatch, "", [0.5, 0.5, 0.5])
    assert [gpus.choose(device, 0.5) for device in range(3)] == [(0,), (0,), (1,)]


def test_what_is_in_pieces_is_given_all_the_same(monkeypatch):
    pieces = [(0, (0,), 0.5), (0, (1,), 0.25)]
    gpus = table(monkeypatch, "", [2], pieces)
    assert gpus.choose(0, 1) == (1,)
    assert gpus.choose(0, 0.5) == (0,)
    assert collections.Counter(gpus.choose(0, 1.2)) == {0: 1, 1: 1}


def test_every_device_has_gpus_of_its_own(stopped):
    runtime.init(num_cpus=2, num_gpus=2, devices=2)
    call = runtime.remote(held).options(num_gpus=1)
    ids = [runtime.get(call.options(device=i).remote(), LONG)[1] for i in range(2)]
    assert ids == [[0], [1]]
    assert runtime.cluster_resources() == {"CPU": 2.0, "GPU": 2.0}
