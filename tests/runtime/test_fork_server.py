"""The fork server is killed: who is told what, what comes again, and what is left running."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

import bodies_tasks
from bodies_runtime import Probe
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from gmi_drl.runtime.process import descendants, run_directory
from stops import stop

LONG = timedelta(minutes=2)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def fresh():
    runtime.init(num_cpus=2)
    yield
    runtime.shutdown()


def until_gone(pids):
    def left():
        return [pid for pid in pids if psutil.pid_exists(pid) and not is_zombie(pid)]

    bodies_tasks.until(lambda: not left(), "their end", shown=left)


def is_zombie(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def kill_it(by=signal.SIGKILL):
    """Signals the fork server, once it is ready; what errors then say of it."""
    pid = runtime.preloaded(LONG).pid
    os.kill(pid, by)
    return f"the fork server (pid {pid}), which was killed by {by.name}"


def test_what_runs_nothing_is_told_by_a_line_and_goes_on(fresh, capfd):
    task = runtime.remote(bodies_tasks.add)
    for by in (signal.SIGKILL, signal.SIGTERM):
        first = runtime.preloaded(LONG).pid
        kill_it(by)
        bodies_tasks.until(lambda: session.driver().server.process.pid != first, "another one")  # noqa: B023
        assert runtime.get(task.remote(1, 2), LONG) == 3
        assert runtime.preloaded(LONG).pid != first
        told = capfd.readouterr().err
        said = f"gmi-drl: the fork server (pid {first}) was killed by {by.name}; another one is"
        assert told.count(said) == 1, told


def test_what_went_down_with_it_names_it_and_what_may_come_back_does(fresh, tmp_path):
    mortal = runtime.remote(Probe).remote()
    lasting = runtime.remote(Probe).options(max_restarts=1).remote()
    assert runtime.get([mortal.add.remote(3), lasting.add.remote(4)], LONG) == [3, 4]
    path = str(tmp_path / "began")
    once = runtime.remote(bodies_tasks.sleeps).options(max_retries=0).remote(path)
    bodies_tasks.until(lambda: os.path.exists(path), "the task's begin")
    pid = bodies_tasks.pid_in(path)
    why = re.escape(kill_it())
    with pytest.raises(runtime.WorkerDiedError, match=f"pid {pid}.*by SIGKILL: .*with {why}"):
        runtime.get(once, LONG)
    with pytest.raises(runtime.ActorDiedError, match=f"it went down with {why}"):
        runtime.get(mortal.add.remote(), LONG)
    assert runtime.get(lasting.add.remote(), LONG) == 5
    assert re.search(why, str(runtime.deaths(lasting)[0]))
    assert runtime.get(runtime.remote(Probe).remote().add.remote(), LONG) == 1


def test_what_had_not_begun_is_begun_by_the_next_one(fresh):
    """Actors that may not be restarted too: these have not been started."""
    pid = runtime.preloaded(LONG).pid
    stop(pid)  # it takes no request any more
    actor = runtime.remote(Probe).remote()
    answer = actor.add.remote(7)
    task = runtime.remote(bodies_tasks.add).options(max_retries=0).remote(1, 2)
    bodies_tasks.until(lambda: len(session.driver().processes) == 2, "two requests")
    os.kill(pid, signal.SIGKILL)
    assert runtime.get([answer, task], LONG) == [7, 3]
    assert runtime.deaths(actor) == []


def test_one_that_cannot_start_is_started_twice_and_shown(tmp_path, monkeypatch):
    (tmp_path / "ends_all.py").write_text("import os; print('not here', flush=True); os._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    runtime.init(preload=["ends_all"])
    actor = runtime.remote(Probe).remote()
    with pytest.raises(runtime.ActorDiedError) as caught:
        runtime.get(actor.add.remote(), LONG)
    assert re.search(r"fork server \(pid \d+\) exited with code 3, and is not", str(caught.value))
    assert "it is the second that ended before it was ready" in str(caught.value)
    assert "| not here" in str(caught.value)
    with pytest.raises(runtime.ForkServerError, match=r"shutdown\(\) and init\(\)"):
        runtime.get(runtime.remote(bodies_tasks.add).remote(1, 2), LONG)
    runtime.shutdown()
    runtime.init()
    assert runtime.get(runtime.remote(bodies_tasks.add).remote(1, 2), LONG) == 3
    runtime.shutdown()


def test_one_that_ends_at_each_fork_is_started_twice(tmp_path, monkeypatch):
    source = "import os; os.register_at_fork(before=lambda: os._exit(9))"
    (tmp_path / "ends_forks.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    runtime.init(preload=["ends_forks"])
    task = runtime.remote(bodies_tasks.add)
    with pytest.raises(runtime.ForkServerError, match="second that ended before it had forked any"):
        runtime.get(task.remote(1, 2), LONG)
    runtime.shutdown()


# What its processes had started ------------------------------------------------------------------


def test_what_its_actors_had_started_is_gone_with_it(fresh):
    actor = runtime.remote(Probe).remote()
    left = runtime.get(actor.grandchildren.remote(), LONG)
    assert descendants.marked(left[1])[0] == str(runtime.run_directory())
    kill_it()
    until_gone(left)


def test_what_an_actor_leaves_in_a_session_of_its_own_goes_before_its_successor_comes(fresh):
    actor = runtime.remote(Probe).options(max_restarts=1).remote()
    other = runtime.remote(Probe).remote()
    left = runtime.get(actor.grandchildren.remote(), LONG)
    others = runtime.get(other.grandchildren.remote(), LONG)
    runtime.kill(actor, no_restart=False)
    assert runtime.get(actor.add.remote(), LONG) == 1
    until_gone(left)
    assert [psutil.Process(pid).ppid() for pid in others] == [runtime.process_id(other)] * 2


LEAVES_TWO = """
from gmi_drl import runtime
from bodies_runtime import Probe
runtime.init()
actor = runtime.remote(Probe).remote()
left = runtime.get(actor.grandchildren.remote())
print(runtime.preloaded().pid, runtime.process_id(actor), *left, flush=True)
runtime.get(actor.sleep.remote(60))
"""


def test_killed_beside_its_launcher_it_leaves_other_sessions_alone_and_the_next_start_ends_those():
    launcher = subprocess.Popen(
        [sys.executable, "-c", LEAVES_TWO],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
    )
    with launcher:
        try:
            server, actor, in_group, own_session = map(int, launcher.stdout.readline().split())
            stop(launcher.pid)  # it sees to nothing any more
            os.kill(server, signal.SIGKILL)
            until_gone([actor, in_group])
        finally:
            launcher.kill()
    os.kill(own_session, 0)  # it runs
    (directory,) = Path(os.environ["XDG_RUNTIME_DIR"]).iterdir()
    run_directory.sweep()
    assert not directory.exists()
    until_gone([own_session])


@pytest.fixture
def busy():
    """More than the machine's cores have to do."""
    loops = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * os.cpu_count())
    ]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def test_only_what_was_started_in_a_runtime_is_killed_for_it(busy, tmp_path):
    ours, alike, none = (
        subprocess.Popen(["sleep", "60"], env=os.environ | mark)
        for mark in (
            descendants.mark(tmp_path / "a", 3),
            descendants.mark(tmp_path / "ab", 3),
            {},
        )
    )
    try:
        descendants.kill_all(tmp_path / "a")
        assert ours.wait(10) == -signal.SIGKILL
        assert (alike.poll(), none.poll()) == (None, None)
    finally:
        for process in (ours, alike, none):
            process.kill()
            process.wait()


def test_what_has_just_been_started_is_seen_too(busy, tmp_path):
    marked = []
    for number in range(20):
        with subprocess.Popen(["sleep", "60"], env=descendants.mark(tmp_path, number)) as process:
            marked.append(descendants.marked(process.pid))  # Popen may return before exec has
            process.kill()
    assert marked == [(str(tmp_path), number) for number in range(20)]


# What people see of its processes -----------------------------------------------------------------


def title(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def test_ps_shows_what_each_process_is(fresh, tmp_path):
    path = str(tmp_path / "began")
    running = runtime.remote(bodies_tasks.sleeps).remote(path)
    actor = runtime.remote(Probe).options(name="probe").remote()
    assert title(runtime.get(actor.pid.remote(), LONG)) == "gmi-drl: actor probe"
    assert title(runtime.preloaded(LONG).pid) == "gmi-drl: fork server"
    worker = bodies_tasks.pid_in(path)
    assert title(worker) == "gmi-drl: worker: sleeps"
    assert Path(f"/proc/{worker}/comm").read_text() == "gmi-drl: worker\n"
    assert descendants.marked(worker)[0] == str(runtime.run_directory())
    runtime.cancel(running, force=True)
    long = runtime.remote(Probe).options(name="x" * 5000).remote()
    assert set(title(runtime.get(long.pid.remote(), LONG)).removeprefix("gmi-drl: actor ")) == {"x"}


def test_a_title_is_given_to_processes_of_the_runtime_alone():
    before = title(os.getpid())
    runtime.set_title("not this one")
    assert title(os.getpid()) == before
