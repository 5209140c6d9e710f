"""After a fatal fault of a GPU its GMIs come back together, each once, and the others stay."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

import fake_gpus
from bodies_mps import Computer
from gmi_drl import runtime
from gmi_drl.gmi import DEVICE_FAULT, Gang, GmiDied
from gmi_drl.gmi.backends.mps import MpsSlices, shared_daemons
from gmi_drl.gmi.backends.mps.control import Daemon
from gmi_drl.placement import Layout

LONG = timedelta(seconds=30)
TWO = fake_gpus.topology(2)
FELLOW = "it shared a GPU with gmi 1, which had a fatal fault there"


@pytest.fixture(scope="module", autouse=True)
def _running(tmp_path_factory):
    """One fork server for all tests of this file, on a machine with two fake GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        fake_gpus.install(patch, tmp_path_factory.mktemp("gpus"), TWO)
        runtime.init(["gmi_drl.gmi", "gmi_drl.placement", "bodies_mps"])
        yield
        runtime.shutdown()


def gang(per_gpu=3, backend="mps", **options):
    gmis = fake_gpus.specs(backend, TWO, per_gpu)
    return Gang(Layout("tcg_ex", TWO, tuple(gmis)), Computer, **options)


def until(running, *gmi_ids):
    """Waits until the GMIs have answered; (the CUresult they saw last, their pid) of each."""
    assert running.wait(LONG)
    answers = running.results()
    return [answers[gmi_id] for gmi_id in gmi_ids]


def test_all_of_the_gpu_are_started_again_once_and_those_of_another_go_on(tmp_path):
    with gang(max_restarts=1) as running:
        before = running.call("pid", timeout=LONG)
        computing = {gmi: (tmp_path / str(gmi),) for gmi in (0, 2)}
        running.start_each("compute", computing)
        for gmi in computing:
            _until_there(running, tmp_path / str(gmi))
        running._pending[1] = running._handles[1].faulted_once.remote(tmp_path / "1")
        after = until(running, 0, 1, 2)
        assert [error for error, _ in after] == [0, 0, 0]  # the server took them, and is well
        deaths = running.restarts()
        assert sorted(gmi for gmi, _ in deaths) == [0, 1, 2]
        by_gmi = dict(deaths)
        assert by_gmi[1].exit_code == DEVICE_FAULT
        for fellow in (0, 2):
            assert by_gmi[fellow].reason == FELLOW
        now = running.call("pid", timeout=LONG)
        assert now[:3] == [pid for _, pid in after]
        assert not set(now[:3]) & set(before)
        assert now[3:] == before[3:]
    assert fake_gpus.mps_pids() == []


def test_launches_that_share_a_server_each_come_back_from_a_fault_in_one_of_them(
    tmp_path, monkeypatch
):
    with shared_daemons([device.uuid for device in TWO.devices]) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with gang(1, max_restarts=1) as mine, gang(1, max_restarts=1, name="other") as others:
            before = others.call("pid", timeout=LONG)
            mine.call("pid", timeout=LONG)
            others.start_each("leave_at_a_fault", {0: (tmp_path / "other",)})
            _until_there(others, tmp_path / "other")
            mine.start_each("faulted_once", {0: (tmp_path / "mine",)})
            ((mine_saw, _),) = until(mine, 0)
            ((others_saw, pid),) = until(others, 0)
            assert mine_saw == others_saw == 0  # the server is well, and has taken both
            assert pid != before[0]
            for one in (mine, others):
                ((gmi, death),) = one.restarts()
                assert (gmi, death.exit_code) == (0, DEVICE_FAULT)
            assert others.call("pid", timeout=LONG)[1] == before[1]  # of the other GPU
        assert fake_gpus.mps_pids()  # gangs stop what is theirs
    assert fake_gpus.mps_pids() == []


def _until_there(running, path):
    while not path.exists():
        assert not running.wait(timedelta(milliseconds=5))


def test_gmis_of_a_lost_gpu_can_be_given_up_and_those_of_another_go_on(tmp_path):
    with gang(2, max_restarts=1, shrinks=True) as running:
        running.start_each("lost", {1: ()})
        while not running.lost_devices():
            running.wait(timedelta(milliseconds=5))
        assert list(running.lost_devices()) == [0]
        running.give_up([0, 1], "its device is lost")
        assert running.wait(LONG)  # for nobody
        assert running.results() == {}
        assert len(running.call("pid", timeout=LONG)) == 2
    assert fake_gpus.mps_pids() == []


def test_a_death_that_comes_as_devices_are_looked_at_is_no_failure(monkeypatch):
    with gang(1, shrinks=True) as running:
        look = running._lost.look

        def slow_look():
            seen = dict(look())
            if 0 in running._pending:  # its end comes just after
                runtime.wait([running._process_of[0].death], 1, LONG)
            return seen

        monkeypatch.setattr(running._lost, "look", slow_look)
        running.start_each("lost", {0: ()})
        running.wait(timedelta(0))
        assert list(running.lost_devices()) == [0]
        running.give_up([0], "its device is lost")
        assert running.wait(LONG)
    assert fake_gpus.mps_pids() == []


def test_the_restarts_of_those_it_took_along_count_too(tmp_path):
    with gang(max_restarts=1) as running:
        running.start_each("compute", {0: (tmp_path / "0",)})
        _until_there(running, tmp_path / "0")
        running._pending[1] = running._handles[1].faulted.remote()
        with pytest.raises(GmiDied) as caught:
            running.wait(LONG)
    assert caught.value.gmi_id in (0, 1, 2)
    assert len(caught.value.deaths) == 1


def test_one_that_leaves_by_itself_while_it_is_fenced_begins_no_second_wave(tmp_path, monkeypatch):
    leave = tmp_path / "leave"
    with gang(2, max_restarts=1) as running:
        running.start_each("leave_when", {0: (leave,)})
        dead, other = running._handles[0], running._handles[2]

        def noticed(*_):
            leave.touch()
            while not runtime.deaths(dead):
                runtime.get(other.pid.remote(), LONG)  # time in which the death is collected

        monkeypatch.setattr(Daemon, "terminate", noticed)
        running._pending[1] = running._handles[1].faulted_once.remote(tmp_path / "1")
        assert [error for error, _ in until(running, 0, 1)] == [0, 0]
        assert sorted(gmi for gmi, _ in running.restarts()) == [0, 1]
        before = running.call("pid", timeout=LONG)
        assert running.call("pid", timeout=LONG) == before
        assert running.restarts() == []


def test_the_launcher_hears_of_a_share_that_is_rounded(monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "granule=7")
    with gang(1) as running:
        running.call("pid", timeout=LONG)
        told = {gmi_id: record for gmi_id, record in running.records()}
    assert {record["kind"] for record in told.values()} == {"warning"}
    for gmi_id in (0, 1):
        said = f"GmiSpec {gmi_id}: sm_percent=None, 132 of 132 SMs; CUDA gives 126."
        assert said in told[gmi_id]["message"]


def test_without_mps_a_fault_stays_with_its_process(tmp_path):
    with gang(2, "direct", max_restarts=1) as running:
        before = running.call("pid", timeout=LONG)
        running.start_each("faulted_once", {1: (tmp_path / "1",)})
        ((error, pid),) = until(running, 1)
        assert error == 0
        assert [gmi for gmi, _ in running.restarts()] == [1]
        assert running.call("pid", timeout=LONG) == [before[0], pid, *before[2:]]


def test_gmis_that_do_not_stop_are_detached_before_they_are_killed(tmp_path, monkeypatch):
    asked, terminate = [], Daemon.terminate

    def noted(daemon, pids, timeout):
        lived = [Path(f"/proc/{pid}").exists() for pid in pids]
        told = terminate(daemon, pids, timeout)
        asked.extend((pid, alive, pid in told) for pid, alive in zip(pids, lived, strict=True))

    monkeypatch.setattr(Daemon, "terminate", noted)
    with gang(2, grace=timedelta(milliseconds=50)) as running:
        pids = running.call("pid", timeout=LONG)
        running.start("deaf", tmp_path)
        for pid in pids:
            _until_there(running, tmp_path / str(pid))
    assert sorted(asked) == sorted((pid, True, True) for pid in pids)


def test_gmis_at_work_end_by_themselves_before_anything_is_terminated(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Daemon, "terminate", lambda daemon, pids, timeout: asked.append(pids))
    with gang(4) as running:
        pids = running.call("pid", timeout=LONG)
        running.start("work_until_asked", tmp_path, 0.2)
        for pid in pids:
            _until_there(running, tmp_path / str(pid))
        running.kill()
    assert asked == []
    assert running.pids() == {}


@pytest.mark.usefixtures("_soon")
def test_gmis_that_hang_are_detached_at_once_and_the_server_is_not_left_stuck(
    tmp_path, monkeypatch
):
    # In the three seconds there are, one after the other only one could be let go.
    monkeypatch.setenv("FAKE_MPS", "ending=1.6")
    log, release = [], MpsSlices.release

    def released(slices):
        log.extend(daemon.logs.joinpath("server.log").read_text() for daemon in _daemons(slices))
        release(slices)

    monkeypatch.setattr(MpsSlices, "release", released)
    with gang(4) as running:
        pids = running.call("pid", timeout=LONG)
        running.start("deaf", tmp_path)
        for pid in pids:
            _until_there(running, tmp_path / str(pid))
        running.kill()
    assert len(log) == 2  # GPUs
    assert sum(text.count("terminated") for text in log) == 8
    assert "ended with work under way" not in "".join(log)


def test_the_double_is_stuck_when_a_client_is_killed_at_work(tmp_path, monkeypatch):
    monkeypatch.setattr(Gang, "_fence", lambda *_: None)
    with gang(2) as running:
        pids = running.call("pid", timeout=LONG)
        running.start("deaf", tmp_path)
        for pid in pids:
            _until_there(running, tmp_path / str(pid))
        (slices,) = running._slices._by_backend.values()
        os.kill(pids[0], signal.SIGKILL)
        log = next(iter(slices._daemons.of.values())).logs / "server.log"
        while "ended with work under way" not in log.read_text():
            time.sleep(0.005)  # between two looks


def _daemons(slices):
    return list(slices._daemons.of.values())


@pytest.fixture
def _soon(monkeypatch):
    """GMIs that do not answer are given up soon."""
    monkeypatch.setattr("gmi_drl.gmi.gang._FINISH", timedelta(milliseconds=50))


def test_a_fault_without_restarts_names_the_gmi_that_had_it():
    with gang(2) as running:
        running.start_each("faulted", {1: ()})
        with pytest.raises(GmiDied, match="exited with code 86") as caught:
            running.wait(LONG)
    assert caught.value.gmi_id == 1
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"])  # the runtime's alone
    assert fake_gpus.mps_pids() == []
