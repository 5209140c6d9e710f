"""Whoever is killed, and whenever: no process, memory or folder of ours is left.

What is left is looked for after every test (conftest), and here after each kill.
"""

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta

import pytest

import bodies_chaos
from gmi_drl import runtime
from gmi_drl.runtime.process import run_directory
from killers import descendants
from stops import state_of, stop
from waits import until

LONG = timedelta(minutes=2)
GONE_S = 60.0  # on a machine however busy

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def load(tmp_path):
    """Starts a driver that runs programs until it is killed: `load(seed, replicas)`."""
    started = []

    def start(seed, replicas=0):
        arguments = f"{str(tmp_path / 'run')!r}, {replicas}, {seed}"
        text = f"import bodies_chaos; bodies_chaos.load_for_ever({arguments})"
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until_nothing_is_left(before):
    def left():
        return [one for one in _left() if one not in before]

    until(lambda: not left(), "nothing left behind", GONE_S, left)


def _left():
    found = list(descendants())
    found += os.listdir(os.environ["XDG_RUNTIME_DIR"])
    return found + [name for name in os.listdir("/dev/shm") if name.startswith("gmi")]


def recorded(path):
    """How many calls a control store's file says are over; it is checked on the way."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        states = dict(database.execute("SELECT state, count(*) FROM tasks GROUP BY state"))
        ids, distinct = database.execute(
            "SELECT count(id), count(DISTINCT id) FROM tasks"
        ).fetchone()
    assert ids == distinct
    assert set(states) <= {"waiting", "running", "finished", "failed", "cancelled", "lost"}
    return states.get("finished", 0) + states.get("failed", 0)


def kill_a_driver(load, path, seed, replicas):
    before = _left()
    rng = random.Random(seed)
    driver = load(seed, replicas)
    safe, lines = 0, rng.randrange(4)  # 0: while it starts
    for _ in range(lines):
        safe = int(driver.stdout.readline())
    time.sleep(rng.uniform(0, 0.3))
    driver.kill()
    for line in driver.stdout:  # said before its end
        safe = int(line) if line.endswith("\n") else safe
    driver.wait()
    if not lines:  # perhaps between its folder and its fork server: the next run clears up
        run_directory.sweep()
    until_nothing_is_left(before)
    if safe:
        assert recorded(path) >= safe


@pytest.mark.parametrize(("seed", "replicas"), [(1, 0), (2, 0), (3, 2), (4, 2)])
def test_a_driver_killed_at_a_random_moment_leaves_nothing_but_its_records(
    load, tmp_path, seed, replicas
):
    kill_a_driver(load, tmp_path / "run", seed, replicas)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 15))
def test_more_drivers_killed_leave_nothing_but_their_records(load, tmp_path, seed):
    kill_a_driver(load, tmp_path / "run", seed, seed % 3)


LOADED = """
import os, signal
import bodies_chaos
from gmi_drl import runtime
runtime.init(num_cpus=4)
hung = [runtime.remote(bodies_chaos.Hung).remote() for _ in range(3)]
pids = runtime.get([actor.pid.remote() for actor in hung])
if not (copy := os.fork()):  # what the launcher has forked is not the launcher
    signal.pause()
print(runtime.preloaded().pid, *pids, copy, flush=True)
answers = [hung[0].spin.remote(), hung[1].hold_the_gil.remote(), hung[2].stop.remote()]
runtime.wait(answers, 3)
"""


def test_a_driver_killed_beside_a_stopped_fork_server_leaves_nothing():
    before = _left()
    with subprocess.Popen(
        [sys.executable, "-c", LOADED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    ) as driver:
        server, spinning, holding, stopped, copy = map(int, driver.stdout.readline().split())
        until(lambda: state_of(stopped) == "T", "the actor has stopped itself")
        until(lambda: state_of(spinning) == "R", "the actor spins")
        until(lambda: state_of(holding) == "S", "the actor sleeps with the GIL")
        stop(server)
        driver.kill()
    until_nothing_is_left(before + [one for one in descendants() if one[0] == copy])
    os.kill(copy, signal.SIGKILL)


def test_a_fork_server_killed_under_load_leaves_nothing():
    before = _left()
    runtime.init(devices=2, num_cpus=4)
    refs = list(bodies_chaos.submit(bodies_chaos.program(0, streams=False)).values())
    runtime.wait(refs, 1, LONG)
    os.kill(runtime.preloaded(LONG).pid, signal.SIGKILL)
    runtime.shutdown()  # while it comes back, perhaps
    until_nothing_is_left(before)


def test_a_hung_worker_is_named_by_get_and_ended_by_cancel():
    runtime.init(num_cpus=1)
    hung = runtime.remote(bodies_chaos.stopped).remote()
    with pytest.raises(runtime.GetTimeoutError, match="stopped has not answered"):
        runtime.get(hung, timedelta(milliseconds=300))
    runtime.cancel(hung, force=True)
    with pytest.raises(runtime.TaskCancelledError):
        runtime.get(hung, LONG)
    assert runtime.get(runtime.remote(bodies_chaos.mix).remote(1, 0), LONG) == 7
    runtime.shutdown()


def test_a_hung_actor_is_ended_by_shutdown():
    runtime.init(num_cpus=1)
    hung = runtime.remote(bodies_chaos.Stopped).remote()
    answer = hung.stop.remote()
    with pytest.raises(runtime.GetTimeoutError, match=r"stop has not answered"):
        runtime.get(answer, timedelta(milliseconds=300))
    runtime.shutdown(timedelta(milliseconds=100))
    with pytest.raises(runtime.ActorDiedError, match="shut down"):
        runtime.get(answer, LONG)
