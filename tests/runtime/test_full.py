"""No room: on the disk of the control store, on that of the object store, in memory."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import bodies_chaos
from bodies_gcs import rows_in_file
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from gmi_drl.runtime.gcs.tables import TaskRow
from killers import Killer
from waits import until

LONG = timedelta(seconds=30)
MIB = 1 << 20


@pytest.fixture
def disk():
    """A file system of four MB; `fill` leaves no room on it, and removing `ballast` makes some."""
    path = Path(tempfile.mkdtemp(prefix="gdd-", dir="/tmp"))  # short: for a run directory's sockets
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        path.rmdir()
        pytest.skip("no file system can be mounted here")
    yield path
    runtime.shutdown()
    subprocess.run(["umount", str(path)], check=True)
    path.rmdir()


def fill(disk):
    """Leaves no room."""
    with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.fixture
def stopped():
    """No runtime after the test."""
    yield
    runtime.shutdown()


def run(program):
    """Runs a program and compares all it keeps."""
    wanted = bodies_chaos.expected(program)
    refs = bodies_chaos.submit(program)
    found = runtime.get([refs[index] for index in wanted], LONG)
    assert all(map(bodies_chaos.same, found, wanted.values()))


def recorded_as_over():
    """How many calls the control store knows to be over."""
    rows = rows_in_file(session.driver().gcs, TaskRow)
    return sum(row.state in ("finished", "failed", "cancelled") for row in rows)


def test_a_full_disk_under_the_control_store_is_told_of_once_and_loses_nothing(disk, capfd):
    runtime.init(num_cpus=4, gcs=disk / "gcs.sqlite")
    gcs, task = session.driver().gcs, runtime.remote(bodies_chaos.mix)
    run(bodies_chaos.program(4, length=20))
    gcs.flush(20)
    fill(disk)
    deadline_s = time.monotonic() + 30
    while not gcs.failure:
        assert time.monotonic() < deadline_s
        runtime.get([task.remote(i, 0, [i] * 1000) for i in range(100)], LONG)
    run(bodies_chaos.program(5, length=40))
    (disk / "ballast").unlink()
    until(lambda: not session.driver().tasks.live)  # what nobody waited for ends too
    gcs.flush(20)
    assert (gcs.failure, gcs.dropped) == ("", 0)
    done = session.driver().tasks.num_done
    assert recorded_as_over() == done
    runtime.shutdown()
    told = capfd.readouterr().err
    assert told.count("the run is not recorded") == 1, told


def test_replicas_killed_under_load_change_no_result_and_lose_no_row(stopped):
    runtime.init(num_cpus=4, gcs_replicas=2)
    driver = session.driver()
    chains = driver.gcs.chains

    def kill(pid):
        os.kill(pid, signal.SIGKILL)
        return True

    def members():
        """One of each whole chain may be killed."""
        return [chain[-1] for chain in chains.members() if len(chain) == 2]

    with Killer(1, 0.2, members, kill) as killer:
        seed = 0
        while killer.killed < 2:
            run(bodies_chaos.program(seed, length=60))
            seed += 1
    until(lambda: not driver.tasks.live)  # what nobody waited for ends too
    driver.gcs.sync(30)
    driver.gcs.flush(30)
    assert driver.gcs.failure == ""
    assert recorded_as_over() == driver.tasks.num_done


def test_no_room_on_the_disk_for_what_does_not_fit_into_memory_is_an_error(
    disk, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(disk))
    runtime.init(num_cpus=2, object_store_bytes=32 * MIB, gcs=tmp_path / "gcs.sqlite")
    kept = [runtime.put(np.full(MIB, i)) for i in range(3)]  # 8 MiB each
    with pytest.raises(runtime.ObjectStoreFullError, match="No space left"):
        runtime.put(np.zeros(2 * MIB))
    with pytest.raises(runtime.ObjectStoreFullError, match="No space left"):
        runtime.get(runtime.remote(bodies_chaos.make).remote(1, 2 * MIB), LONG)
    assert [runtime.get(ref, LONG)[0] for ref in kept] == [0, 1, 2]
    del kept
    assert len(runtime.get(runtime.put(np.zeros(2 * MIB)), LONG)) == 2 * MIB


def test_memory_that_is_exhausted_is_an_error_and_smaller_values_go_on(stopped):
    """A limit on the size of files stands in for it: what is beyond cannot be written."""
    runtime.init(num_cpus=1, object_store_bytes=64 * MIB)
    server = runtime.preloaded(LONG).pid
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(server, resource.RLIMIT_FSIZE, (8 * MIB, hard))
    make = runtime.remote(bodies_chaos.make)
    with pytest.raises(runtime.ObjectStoreFullError, match=r"16,\d+,\d+ bytes.*no memory left"):
        runtime.get(make.remote(1, 2 * MIB), LONG)
    assert len(runtime.get(make.remote(1, MIB // 2), LONG)) == MIB // 2
    assert len(session.driver().objects.store._at) <= 1  # nothing stays of what failed


def test_a_size_or_a_file_that_cannot_be_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=f"nbytes={1 << 70}"):
        runtime.init(object_store_bytes=1 << 70)
    (tmp_path / "file").write_text("")
    with pytest.raises((OSError, runtime.ActorRuntimeError, RuntimeError)):
        runtime.init(gcs=tmp_path / "file" / "gcs.sqlite")
    assert not runtime.is_initialized()
