"""What happens when no process can be started: errors, and nobody waits in vain."""

import subprocess
import sys

import bodies_tasks
from gmi_drl import runtime

FEW_FILES = """
import os, resource
import cloudpickle  # while files can be opened
from gmi_drl import runtime

class Counter:
    def add(self):
        return 1

def plus(a, b):
    return a + b

def error_of(ref):
    try:
        return runtime.get(ref, 20)
    except runtime.ActorRuntimeError as error:
        return f"{type(error).__name__}: {error}"

runtime.init(num_cpus=1)
runtime.preloaded(20)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
probe = os.dup(0)
os.close(probe)
resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
print(error_of(runtime.remote(Counter).remote().add.remote()))
print(error_of(runtime.remote(plus).remote(1, 2)))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(error_of(runtime.remote(plus).remote(1, 2)))
runtime.shutdown()
"""


def test_what_cannot_be_started_says_why_and_what_comes_later_runs():
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, timeout=50, check=True
    )
    actor, task, later = done.stdout.splitlines()
    assert actor.startswith("ActorDiedError: "), done.stderr
    assert task.startswith("ForkServerError: ")
    for text in (actor, task):
        assert "no more processes can be started" in text
        assert "ulimit -n" in text
    assert later == "3"


def test_tasks_run_where_the_directory_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    runtime.init(num_cpus=1)
    gone.rmdir()
    assert runtime.get(runtime.remote(bodies_tasks.plus).remote(1, 2), 30) == 3
    monkeypatch.undo()
    runtime.shutdown()
