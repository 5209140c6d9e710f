"""A run's folder: who may train it, and who may look at it."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from gmi_drl.launcher.folder import run_folder
from gmi_drl.launcher.folder.run_folder import RunFolder, RunFolderError, is_trained, lock_of
from gmi_drl.launcher.watch.watchdog import Restarts
from gmi_drl.placement import Topology, layout_of, load_config
from gmi_drl.runtime import shared_lock

MODE = 0o777


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that nobody trains, in `tmp_path/runs`."""
    return made(tmp_path / "runs")


def made(base):
    config = load_config({"version": 1, "run": {"folder": str(base)}, "env": {"id": "CartPole-v1"}})
    return RunFolder.create(config, layout_of(config, Topology.from_cores(range(1))), base)


@contextlib.contextmanager
def another_process(path, code="lock = shared_lock.join(path)"):
    """The pid of a process that has done this; it ends with the block."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom gmi_drl.runtime import shared_lock\n"
        f"path = Path({str(path)!r})\n{code}\nprint(flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def test_of_thirty_that_begin_at_once_one_does(folder):
    together, told = threading.Barrier(30), []

    def begin():
        together.wait()
        try:
            with folder.held():
                folder.update(state="running", pid=os.getpid())
                told.append("began")
                together.wait()
        except RunFolderError as error:
            told.append(str(error))
            together.wait()

    threads = [threading.Thread(target=begin) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 30
    assert told.count("began") == 1
    (refusal,) = {*told} - {"began"}
    assert f"{folder.path} is being trained by process {os.getpid()}. Wait for it" in refusal
    with folder.held():
        pass  # the one before has ended


def test_thirty_that_write_one_file_at_once_leave_it_whole_and_nothing_else(folder):
    before = sorted(os.listdir(folder.path))
    together = threading.Barrier(30)

    def write(number):
        together.wait()
        folder.write_atomic("plan.json", json.dumps([number] * 10_000))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*json.loads((folder.path / "plan.json").read_text())}) == 1
    assert sorted(os.listdir(folder.path)) == sorted([*before, "plan.json"])


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"restarts": 3}', '{"restarts": [3]}', '{"restarts": {"gmi_id": 1}}']
)
def test_a_restart_is_told_whatever_has_become_of_run_json(folder, damage):
    (folder.path / "run.json").write_text(damage)
    death = SimpleNamespace(how=lambda: "was killed")
    gang = SimpleNamespace(restarts=lambda: [(3, death)])
    policies = SimpleNamespace(died=lambda *_: None)
    restarts = Restarts(gang, folder, 5, policies)
    assert restarts.news() == ["gmi 3 was killed; restarted on its slice (1 of 5)"]
    assert all(entry["gmi_id"] == 3 for entry in folder.entries("restarts"))


def test_a_lock_passes_from_one_to_many_and_is_free_when_the_last_is_gone(folder):
    path = lock_of(folder.path)
    first = shared_lock.begin(path)
    with another_process(path, "file = path.open()"), another_process(path) as pid:
        assert shared_lock.begin(path) is None
        assert shared_lock.holders(path) == sorted([os.getpid(), pid])
        shared_lock.release(first)
        assert shared_lock.is_held(path)
        assert shared_lock.begin(path) is None
    assert not shared_lock.is_held(path)
    shared_lock.release(shared_lock.begin(path))


@pytest.mark.parametrize("pid", [-1, "7", 1e300, None, [1], 2**70])
def test_what_lives_on_after_its_launcher_is_named(folder, monkeypatch, pid):
    monkeypatch.setattr(run_folder, "_ENDING_S", 0.0)
    folder.update(state="running", pid=pid, started=1e300)
    with another_process(lock_of(folder.path)) as gmi:
        with pytest.raises(RunFolderError) as caught, folder.held():
            pass
        assert f"still held by process {gmi}, of a launch that is gone" in str(caught.value)
        assert f"(kill -9 {gmi}), then resume" in str(caught.value)
    with folder.held():
        assert is_trained(folder.path)
    assert not is_trained(folder.path)


def test_who_resumes_waits_for_what_is_about_to_end(folder):
    with another_process(lock_of(folder.path)) as pid:
        threading.Timer(0.2, os.kill, (pid, 9)).start()
        with folder.held():
            assert shared_lock.holders(lock_of(folder.path)) == [os.getpid()]


def test_those_that_only_look_do_not_keep_a_launch_out(folder):
    over = threading.Event()

    def look():
        while not over.is_set():
            is_trained(folder.path)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(1000):
            shared_lock.release(shared_lock.begin(lock_of(folder.path)))
    finally:
        over.set()
        thread.join()


def test_without_locks_a_run_is_trained_with_a_warning(folder, monkeypatch):
    def fcntl(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(shared_lock.fcntl, "fcntl", fcntl)
    warned = "no locks .No locks available.*put run.folder on a file"
    with pytest.warns(UserWarning, match=warned), folder.held():
        pass
    assert is_trained(folder.path)  # as far as run.json tells


def test_a_run_that_cannot_be_written_is_not_resumed(folder, monkeypatch):
    def begin(_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(shared_lock, "begin", begin)
    with pytest.raises(RunFolderError, match=r"Read-only.*Copy the run"), folder.held():
        pass


@pytest.mark.parametrize(
    ("base", "run"), [(None, 0o700), (0o700, 0o700), (0o750, 0o750), (0o777, 0o755)]
)
def test_who_may_read_a_run_is_said_by_the_folder_of_all_runs(tmp_path, base, run):
    before = os.umask(0o022)
    try:
        if base is not None:
            (tmp_path / "runs").mkdir()
            (tmp_path / "runs").chmod(base)
        path = made(tmp_path / "runs").path
    finally:
        os.umask(before)
    assert [one.stat().st_mode & MODE for one in (path, path.parent)] == [run, run]
    assert path.parent.parent.stat().st_mode & MODE == (base or 0o700)
