"""GMIs as threads of one process: each on its slice, with the gang's promises kept."""

import os
import signal
from datetime import timedelta

import pytest

import faults
from bodies_gmi import Stepper
from gmi_drl import runtime
from gmi_drl.gmi import Gang, GmiDied, SliceError
from gmi_drl.gmi.backends.cpu import CpuBackend
from gmi_drl.gmi.process import grouped
from gmi_drl.placement import GmiSpec, Layout, Topology

LONG = timedelta(seconds=30)
CORES = sorted(os.sched_getaffinity(0))
ROLES = ("simulator", "trainer")


@pytest.fixture(scope="module", autouse=True)
def _running():
    runtime.init(["torch", "gmi_drl.gmi", "gmi_drl.placement"])
    yield
    runtime.shutdown()


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    monkeypatch.setattr(
        CpuBackend, "gmis_are_threads", True
    )  # the affinity of a thread is its own, too


def layout(*gpu_ids, cores=None):
    """A GMI on each of these devices, with a core of its own."""
    gmis = tuple(
        GmiSpec(i, gpu, ROLES, "cpu", (CORES[i % len(CORES)],) if cores is None else cores[i], 4)
        for i, gpu in enumerate(gpu_ids)
    )
    return Layout("tcg_ex", Topology.from_cores(CORES, max(gpu_ids) + 1), gmis)


def gang(*script, gpu_ids=(0, 0), **options):
    return Gang(layout(*gpu_ids), Stepper, lambda spec: (spec, script), **options)


def test_a_device_is_a_process_and_a_gmi_is_a_thread_with_its_slice():
    assert [[s.gmi_id for s in its] for its in grouped(layout(0, 1, 0, 1), {0, 1, 3})] == [
        [0],
        [1, 3],
    ]
    with gang(gpu_ids=(0, 1, 0)) as running:
        pids = running.call("pid", timeout=LONG)
        assert pids[0] == pids[2] != pids[1]
        assert running.pids() == dict(enumerate(pids))
        assert running.call("ping", 10, timeout=LONG) == [10, 11, 12]
        seen = [(cores, threads) for cores, threads, _ in running.call("slice", timeout=LONG)]
    assert seen == [({CORES[i % len(CORES)]}, 1) for i in range(3)]


def test_records_have_the_gmi_that_emitted_them_and_all_speak_in_one_log(tmp_path):
    with gang(logs=tmp_path) as running:
        assert running.call("run", 3, timeout=LONG) == [3, 3]
        records = running.records()
        for gmi_id in (0, 1):
            assert [step for g, step in records if g == gmi_id] == [0, 1, 2]
        assert running.records() == []
    assert not (tmp_path / "gmi0.log").is_symlink()
    assert (tmp_path / "gmi1.log").read_text().splitlines().count("step 2") == 2


def test_stop_lets_all_threads_finish_what_they_do():
    with gang() as running:
        running.start("run")
        while {gmi_id for gmi_id, _ in running.records()} != {0, 1}:
            assert not running.wait(timedelta(milliseconds=5))
        running.request_stop()
        assert running.wait(LONG)
        assert all(steps > 0 for steps in running.results().values())
    assert running.pids() == {}


@pytest.mark.parametrize("step", [-1, 5])
def test_one_that_raises_is_named_not_its_fellow(step):
    fault = faults.raise_error(gmi=1, at_step=step)
    with gang(fault) as running, pytest.raises(GmiDied, match="Injected: gmi 1") as caught:
        running.call("run", timeout=LONG)
    assert (caught.value.gmi_id, caught.value.others, caught.value.stopped) == (1, (), (0,))


def test_a_slice_that_cannot_be_had_is_an_error_of_that_gmi(monkeypatch):
    monkeypatch.setattr("gmi_drl.gmi.process._cores", lambda specs: ())  # else the fork fails
    refused = layout(0, 0, cores=[(CORES[0],), (4000,)])
    with (
        Gang(refused, Stepper) as running,
        pytest.raises(GmiDied, match=r"gmi 1 \(simulator\+trainer\) raised") as caught,
    ):
        running.call("ping", timeout=LONG)
    assert isinstance(caught.value.__cause__, SliceError)


def test_a_death_is_that_of_all_threads_and_all_come_back(tmp_path):
    with gang(max_restarts=1) as running:
        before, _ = running.call("pid", timeout=LONG)
        running.start_each("die_once", {0: (tmp_path / "died",)})
        assert running.wait(LONG)
        ((pid, cores, _),) = running.results().values()
        assert (pid != before, cores) == (True, {CORES[0]})
        assert running.call("pid", timeout=LONG) == [pid, pid]
        found = [cores for cores, *_ in running.call("slice", timeout=LONG)]
        assert found == [{CORES[0]}, {CORES[1 % len(CORES)]}]
        assert [gmi_id for gmi_id, _ in running.restarts()] == [0, 1]


@pytest.mark.parametrize(
    ("fault", "exit_code", "by_signal"),
    [
        (faults.kill(gmi=1, at_step=2), None, signal.SIGKILL),
        (faults.leave(gmi=1, at_step=2, code=3), 3, None),
        (faults.Fault(1, 2, "sys.exit 4"), 4, None),
    ],
)
def test_how_the_process_of_threads_ended_is_told(fault, exit_code, by_signal):
    with gang(fault) as running, pytest.raises(GmiDied) as caught:
        running.call("run", timeout=LONG)
    error = caught.value
    assert (error.exit_code, error.signal, error.gmi_id) == (exit_code, by_signal, 0)
    assert (error.others, error.stopped) == ((1,), ())
