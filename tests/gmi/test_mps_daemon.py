"""The daemons of a run: what goes wrong with them, who else is on the machine, who is killed."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import bodies_mps
import fake_gpus
from gmi_drl.gmi import LayoutSlices, lease
from gmi_drl.gmi.backends import mps
from gmi_drl.gmi.backends.mps import control
from gmi_drl.gmi.backends.mps.control import CONTROL, Daemon, MpsError
from gmi_drl.placement import Layout
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.slicing import sliced
from mps_clients import GPU, HALVES, ONE, SHORT, client, prepared, seen
from stops import stop


@pytest.fixture
def words(monkeypatch, tmp_path):
    """Installs the doubles; called with words of FAKE_MPS it sets them."""
    fake_gpus.install(monkeypatch, tmp_path, ONE)
    return lambda text: monkeypatch.setenv("FAKE_MPS", text)


@pytest.fixture
def impatient(monkeypatch):
    """For what hangs: it is given up soon."""
    for name in ("_ANSWER", "_START", "_GONE", "_TERMINATED"):
        monkeypatch.setattr(control, name, SHORT)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("refuse", "ended with 1.\nstart.log: Cannot start MPS control daemon: permission denied"),
        ("hang-start", "-d has not come back after 0.2 s"),
        ("mute", "has no answer after 0.2 s"),
        ("dies=1", "Cannot find MPS control daemon process"),
    ],
)
def test_a_daemon_that_does_not_start_is_told_and_nothing_is_left(request, words, text, fault):
    if text in ("hang-start", "mute"):
        request.getfixturevalue("impatient")
    words(text)
    with pytest.raises(MpsError, match=f"MPS daemon of GPU {GPU.uuid}") as caught:
        mps.MpsBackend().prepare(HALVES, ONE)
    assert fault in str(caught.value)
    assert fake_gpus.mps_pids() == []
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


def test_missing_programs_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(control, "IN_CONTAINERS", str(tmp_path / "none"))
    assert control.missing_programs() == [CONTROL, "nvidia-cuda-mps-server"]
    with pytest.raises(MpsError, match="is not on PATH"):
        mps.MpsBackend().prepare(HALVES, ONE)


@pytest.mark.usefixtures("words")
def test_programs_are_found_where_containers_have_them(monkeypatch):
    folder, *path = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    assert shutil.which(CONTROL) is None
    monkeypatch.setattr(control, "IN_CONTAINERS", folder)
    assert control.missing_programs() == []
    with prepared() as slices:
        assert seen(slices) == (True, 66)
        (pid, *_) = fake_gpus.mps_pids()
        with open(f"/proc/{pid}/environ") as file:
            found = next(v for v in file.read().split("\0") if v.startswith("PATH="))
        assert folder in found.removeprefix("PATH=").split(os.pathsep)
    assert fake_gpus.mps_pids() == []


@pytest.mark.parametrize("text", ["deaf", "deaf,stubborn", "lasting", "mute-later"])
def test_a_daemon_that_does_not_quit_is_made_to(request, words, text):
    words(text)
    with prepared() as slices:
        assert seen(slices) == (True, 66)
        request.getfixturevalue("impatient")
        if text == "mute-later":  # stopped, it neither answers nor ends
            for pid in fake_gpus.mps_pids():
                stop(pid)
    assert fake_gpus.mps_pids() == []
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


def test_one_that_nothing_ends_stays_noted_for_the_next_run(request, words, monkeypatch):
    words("deaf,stubborn")
    slices = mps.MpsBackend().prepare(HALVES, ONE)
    request.getfixturevalue("impatient")
    with monkeypatch.context() as weak:
        weak.setattr(control, "_KILLED", SHORT)
        weak.setattr(control, "signal_all", lambda *_: None)
        with pytest.raises(MpsError, match="outlive SIGKILL"):
            slices.release()
        with pytest.warns(UserWarning, match="outlive SIGKILL"):
            LayoutSlices(Layout("tcg_ex", ONE, tuple(fake_gpus.specs("direct", ONE))))
    assert len(fake_gpus.mps_pids()) == 1
    (swept,) = lease.sweep()
    assert (swept.lease.kind, swept.error, swept.undone) == ("mps", "", True)
    assert fake_gpus.mps_pids() == []


@pytest.mark.usefixtures("words")
def test_a_stale_socket_is_no_daemon(tmp_path):
    daemon = Daemon(tmp_path, GPU.uuid)
    daemon.start()
    for process in control.processes_of_pipe(daemon.pipe):
        process.kill()
    while control.processes_of_pipe(daemon.pipe):
        time.sleep(0.01)  # between two looks at the kill's effect
    assert (daemon.pipe / "control").exists()
    with pytest.raises(MpsError, match="Cannot find MPS control daemon"):
        daemon.active_thread_percentage()
    daemon.stop()  # nothing runs: fine
    daemon.start()
    assert daemon.active_thread_percentage() == 100
    daemon.stop()


def test_the_double_refuses_what_it_does_not_know(words, tmp_path):
    for option in ("-S", "-Z", "--static-partitioning"):
        asked = subprocess.run(["nvidia-cuda-mps-control", "-d", option], capture_output=True)
        assert asked.returncode
        assert b"invalid option" in asked.stderr
    words("slow=0.05")
    daemon = Daemon(tmp_path, GPU.uuid)
    daemon.start()
    try:
        assert daemon.ask("get_weather") == "Invalid command: get_weather"
        assert daemon.ask("sm_partition add x 1") == "Invalid command: sm_partition"
        assert daemon.ask("get_client_list").startswith("Invalid arguments")
        assert daemon.active_thread_percentage() == 100  # it goes on
    finally:
        daemon.stop()


@pytest.mark.usefixtures("words")
def test_two_runs_at_once_do_not_touch_each_other():
    with prepared() as one:
        with prepared() as two:
            assert seen(two) == (True, 66)
            assert lease.sweep() == []
        assert seen(one) == (True, 66)


@pytest.mark.usefixtures("words")
def test_a_daemon_that_is_not_ours_is_left_alone(monkeypatch, tmp_path):
    theirs = Daemon(tmp_path, GPU.uuid)  # in a directory of theirs, and of the same user
    theirs.start()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(theirs.pipe))  # the whole session's
    try:
        with prepared() as slices, client(slices, HALVES[0], bodies_mps.hold):
            assert theirs.servers() == []
        assert lease.sweep() == []
        assert theirs.active_thread_percentage() == 100
    finally:
        theirs.stop()


LAUNCHER = """
import fake_gpus, private_leases
from bodies_mps import Computer
from gmi_drl.gmi import Gang
from gmi_drl.placement import Layout

machine = fake_gpus.topology()
gmis = tuple(fake_gpus.specs("mps", machine, sm_percent=50))
with Gang(Layout("tcg_ex", machine, gmis), Computer, preload=["gmi_drl.gmi", "bodies_mps"]) as gang:
    print(*gang.call("pid"), flush=True)
    gang.start("compute", {path!r})
    gang.wait()
"""


@pytest.mark.usefixtures("words")
def test_the_daemon_of_a_launcher_killed_at_work_is_stopped_by_the_next_run(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.format(path=str(tmp_path / "first"))],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        gmis = process.stdout.readline().split()
        assert len(gmis) == 2
        assert len(fake_gpus.mps_pids()) == 2
        process.kill()
    with prepared() as slices:  # another run, while the first one's GMIs may still be on their way
        assert len(fake_gpus.mps_pids()) >= 2
        with LayoutSlices(Layout("tcg_ex", ONE, tuple(HALVES))) as third:
            assert fake_gpus.mps_pids()
            assert seen(third) == (True, 66)
        assert seen(slices) == (True, 66)
    assert fake_gpus.mps_pids() == []


@pytest.mark.slow
@pytest.mark.usefixtures("words")
def test_a_launcher_killed_at_any_step_leaves_nothing_after_the_next_run():
    code = (
        "import bodies_mps, fake_gpus, private_leases; machine = fake_gpus.topology();"
        "bodies_mps.die_at_every_step(machine, fake_gpus.specs('mps', machine, sm_percent=50))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 0, ended.stderr
    died, undone = json.loads(ended.stdout)
    assert died > 30
    assert undone > 10


def quarter_of_a_gpu():
    """The GMI of a launch that has a quarter of a GPU."""
    machine = dataclasses.replace(ONE, devices=(dataclasses.replace(GPU, share=0.25),))
    bare = Layout("tcg_ex", machine, tuple(fake_gpus.specs("mps", machine, per_gpu=1)))
    return sliced(bare, HardwareConfig()).gmis[0]


@pytest.mark.usefixtures("words")
def test_launches_that_share_a_gpu_are_clients_of_one_daemon(monkeypatch):
    daemons, two = mps.Daemons(), fake_gpus.topology(2)
    try:
        daemons.start(GPU.uuid)
        running = fake_gpus.mps_pids()
        for name, value in daemons.environment.items():
            monkeypatch.setenv(name, value)
        spec = quarter_of_a_gpu()
        assert spec.sm_percent == 25
        assert spec.mem_bytes == 79 * fake_gpus.GIB // 4
        with prepared([spec]) as first, prepared([spec]) as second:
            assert seen(first, spec) == seen(second, spec) == (True, 32)
        assert seen(first, spec) == (True, 32)  # who joins stops nothing
        assert running
        assert set(running) <= set(fake_gpus.mps_pids())
        with pytest.raises(MpsError, match="no MPS daemon of GPU GPU-00000001"):
            mps.MpsBackend().prepare(fake_gpus.specs("mps", two), two)
    finally:
        daemons.release()
    assert fake_gpus.mps_pids() == []
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


@pytest.fixture
def shared(words, monkeypatch):
    """A daemon that launches share: of whoever starts them."""
    daemons = mps.Daemons()
    daemons.start(GPU.uuid)
    for name, value in daemons.environment.items():
        monkeypatch.setenv(name, value)
    yield daemons
    daemons.release()
    assert fake_gpus.mps_pids() == []


@pytest.mark.usefixtures("shared")
def test_a_launch_that_is_killed_at_work_leaves_the_daemon_to_the_others():
    spec = quarter_of_a_gpu()
    with (
        prepared([spec]) as mine,
        prepared([spec]) as others,
        client(others, spec, bodies_mps.hold) as (other, _, _),
        client(mine, spec, bodies_mps.work, 3600.0) as (worker, _, said),
    ):
        assert said.recv() == "at work"
        mine.fence_all([(spec, worker.pid)])
        worker.kill()
        worker.join()
        assert other.is_alive()
        assert seen(others, spec) == (True, 32)  # the server is not stuck


@pytest.mark.usefixtures("words")
def test_the_shared_daemon_of_a_killed_command_is_ended_by_the_next_launch():
    pid = os.fork()
    if not pid:
        mps.Daemons().start(GPU.uuid)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(fake_gpus.mps_pids()) == 1
    (swept,) = lease.sweep()
    assert (swept.error, swept.undone) == ("", True)
    assert fake_gpus.mps_pids() == []
