"""Cells of the suite in processes of their own: real ones, ones that hang, ones that are killed."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from gmi_drl.gmi import lease
from gmi_drl.runtime.cache_files import locked
from suite_records import ladders_of
from waits import until

TESTS = Path(__file__).resolve().parents[1]
BENCH = TESTS.parent / "bench"
_DEADLINE_S = 50


def test_a_cell_that_hangs_is_a_record_and_is_ended(suite, monkeypatch, tmp_path):
    """That nothing of it is left is checked after every test."""
    from gpu.suite import cell_process

    (tmp_path / "cell_process.py").write_text(
        "import subprocess, time\nprint('so far', flush=True)\n"
        "subprocess.Popen(['sleep', '60'])\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(cell_process, "HERE", tmp_path)
    daemon, gone = (lease.LeaseNotes("mps", tmp_path, (), same_boot=True) for _ in range(2))
    swept = [lease.SweptLease(daemon, undone=True), lease.SweptLease(gone)]
    monkeypatch.setattr(lease, "sweep", lambda: swept)
    monkeypatch.setattr(cell_process, "_TELLS_S", 0.3)
    told = []
    record = cell_process.measured({"key": "a"}, {}, 1.0, tmp_path, told.append)
    assert len(told) >= 2
    assert (record["failed"], record["left"]) == ("hang", ["what a lease of mps held, undone"])
    assert record["why"] == "was not done after 1 s\nso far"


def started(folder, *arguments):
    """A dry suite of its own, with what the tests keep private."""
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    command = (
        f"import private_leases, sys; sys.path.insert(0, {str(BENCH)!r})\n"
        "from gpu.suite import suite\n"
        f"sys.exit(suite.main({['--dry', '--results', str(folder), *arguments]!r}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_dry_suite_that_is_killed_goes_on_and_runs_nothing_twice(suite, tmp_path):
    path, key = tmp_path / "dry-cpu" / "suite.json", "reduction/1 x 2/cpu#0"
    arguments = ("--only", "reduction", "--repeats", "1")
    with started(tmp_path, *arguments) as first:
        assert first.stdout is not None
        while "measured" not in (line := first.stdout.readline()):
            assert "so far" in line, line + first.stdout.read()
        assert key in line
        program = psutil.Process(first.pid)
        until(lambda: len(program.children(recursive=True)) >= 3, "the next cell", _DEADLINE_S)
        with locked(path.parent / ".kept" / "cell.lock", timedelta(0)) as lock:
            assert lock.holder == "reduction/2 x 1/cpu#0"  # until it has ended, whoever is killed
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=_DEADLINE_S)
    before = suite.Store.read(path).records
    assert list(before) == [key]
    with started(tmp_path, *arguments) as again:
        said, _ = again.communicate(timeout=_DEADLINE_S)
    assert again.returncode == 0, said
    assert "going on with suite" in said
    after = suite.Store.read(path).records
    assert after[key] == before[key]
    assert f"{key}: " not in said
    cores = sorted(os.sched_getaffinity(0))
    stage = suite.dry_stage("BallBalance-v0", "torch", cores, suite.check_env)
    assert list(after) == [cell.key for cell in suite.cells(stage, 1, ["reduction"])]
    assert not any("failed" in record or record["left"] for record in after.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "names"),
    [
        ("serving", {"steps_per_s", "phases", "host_bytes", "cores", "gmi_mem_bytes"}),
        ("learning", {"points", "return_mean", "steps"}),
        ("reduction", {"rows", "ranks"}),
        ("start", {"rows"}),
        ("devices", {"steps_per_s"}),
        ("precision", {"steps_per_s", "gmi_mem_bytes"}),
    ],
)
def test_a_real_cell(suite, stage, experiment, names, tmp_path):
    cell = suite.cells(stage, 1, [experiment])[-1]  # of several GMIs, or devices
    filled = suite.resolved(cell, ladders_of(64))
    record = suite.measured(filled, asdict(stage), cell.deadline_s, tmp_path / "kept")
    assert "failed" not in record, record["why"]
    assert record.keys() >= names
    assert record["left"] == []


@pytest.mark.slow
def test_the_real_tuner_chooses_in_its_cell_and_goes_on_from_its_record(suite, stage, tmp_path):
    stage = replace(stage, tune_s=6.0, caps=(64,))
    cell = next(cell for cell in suite.cells(stage, 1, ["tuner"]) if cell.kind == "tune")

    def tuned():
        filled = suite.resolved(cell, {})
        return suite.measured(filled, asdict(stage), cell.deadline_s, tmp_path / "kept")

    record = tuned()
    assert "failed" not in record, record["why"]
    assert record["left"] == []
    tried = [(one["gmis"], one["num_env"]) for one in record["candidates"]]
    choice = record["choice"]
    assert (choice["gmis"], choice["num_env"]) in tried
    assert all(gmis in (1, 2) and gmis * num_env <= 64 for gmis, num_env in tried)
    again = tuned()
    assert {**again, "wall_s": 0} == {**record, "wall_s": 0}  # nothing is measured twice


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("capture", [True, False])
def test_one_process_on_a_gpu_is_captured_or_eager_as_its_cell_says(suite, tmp_path, capture):
    from gmi_drl.gmi import discover

    stage = suite.gpu_stage("BallBalance-v0", "torch", discover(), suite.check_env)
    ladder = suite.cells(stage, 1, ["training"])[: 2 * len(stage.ladder)]
    cell = next(cell for cell in ladder if cell.what["capture"] is capture)
    filled = suite.resolved(cell, {})
    record = suite.measured(filled, asdict(stage), cell.deadline_s, tmp_path / "kept")
    assert "failed" not in record, record["why"]
    assert "not_captured" not in record
    assert 0 < record["gmi_mem_share"] <= 1
    assert record["left"] == []


@pytest.mark.gpu
@pytest.mark.slow
def test_gmis_start_on_a_gpu(suite, tmp_path):
    assert suite.main(["--minutes", "0.8", "--only", "start", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/suite.json")
    records = suite.Store.read(path).records.values()
    assert {row["gmis"] for record in records for row in record["rows"]} == {1, 2, 4, 8}
