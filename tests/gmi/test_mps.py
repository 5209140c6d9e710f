"""GMIs under MPS, from the daemon's start to its end, and everything that goes wrong on the way."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

import bodies_mps
import fake_gpus
from gmi_drl.gmi import LayoutSlices, SliceError, lease, mps, mps_control, mps_processes
from gmi_drl.gmi.mps_control import CONTROL, Daemon, MpsError
from gmi_drl.placement import Layout
from ranks import _CONTEXT as CONTEXT

ONE = fake_gpus.topology()
GPU = ONE.devices[0]
HALVES = fake_gpus.specs("mps", ONE, sm_percent=50, mem_bytes=8 * fake_gpus.GIB)
SHORT = timedelta(seconds=0.2)


@pytest.fixture
def words(monkeypatch, tmp_path):
    """Installs the doubles; called with words of FAKE_MPS it sets them."""
    fake_gpus.install(monkeypatch, tmp_path, ONE)
    return lambda text: monkeypatch.setenv("FAKE_MPS", text)


@pytest.fixture
def impatient(monkeypatch):
    """For what hangs: it is given up soon."""
    for name in ("_ANSWER", "_START", "_GONE", "_TERMINATED"):
        monkeypatch.setattr(mps_control, name, SHORT)


@contextlib.contextmanager
def prepared(gmis=HALVES, machine=ONE):
    slices = mps.prepare(gmis, machine)
    try:
        yield slices
    finally:
        slices.release()


@contextlib.contextmanager
def client(slices, spec, *body, **more):
    """A process of the GMI; yields it, what it says first, and its connection."""
    receive, send = CONTEXT.Pipe(duplex=False)
    environment = slices.environment(spec) | {"FAKE_CUDA": os.environ["FAKE_CUDA"]} | more
    process = CONTEXT.Process(target=bodies_mps.client, args=(spec, GPU, environment, send, *body))
    process.start()
    send.close()
    try:
        assert receive.poll(30)
        yield process, receive.recv(), receive
    finally:
        process.kill()
        process.join()
        receive.close()


def seen(slices, spec=HALVES[0], **more):
    """What a process of the GMI saw: whether it is a client, and its SMs; or the error's text."""
    with client(slices, spec, **more) as (_, first, _):
        return first


@pytest.mark.usefixtures("words")
def test_a_gmi_has_its_share_and_nothing_is_left_of_it():
    with prepared() as slices:
        environment = slices.environment(HALVES[1])
        assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
        assert environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
        with client(slices, HALVES[0], bodies_mps.hold) as (_, first, _):
            assert first == (True, 66)
            assert seen(slices, HALVES[1]) == (True, 66)
        assert len(fake_gpus.mps_pids()) == 2  # the daemon and its server
    assert fake_gpus.mps_pids() == []
    slices.release()  # again is fine


def test_shares_are_partitions_where_the_daemon_knows_them(words):
    words("static")
    thirds = [dataclasses.replace(spec, sm_percent=33) for spec in HALVES]
    with prepared(thirds) as slices:
        partitions = {slices.environment(spec)["CUDA_MPS_SM_PARTITION"] for spec in thirds}
        assert len(partitions) == 2
        assert [seen(slices, spec) for spec in thirds] == [(True, 40)] * 2  # 5 chunks of 8
    for percent in (80, None, 5):  # more than there is; no share; less than a chunk
        others = [dataclasses.replace(spec, sm_percent=percent) for spec in HALVES]
        with prepared(others) as slices:
            assert "CUDA_MPS_SM_PARTITION" not in slices.environment(others[0])
            assert seen(slices, others[0]) == (True, 132 * (percent or 100) // 100)


@pytest.mark.usefixtures("words")
def test_one_daemon_for_each_gpu(monkeypatch, tmp_path):
    machine = fake_gpus.topology(2)
    fake_gpus.install(monkeypatch, tmp_path, machine)
    gmis = fake_gpus.specs("mps", machine, per_gpu=2, sm_percent=50)
    with prepared(gmis, machine) as slices:
        pipes = [slices.environment(spec)["CUDA_MPS_PIPE_DIRECTORY"] for spec in gmis]
        assert len(set(pipes)) == 2
        assert pipes[0] == pipes[1]
        assert len(fake_gpus.mps_pids()) == 2
        longest = max(len(f"{pipe}/control_privileged") for pipe in pipes)
        assert longest + 60 - len(os.environ["XDG_RUNTIME_DIR"]) <= 107


@pytest.mark.usefixtures("words")
def test_variables_of_the_user_do_not_reach_the_daemon(monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with prepared() as slices:
        assert seen(slices) == (True, 66)
        (pid, *_) = fake_gpus.mps_pids()
        with open(f"/proc/{pid}/environ") as file:
            variables = dict(v.partition("=")[::2] for v in file.read().split("\0"))
    assert variables["CUDA_VISIBLE_DEVICES"] == GPU.uuid
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in variables


# What a process finds out about its slice ------------------------------------------------------


def test_a_client_that_silently_has_no_mps_is_an_error_with_the_log(words):
    words("dies=2")  # the first is the question whether it is well
    with prepared() as slices:
        assert "806" in seen(slices)  # it dies while the process connects
        error = seen(slices)  # and then nobody answers
    assert "GmiSpec 0: the process is no MPS client" in error
    assert "control.log: " in error


def test_another_share_than_the_specs_is_an_error(words):
    words("percentage=20")
    with prepared() as slices:
        assert "sm_percent=50, 66 of 132 SMs; CUDA gives 26" in seen(slices)
    words("")
    with prepared() as slices:
        assert "CUDA gives 132" in seen(slices, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")
        assert "LIMIT is 0=1M" in seen(slices, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1M")
        assert "(100): no device is visible" in seen(slices, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("one_off", [64, 65, 67, 68])
def test_a_share_rounded_to_pairs_of_sms_is_the_share(monkeypatch, one_off):
    monkeypatch.delenv("CUDA_MPS_SM_PARTITION", raising=False)
    mps._verify_share(HALVES[0], GPU, one_off)
    with pytest.raises(SliceError, match="66 of 132"):
        mps._verify_share(HALVES[0], GPU, one_off + (3 if one_off > 66 else -3))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (806, "MPS_RPC_FAILURE (806): the call to the MPS server failed"),
        (808, "(808): the GPU has no room for another MPS client. Use fewer GMIs"),
        (809, "(809): the GPU has no connections left"),
        (810, "(810): the MPS server has ended this client"),
    ],
)
def test_errors_of_mps_are_told_in_words(words, code, text):
    words(f"lost={code}")
    with prepared() as slices:
        assert text in seen(slices)


def test_a_client_waits_until_the_server_takes_it_and_not_for_ever(words, monkeypatch):
    words("busy=3")
    with prepared() as slices:
        assert seen(slices) == (True, 66)
    words("lost=807")
    with prepared() as slices:
        monkeypatch.setattr(mps, "_LET_IN", timedelta(seconds=0.3))
        for name, value in slices.environment(HALVES[0]).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(mps.cpu, "verify", lambda *_: None)
        with pytest.raises(SliceError, match=r"\(807\): the MPS server takes no clients now"):
            mps.verify(HALVES[0], GPU)


# What goes wrong with a daemon -----------------------------------------------------------------


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
        mps.prepare(HALVES, ONE)
    assert fault in str(caught.value)
    assert fake_gpus.mps_pids() == []
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


def test_missing_programs_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mps_control.missing_programs() == [CONTROL, "nvidia-cuda-mps-server"]
    with pytest.raises(MpsError, match="is not on PATH"):
        mps.prepare(HALVES, ONE)


@pytest.mark.parametrize("text", ["deaf", "deaf,stubborn", "lasting", "mute-later"])
def test_a_daemon_that_does_not_quit_is_made_to(request, words, text):
    words(text)
    with prepared() as slices:
        assert seen(slices) == (True, 66)
        request.getfixturevalue("impatient")
        if text == "mute-later":  # stopped, it neither answers nor ends
            for pid in fake_gpus.mps_pids():
                os.kill(pid, signal.SIGSTOP)
    assert fake_gpus.mps_pids() == []
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


def test_one_that_nothing_ends_stays_noted_for_the_next_run(request, words, monkeypatch):
    words("deaf,stubborn")
    slices = mps.prepare(HALVES, ONE)
    request.getfixturevalue("impatient")
    with monkeypatch.context() as weak:
        weak.setattr(mps_control, "_KILLED", SHORT)
        weak.setattr(mps_control.mps_processes, "signal_all", lambda *_: None)
        with pytest.raises(MpsError, match="outlive SIGKILL"):
            slices.release()
        with pytest.warns(UserWarning, match="outlive SIGKILL"):
            LayoutSlices(Layout("tcg_ex", ONE, tuple(fake_gpus.specs("direct", ONE))))
    assert len(fake_gpus.mps_pids()) == 1
    (swept,) = lease.sweep()
    assert (swept.left.kind, swept.error) == ("mps", "")
    assert fake_gpus.mps_pids() == []


@pytest.mark.usefixtures("words")
def test_a_stale_socket_is_no_daemon(tmp_path):
    daemon = Daemon(tmp_path, GPU.uuid)
    daemon.start()
    for pid in mps_processes.of_pipe(daemon.pipe):
        os.kill(pid, signal.SIGKILL)
    while mps_processes.of_pipe(daemon.pipe):
        time.sleep(0.01)  # between two looks at the kill's effect
    assert (daemon.pipe / "control").exists()
    with pytest.raises(MpsError, match="Cannot find MPS control daemon"):
        daemon.active_thread_percentage()
    daemon.stop()  # nothing runs: fine
    daemon.start()
    assert daemon.active_thread_percentage() == 100
    daemon.stop()


# Clients that are killed -----------------------------------------------------------------------


@pytest.mark.usefixtures("words")
def test_a_fenced_client_is_let_go_before_it_is_killed():
    release = CONTEXT.Event()
    with (
        prepared() as slices,
        client(slices, HALVES[0], bodies_mps.hold_until, release) as (process, _, receive),
        client(slices, HALVES[1], bodies_mps.hold_until, release) as (_, _, other),
    ):
        slices.fence(HALVES[0], process.pid)
        slices.fence(HALVES[0], os.getpid())  # no client: nothing happens
        release.set()
        assert receive.recv() == 810
        assert other.recv() == 0


@pytest.mark.usefixtures("words")
def test_a_daemon_that_hangs_holds_up_only_the_first_of_its_fences(request, monkeypatch):
    monkeypatch.setattr(mps, "_FENCE", SHORT)
    asked = []
    with prepared() as slices, client(slices, HALVES[0], bodies_mps.hold) as (process, _, _):
        for pid in fake_gpus.mps_pids():
            os.kill(pid, signal.SIGSTOP)
        ask = Daemon.ask
        monkeypatch.setattr(Daemon, "ask", lambda *args: asked.append(args) or ask(*args))
        for spec in HALVES:
            slices.fence(spec, process.pid)
        assert len(asked) == 1
        request.getfixturevalue("impatient")


# Others on the machine -------------------------------------------------------------------------


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


@pytest.mark.usefixtures("words")
def test_a_live_check_starts_asks_and_stops(monkeypatch):
    assert mps.live_check(GPU.uuid) == 100
    assert fake_gpus.mps_pids() == []
    monkeypatch.setenv("FAKE_MPS", "refuse")
    with pytest.raises(MpsError, match="permission denied"):
        mps.live_check(GPU.uuid)


LAUNCHER = """
import fake_gpus
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
        "import bodies_mps, fake_gpus; machine = fake_gpus.topology();"
        "bodies_mps.die_at_every_step(machine, fake_gpus.specs('mps', machine, sm_percent=50))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 0, ended.stderr
    died, undone = json.loads(ended.stdout)
    assert died > undone > 10
