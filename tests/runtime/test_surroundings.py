"""What an actor's process is given before any of the user's code runs."""

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from bodies_runtime import Probe
from gmi_drl import runtime
from gmi_drl.runtime.process import descendants
from runtime_engines import ON_RAY, begin, end, options

LONG = timedelta(seconds=60)
CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def with_torch():
    begin(**({} if ON_RAY else {"preload": ["numpy", "torch", "mujoco"]}))
    yield
    end()


@pytest.fixture
def start(with_torch):
    started = []

    def start_one(**options):
        handle = runtime.remote(Probe).options(**options).remote()
        started.append(handle)
        return handle

    yield start_one
    runtime.kill(started)


def look(actor):
    return runtime.get(actor.surroundings.remote(), LONG)


def test_the_fork_server_has_one_thread_and_has_not_touched_cuda(with_torch):
    ready = runtime.preloaded(LONG)
    assert ready.num_threads == 1
    assert len(os.listdir(f"/proc/{ready.pid}/task")) == 1
    with open(f"/proc/{ready.pid}/maps") as maps:
        assert "libcuda.so" not in maps.read()  # the driver; torch's own libraries do not matter


def test_cores_and_threads(start):
    one = look(start(cores=CORES[:1]))
    assert (one["affinity"], one["threads"], one["omp"]) == (set(CORES[:1]), 1, "1")
    all_of_them = look(start(cores=CORES))
    assert all_of_them["affinity"] == set(CORES)
    assert (all_of_them["threads"], all_of_them["omp"]) == (len(CORES), str(len(CORES)))


def test_more_threads_than_cores_after_the_fork(start):
    more = look(start(cores=CORES[:1], num_threads=3))
    assert (more["affinity"], more["threads"], more["omp"]) == (set(CORES[:1]), 3, "3")


def test_without_cores_an_actor_may_use_them_all_with_one_thread(start):
    seen = look(start())
    assert (seen["affinity"], seen["threads"]) == (set(CORES), 1)
    assert not seen["cuda_started"]


def test_cores_that_are_not_there(start):
    with pytest.raises(runtime.ActorDiedError, match=r"cores=\[4000\].* may use"):
        look(start(cores=[4000]))


def test_several_threads_compute_after_the_fork(start):
    actors = [start(num_threads=2) for _ in range(2)]
    products = runtime.get([actor.multiply.remote(300) for actor in actors], LONG)
    assert products == [300.0**3] * 2


def test_variables_are_there_before_the_class_is_imported(start):
    seen = look(start(env={"GMI_DRL_TEST_VARIABLE": "early"}))
    assert seen["variable_at_import"] == "early"


def test_an_actor_has_the_variables_that_its_starter_has_then(start, monkeypatch):
    monkeypatch.setenv("GMI_DRL_TEST_GONE", "1")
    assert look(start())["environment"]["GMI_DRL_TEST_GONE"] == "1"
    monkeypatch.delenv("GMI_DRL_TEST_GONE")
    expected = {**os.environ, **{k: "1" for k in runtime.THREAD_VARIABLES}}
    environment = look(start())["environment"]
    assert environment.pop(descendants.VARIABLE).startswith(f"{runtime.run_directory()}:")
    assert environment == expected


def test_the_setup_runs_before_the_class_is_imported(start):
    def set_variable():
        os.environ["GMI_DRL_TEST_VARIABLE"] = "from setup"

    assert look(start(setup=set_variable))["variable_at_import"] == "from setup"


def test_random_numbers_differ_between_actors(start):
    seen = [look(start()) for _ in range(3)]
    assert len({one["random"] for one in seen}) == 3
    assert len({one["torch_random"] for one in seen}) == 3


def test_each_actor_leads_a_process_group_in_the_fork_servers_session(start):
    actor = start()
    seen = look(actor)
    server = runtime.preloaded(LONG).pid
    assert (seen["group"], seen["session"]) == (runtime.process_id(actor), server)
    assert seen["parent"] == server


def test_an_actor_has_only_its_own_two_sockets(start):
    actors = [start() for _ in range(4)]
    assert runtime.get([actor.open_sockets.remote() for actor in actors], LONG) == [2] * 4


def test_the_working_directory_is_the_launchers(start, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert look(start())["directory"] == str(tmp_path)


def test_output_goes_to_the_log_by_the_line(start, tmp_path):
    log = tmp_path / "actor.log"
    actor = start(log=log)
    runtime.get(actor.print_lines.remote(2), LONG)
    assert log.read_text() == "line 0\nline 1\n"


def test_classes_of_a_script_work_without_a_guard(tmp_path):
    """The script is imported by nobody: its classes, errors and records go by value."""
    script = tmp_path / "script.py"
    script.write_text(
        "from gmi_drl import runtime\n"
        "class Mine(ValueError): pass\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "@runtime.remote\n"
        "class Actor:\n"
        "    def move(self, point):\n"
        "        runtime.emit(point)\n"
        "        return Point(point.x + 1)\n"
        "    def fail(self): raise Mine('by value')\n"
        f"runtime.init(**{options()})\n"
        "actor = Actor.remote()\n"
        "print(type(runtime.get(actor.move.remote(Point(1)))) is Point)\n"
        "print(runtime.records(actor)[0].x)\n"
        "try: runtime.get(actor.fail.remote())\n"
        "except Mine as error: print('caught', error.args)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["True", "1", "caught ('by value',)"]
    assert done.stderr == ""
