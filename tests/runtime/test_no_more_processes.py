"""What happens when no process can be started: errors, and nobody waits in vain."""

import subprocess
import sys

import bodies_tasks
from gmi_drl import runtime

PRELUDE = """
import os, resource, time
import cloudpickle  # while files can be opened
from gmi_drl import runtime

class Counter:
    def add(self):
        return 1

def plus(a, b):
    return a + b

def works():
    time.sleep(0.2)  # so that others wait behind it
    return os.getpid()

def waits():
    return error_of(runtime.remote(works).remote())

def error_of(ref):
    try:
        return runtime.get(ref, 20)
    except runtime.ActorRuntimeError as error:
        return f"{type(error).__name__}: {error}"

def open_no_more_files():
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))

limits = resource.getrlimit(resource.RLIMIT_NOFILE)
"""

NO_WORKER = f"""{PRELUDE}
runtime.init(num_cpus=1)
runtime.preloaded(20)
open_no_more_files()
print(error_of(runtime.remote(Counter).remote().add.remote()))
print(error_of(runtime.remote(plus).remote(1, 2)))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(error_of(runtime.remote(plus).remote(1, 2)))
runtime.shutdown()
"""

ONE_WORKER = f"""{PRELUDE}
runtime.init(num_cpus=2)
first = runtime.get(runtime.remote(works).remote(), 20)
open_no_more_files()
refs = [runtime.remote(works).remote() for _ in range(4)]
print([error_of(ref) for ref in refs] == 4 * [first])
print(error_of(runtime.remote(waits).remote()))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(error_of(runtime.remote(waits).remote()) != first)
runtime.shutdown()
"""

OTHER_DEVICE = f"""{PRELUDE}
runtime.init(num_cpus=2, devices=2)
task = runtime.remote(works)
first = runtime.get(task.options(device=1).remote(), 20)
open_no_more_files()
print(error_of(task.options(device=0).remote()))
print(error_of(task.options(device=1).remote()) == first)
print(error_of(task.remote()) == first)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(error_of(task.options(device=0).remote()) != first)
runtime.shutdown()
"""


def printed_by(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=True
    )
    return done.stdout.splitlines(), done.stderr


def test_what_cannot_be_started_says_why_and_what_comes_later_runs():
    (actor, task, later), told = printed_by(NO_WORKER)
    assert actor.startswith("ActorDiedError: "), told
    assert task.startswith("ForkServerError: ")
    for text in (actor, task):
        assert "no more processes can be started" in text
        assert "ulimit -n" in text
    assert later == "3"


def test_a_worker_that_there_is_runs_what_others_cannot_be_started_for():
    """Unless it waits for just that."""
    (tasks, nested, later), told = printed_by(ONE_WORKER)
    assert tasks == later == "True", told
    assert nested.startswith("ForkServerError: no more processes can be started")


def test_a_worker_of_another_device_is_none_to_wait_for():
    (pinned, *others), told = printed_by(OTHER_DEVICE)
    assert pinned.startswith("ForkServerError: no more processes can be started"), told
    assert others == ["True"] * 3, told  # also of a task that is pinned to none


def test_tasks_run_where_the_directory_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    runtime.init(num_cpus=1)
    gone.rmdir()
    assert runtime.get(runtime.remote(bodies_tasks.plus).remote(1, 2), 30) == 3
    monkeypatch.undo()
    runtime.shutdown()
