"""`list_runs`: what runs wrote, however damaged."""

import json
import time
from pathlib import Path

import pytest

from gmi_drl.launcher.folder.run_folder import lock_of
from gmi_drl.report.run_list import list_runs
from gmi_drl.runtime import shared_lock


def make_run(folder, name="ant", stamp="t0", run=None, metrics=""):
    path = folder / name / stamp
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("version: 1\n")
    if run is not None:
        (path / "run.json").write_text(run if isinstance(run, str) else json.dumps(run))
    (path / "metrics.jsonl").write_text(metrics)
    return path


def metric(**values):
    return json.dumps(values) + "\n"


def test_finished_runs_are_listed_oldest_first(tmp_path, monkeypatch):
    done = {"state": "finished", "pid": 1, "iteration": 9, "steps": 900, "return_mean": 3.5}
    make_run(tmp_path, "b", run={**done, "started": 10.0, "steps_per_s": 70.0})
    make_run(tmp_path, "a", run={**done, "started": 20.0, "state": "stopped"})
    first, second = list_runs(tmp_path)
    assert (first.name, first.state, first.iteration, first.steps) == ("b", "finished", 9, 900)
    assert (first.return_mean, first.steps_per_s) == (3.5, 70.0)
    assert (second.name, second.state, second.steps_per_s) == ("a", "stopped", None)
    assert [run.name for run in list_runs(tmp_path / "a")] == ["a"]
    assert [run.name for run in list_runs(tmp_path / "a" / "t0")] == ["a"]
    monkeypatch.chdir(tmp_path / "a")
    assert [run.name for run in list_runs(Path("t0"))] == ["a"]


def test_a_running_run_shows_what_its_metrics_say_now(tmp_path):
    state = {"state": "running", "pid": 1, "started": 1.0, "steps": 1}
    lines = metric(iteration=1, steps=100) + metric(iteration=2, steps=200) + '{"iteration": 3, "st'
    path = make_run(tmp_path, run=state, metrics=lines)
    lock_of(path).touch()
    lock = shared_lock.begin(lock_of(path))
    (run,) = list_runs(tmp_path)
    shared_lock.release(lock)
    assert (run.state, run.iteration, run.steps) == ("running", 2, 200)


def test_a_run_of_a_thousand_gmis_is_listed_by_its_last_line(tmp_path):
    seconds = [{"simulate": 0.123456, "infer": 0.123456, "train": 0.123456, "reduce": 0.1}] * 1000
    line = metric(iteration=1, steps=100, gmi_seconds=seconds)
    make_run(tmp_path, run={"state": "failed"}, metrics=line)
    (run,) = list_runs(tmp_path)
    assert (run.iteration, run.steps) == (1, 100)


@pytest.mark.parametrize("pid", [1, -1, "7", 1e300, None])
def test_a_run_that_nobody_trains_any_more_has_failed(tmp_path, pid):
    """Whatever its run.json says; process 1 lives."""
    run = {"state": "running", "pid": pid, "started": time.time()}
    lock_of(make_run(tmp_path, stamp="killed", run=run)).touch()
    make_run(tmp_path, stamp="without layout", run=run)
    assert [run.state for run in list_runs(tmp_path)] == ["failed", "failed"]


def test_damaged_folders_are_listed_as_such(tmp_path):
    make_run(tmp_path, stamp="none")
    make_run(tmp_path, stamp="torn", run='{"state": "fin')
    make_run(tmp_path, stamp="list", run="[1]")
    make_run(tmp_path, stamp="odd", run={"state": "finished", "steps": "many", "started": None})
    make_run(tmp_path, stamp="binary", run="{}", metrics="\0\0\n[]\n")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "a-file").write_text("")
    runs = {run.path.name: run for run in list_runs(tmp_path)}
    assert sorted(runs) == ["binary", "list", "none", "odd", "torn"]
    assert runs["torn"].state == runs["none"].state == runs["list"].state == "damaged"
    assert (runs["odd"].state, runs["odd"].steps) == ("damaged", None)


def test_a_run_whose_run_json_is_no_file_is_damaged_and_runs_may_have_that_name(tmp_path):
    for stamp, have in (("empty", "run.json"), ("pair", "run.json"), ("link", "metrics.jsonl")):
        (tmp_path / "ant" / stamp).mkdir(parents=True)
        if stamp == "link":
            (tmp_path / "ant" / stamp / have).symlink_to(tmp_path / "nowhere")
        else:
            (tmp_path / "ant" / stamp / have).mkdir()
    (tmp_path / "ant" / "pair" / "config.yaml").write_text("version: 1\n")
    make_run(tmp_path, "run.json", run={"state": "finished"})
    found = {run.path.name: run.state for run in list_runs(tmp_path)}
    assert found == {"empty": "damaged", "pair": "damaged", "link": "damaged", "t0": "finished"}


def test_a_folder_that_is_not_there_has_no_runs(tmp_path):
    assert list_runs(tmp_path / "nowhere") == []
