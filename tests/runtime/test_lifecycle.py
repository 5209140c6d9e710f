"""Starting and ending: of the runtime, of actors, of whoever goes first; and what is left after."""

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import pytest

import bodies_tasks
from bodies_runtime import Probe
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from gmi_drl.runtime.driver import processes
from waits import until

LONG = timedelta(seconds=30)
SHORT = timedelta(milliseconds=100)


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until_gone(pids, within_s=20.0):
    def left():
        return [pid for pid in pids if alive(pid)]

    until(lambda: not left(), "their end", within_s, left)


@pytest.fixture
def fresh():
    runtime.init()
    yield
    runtime.shutdown()


@pytest.fixture
def launcher(tmp_path):
    """Runs a script without an `if __name__` guard; it prints its pids and waits."""
    started = []

    def run(text, *arguments):
        script = tmp_path / "launcher.py"
        script.write_text(text)
        process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


ACTORS = """
import os, sys
from datetime import timedelta
from gmi_drl import runtime
from bodies_runtime import Probe

class Mine:
    def pid(self):
        return os.getpid()
    def work(self):
        runtime.emit("working")
        while not runtime.stop_requested():
            pass

runtime.init()
probe, mine = runtime.remote(Probe).remote(), runtime.remote(Mine).remote()
pids = [runtime.preloaded().pid, runtime.get(probe.pid.remote()), runtime.get(mine.pid.remote())]
pids += runtime.get(probe.grandchildren.remote())
print(*pids, flush=True)
"""


def pids_of(process):
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return [int(pid) for pid in line.split()]


def test_nothing_runs_before_init_and_after_shutdown():
    for _ in range(2):
        assert not runtime.is_initialized()
        with pytest.raises(runtime.NotRunningError, match=r"init\(\) first"):
            runtime.remote(Probe).remote()
        runtime.init()
        with pytest.raises(runtime.ActorRuntimeError, match="before"):
            runtime.init()
        actor = runtime.remote(Probe).remote()
        assert runtime.get(actor.add.remote(), LONG) == 1
        directory = runtime.run_directory()
        assert directory.stat().st_mode & 0o777 == 0o700
        runtime.shutdown()
        runtime.shutdown()
        assert not directory.exists()
        with pytest.raises(runtime.NotRunningError):
            actor.add.remote()


def test_results_that_were_pending_at_shutdown_fail():
    runtime.init()
    actor = runtime.remote(Probe).remote()
    pending = actor.sleep.remote(60)
    runtime.shutdown(SHORT)
    with pytest.raises(runtime.ActorDiedError, match="shut down"):
        runtime.get(pending, LONG)


def test_shutdown_while_the_fork_server_is_still_importing():
    runtime.init(preload=["torch"])
    actor = runtime.remote(Probe).remote()
    pending = actor.add.remote()
    runtime.shutdown(SHORT)
    with pytest.raises(runtime.ActorDiedError):
        runtime.get(pending, LONG)


def test_init_from_a_thread_that_ends():
    answers = []

    def begin():
        runtime.init()
        answers.append(runtime.remote(Probe).remote())

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert runtime.get(answers[0].add.remote(), LONG) == 1
    runtime.shutdown()


def until_records(number):
    found = []
    while len(found) < number:
        found += runtime.records()
        time.sleep(0.005)  # between two looks


def test_stop_asks_first(fresh):
    actor = runtime.remote(Probe).remote()
    running, queued = actor.sleep_until_asked.remote(), actor.add.remote()
    until_records(1)
    runtime.stop(actor, LONG)
    assert runtime.get(running, LONG) == "asked"
    with pytest.raises(runtime.ActorDiedError, match="it was stopped"):
        runtime.get(queued, LONG)
    assert runtime.get(runtime.death(actor)).exit_code == 0


def test_request_stop_only_asks(fresh):
    actor = runtime.remote(Probe).remote()
    running = actor.sleep_until_asked.remote()
    runtime.request_stop(actor)
    assert runtime.get(running, LONG) == "asked"
    assert runtime.get(actor.add.remote(), LONG) == 1


def test_stop_ends_what_does_not_listen(fresh):
    actors = [runtime.remote(Probe).remote() for _ in range(3)]
    for actor in actors[:2]:
        actor.deaf.remote()
    actors[2].sleep.remote(100)
    until_records(3)
    runtime.stop(actors, SHORT, "the test says so")
    ends = [runtime.get(runtime.death(actor), 0) for actor in actors]
    assert [end.signal for end in ends] == [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]
    assert "the test says so" in str(ends[0])


def test_an_async_call_that_is_cut_off_by_stop_cleans_up(fresh, tmp_path):
    class Cleans:
        async def run(self):
            bodies_tasks.mark(tmp_path / "runs")
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                bodies_tasks.mark(tmp_path / "clean")

    actor = runtime.remote(Cleans).remote()
    ref = actor.run.remote()
    bodies_tasks.until(lambda: bodies_tasks.marks(tmp_path / "runs"))
    runtime.stop(actor, LONG)
    assert bodies_tasks.marks(tmp_path / "clean") == 1
    with pytest.raises(runtime.TaskCancelledError):
        runtime.get(ref, LONG)


def test_calls_that_wait_for_a_thread_of_an_actor_are_not_run_once_it_is_stopped(fresh, tmp_path):
    class Runs:
        def run(self, name):
            bodies_tasks.mark(tmp_path / name)
            while not runtime.stop_requested():
                time.sleep(0.001)  # between two looks

    actor = runtime.remote(Runs).options(max_concurrency=2).remote()
    refs = [actor.run.remote("runs" if number < 2 else "waits") for number in range(20)]
    bodies_tasks.until(lambda: bodies_tasks.marks(tmp_path / "runs") == 2)
    runtime.stop(actor, LONG)
    runtime.wait(refs, len(refs), LONG)
    assert bodies_tasks.marks(tmp_path / "waits") == 0


def test_a_thread_that_does_not_end_cannot_hold_up_stop(fresh):
    actor = runtime.remote(Probe).remote()
    runtime.get(actor.leave_thread.remote(), LONG)
    runtime.stop(actor, SHORT)
    assert runtime.get(runtime.death(actor), 0).signal == signal.SIGTERM


@pytest.mark.parametrize("how", ["kill", "stop", "die"])
def test_what_an_actor_started_goes_with_it(fresh, how):
    actor = runtime.remote(Probe).remote()
    in_group, own_session = runtime.get(actor.grandchildren.remote(), LONG)
    if how == "die":
        actor.die.remote(0)
    else:
        getattr(runtime, how)(actor)
    runtime.get(runtime.death(actor), LONG)
    until_gone([in_group])
    runtime.shutdown()
    until_gone([own_session])


def test_stopping_the_dead_and_the_undone_is_fine(fresh):
    actor = runtime.remote(Probe).remote()
    runtime.kill(actor)
    runtime.kill(actor)
    runtime.stop(actor)
    runtime.request_stop(actor)
    runtime.shutdown()
    runtime.stop(actor)
    runtime.kill(actor)


IMPORTS = """
from gmi_drl import runtime
from gmi_drl.runtime.api import session
runtime.init(['torch'])
print(session.running().server.process.pid, flush=True)
"""


@pytest.mark.parametrize(
    "work", [ACTORS + "mine.work.remote(); probe.deaf.remote()\n", IMPORTS],
    ids=["actors", "the fork server imports"],
)  # fmt: skip
def test_kill_dash_nine_of_the_launcher(launcher, work):
    process = launcher(work + "import time; time.sleep(60)")
    pids = pids_of(process)
    process.kill()
    process.wait()
    until_gone(pids)
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


@pytest.mark.parametrize("ending", ["", "raise SystemExit(5)", "1 / 0", "runtime.shutdown()"])
def test_a_script_that_ends_without_a_word_takes_its_actors_along(launcher, ending):
    process = launcher(ACTORS + "probe.add.remote()\n" + ending)
    pids = pids_of(process)
    _, errors = process.communicate(timeout=30)
    until_gone(pids)
    assert process.returncode == {"raise SystemExit(5)": 5, "1 / 0": 1}.get(ending, 0)
    assert ("Traceback" in errors) == (ending == "1 / 0"), errors


def test_control_c_reaches_the_launcher_alone(launcher):
    """It can then ask its actors, who have not been interrupted themselves."""
    process = launcher(
        ACTORS
        + "running = mine.work.remote()\n"
        + "while not runtime.records(): pass\n"
        + "try:\n    print('working', flush=True)\n    runtime.get(running)\n"
        + "except KeyboardInterrupt:\n    runtime.request_stop(mine)\n"
        + "    print('result', runtime.get(running, 20), flush=True)\n"
    )
    pids = pids_of(process)
    assert process.stdout.readline() == "working\n"
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    until_gone(pids)
    assert output.strip() == "result None", (output, errors)
    assert process.returncode == 0, errors


def test_actors_of_a_forked_launcher_are_left_alone(fresh):
    """A launcher that forks, as multiprocessing does, must not end its actors from the copy."""
    actor = runtime.remote(Probe).remote()
    assert runtime.get(actor.add.remote(), LONG) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: on purpose
        pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            runtime.shutdown()
            code = int(runtime.is_initialized())
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert runtime.get(actor.add.remote(), LONG) == 2


def test_a_fork_while_the_runtime_is_sending_hangs_nobody(fresh):
    actor = runtime.remote(Probe).remote()
    bodies_tasks.until(lambda: runtime.process_id(actor), "its process")
    channel = session.driver().actors.table[actor._id].process.channel
    with channel._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it has threads: that is the case
        pid = os.fork()
        if not pid:
            os._exit(0)
        try:
            bodies_tasks.until(lambda: os.waitpid(pid, os.WNOHANG)[0], "the end of the copy", 5)
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise


def test_importing_the_runtime_brings_neither_torch_nor_numpy():
    code = (
        "import sys, gmi_drl.runtime\n"
        "print([m for m in ('torch', 'numpy', 'mujoco', 'gymnasium', 'zmq') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_hundred_actors_leave_no_descriptor_open(fresh):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    runtime.kill(runtime.remote(Probe).remote())
    before = open_files()
    for _ in range(10):
        actors = [runtime.remote(Probe).remote() for _ in range(10)]
        runtime.get([actor.add.remote() for actor in actors], LONG)
        runtime.kill(actors)
    del actors
    assert open_files() == before
    assert len(os.listdir(f"/proc/{runtime.preloaded().pid}/fd")) < 15


def test_a_preload_that_starts_threads_is_named(tmp_path, monkeypatch):
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runtime.init(preload=["starts_a_thread"])
    runtime.preloaded(LONG)
    actor = runtime.remote(Probe).remote()
    with pytest.raises(runtime.ActorDiedError, match="2 threads since it imported starts_a_thread"):
        runtime.get(actor.add.remote(), LONG)
    runtime.shutdown()


def test_a_preload_that_is_not_there_or_broken_is_skipped(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    runtime.init(preload=["no_such_module", "broken_module", "json"])
    ready = runtime.preloaded(LONG)
    assert "json" in ready.loaded
    assert list(ready.skipped) == ["no_such_module", "broken_module"]
    assert "ZeroDivisionError" in ready.skipped["broken_module"]
    assert pickle.loads(pickle.dumps(ready)) == ready
    runtime.shutdown()


def test_a_future_whose_result_has_not_come_fails_at_shutdown(tmp_path):
    runtime.init(num_cpus=1)
    ref = runtime.remote(bodies_tasks.wait_for_file).remote(tmp_path / "never")
    future = ref.future()
    runtime.shutdown()
    with pytest.raises(runtime.NotRunningError):
        future.result(LONG.total_seconds())


def test_an_actor_that_was_not_started_yet_survives_a_kill_with_restart(fresh):
    many = {"num_cpus": os.cpu_count(), "max_restarts": 1}
    first, second = (runtime.remote(Probe).options(**many).remote() for _ in range(2))
    assert runtime.get(first.add.remote(), LONG) == 1
    call = second.add.remote()
    runtime.kill(second, no_restart=False)
    runtime.kill(first)
    assert runtime.get(call, LONG) == 1


def test_actors_may_start_while_they_are_listed(fresh, monkeypatch):
    described, more = processes.Actor.state_fields, []

    def describe(actor):
        more.append(runtime.remote(Probe).remote())  # as another thread might just then
        return described(actor)

    monkeypatch.setattr(processes.Actor, "state_fields", describe)
    first = runtime.remote(Probe).remote()
    assert [actor.class_name for actor in runtime.util.state.list_actors()] == ["Probe"]
    assert runtime.get([actor.add.remote() for actor in (first, *more)], LONG) == [1, 1]
