"""The suite of the paper's experiments: planned, stopped, gone on with and reported, on cores."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from gmi_drl.gmi import lease

TESTS = Path(__file__).resolve().parents[1]
GPU = TESTS.parent / "bench" / "gpu"
_DEADLINE_S = 50


@pytest.fixture
def suite(monkeypatch):
    """The scripts find each other in their own folders, and are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.path[:0] = [str(GPU), str(GPU.parent)]
    import suite

    yield suite
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(GPU.parent)):
            del sys.modules[name]


@pytest.fixture
def stage(suite):
    return suite.dry_stage("BallBalance-v0", "torch", (0, 1))


@pytest.fixture
def measured(suite, monkeypatch):
    """Cells are not run: they take a second of a clock that only they move."""
    clock = [0.0]
    monkeypatch.setattr(suite.time, "monotonic", lambda: clock[0])
    ran = []

    def record(cell, stage, deadline_s):
        clock[0] += 1.0
        ran.append(cell["key"])
        found = {**cell, "left": [], "wall_s": 1.0}
        if cell["kind"] == "rate":
            what = cell["what"]
            rate = 1000.0 * what["num_env"] ** 0.5 * what["gmis"]
            phases = {"simulate": 0.75, "train": 0.25}
            return found | {"steps_per_s": rate, "predictions_per_s": rate, "phases": phases,
                            "host_bytes": 2**30, "cores": 1.0}  # fmt: skip
        if cell["kind"] == "curve":
            return found | {"points": [[1.0, 10, 5.0], [2.0, 20, 7.0]], "return_mean": 7.0,
                            "steps": 20}  # fmt: skip
        if cell["kind"] == "reduction":
            rows = [{"strategy": "mpr", "nbytes": 200_000, "us": 20.0, "spread": [19.0, 21.0]},
                    {"strategy": "ipc", "nbytes": 200_000, "us": 5.0, "spread": [4.0, 6.0]},
                    {"strategy": "mrr", "refused": "one device"}]  # fmt: skip
            return found | {"rows": rows, "ranks": 2}
        return found | {"rows": [{"gmis": 1, "slices_s": 0.1, "torch_s": 0.2, "end_s": 0.1}]}

    monkeypatch.setattr(suite, "measured", record)
    monkeypatch.setattr(suite, "busy_cores", lambda cores, seconds: 1.2)
    return ran


def stored(suite, stage, path):
    return suite.Store.open(path, suite.identity(stage, []))[0]


def test_every_experiment_has_a_row_before_any_has_its_second_repeat(suite, stage, measured):
    todo = suite.cells(stage, 3)
    assert len({cell.key for cell in todo}) == len(todo)
    firsts = [cell.repeat for cell in todo]
    assert firsts == sorted(firsts)
    blocks = [(cell.experiment, cell.block) for cell in todo]
    started = list(dict.fromkeys(blocks))[: len(suite.EXPERIMENTS)]
    assert {experiment for experiment, _ in started} == set(suite.EXPERIMENTS)
    for block in dict.fromkeys(blocks):  # what is compared runs one after the other
        at = [place for place, cell in enumerate(todo) if cell.repeat == 0
              and (cell.experiment, cell.block) == block]  # fmt: skip
        assert at == list(range(at[0], at[0] + len(at))) if at else block[1] == "ladder"


def test_a_gpu_has_every_backend_beside_the_exclusive_process(suite):
    from gmi_drl.placement import Device, Topology

    gpus = tuple(Device(i, "gpu", "NVIDIA H200", (i,), f"GPU-{i}", 132) for i in range(2))
    topology = Topology(gpus, unusable=(("green", "no cuda-bindings"),))
    stage = suite.gpu_stage("Ant-v5", "warp", topology, (True, False))
    sides = {}
    for cell in suite.cells(stage, 1):
        sides.setdefault((cell.experiment, cell.block), []).append(cell.side)
    for experiment in ("training", "serving"):
        ladder = sides[experiment, "ladder"]
        assert {"4096 captured", "4096 eager"} <= set(ladder)
        for k in (2, 4, 8):
            assert sides[experiment, f"{k} GMIs"] == ["exclusive", "direct", "mps"]
        assert sides[experiment, "1 GMIs"] == ["exclusive", "mps"]
    assert sides["devices", "sync"] == ["one device", "2 devices", "2 devices, 4 GMIs each"]
    assert stage.unusable == {"green": "no cuda-bindings"}


def test_what_is_launched_on_gpus_passes_the_checks_of_a_launch(suite, tmp_path):
    """Where there is no GPU, as far as that goes: every config, on a machine that is not there."""
    from suite_cells import config_of

    from gmi_drl.placement import Device, Topology, check, load_config

    layout = tmp_path / "layout.yaml"
    layout.write_text((TESTS.parent / "examples" / "layouts" / "one_device.yaml").read_text())
    best = {"steps_per_s": 1.0, "what": {"num_env": 4096}}
    ladders = {"training/ladder/4096#0": best, "serving/ladder/4096#0": best}
    for count in (1, 2):
        gpus = tuple(
            Device(i, "gpu", "NVIDIA H200", tuple(range(8 * i, 8 * i + 8)), f"GPU-{i}", 132,
                   141 << 30, (9, 0))
            for i in range(count)
        )  # fmt: skip
        stage = suite.gpu_stage("BallBalance-v0", "torch", Topology(gpus), ())
        for cell in suite.cells(stage, 1):
            what = {**suite.resolved(cell, ladders)["what"], "layout_file": str(layout)}
            for gmis in what["gmis"] if cell.kind == "start" else [what["gmis"]]:
                config = load_config(config_of({**what, "gmis": gmis}, asdict(stage)))
                assert check(config, Topology(gpus[: what["devices"]])) == [], cell.key


def test_the_baseline_is_the_ladders_best_and_gmis_share_its_environments(
    suite, stage, measured, tmp_path
):
    store = stored(suite, stage, tmp_path / "suite.json")
    suite.run(store, stage, suite.cells(stage, 1, ["training"]), 600.0)
    chosen = {key: record["what"]["num_env"] for key, record in store.records.items()}
    assert chosen["training/2 GMIs/exclusive#0"] == 256
    assert chosen["training/2 GMIs/cpu#0"] == 128
    assert chosen["training/2 GMIs, as many environments in each/cpu#0"] == 256


def test_what_the_budget_does_not_hold_is_listed_and_run_the_next_time(
    suite, stage, measured, tmp_path
):
    path, todo = tmp_path / "suite.json", suite.cells(stage, 2)
    suite.run(stored(suite, stage, path), stage, todo, 20.0)
    first = suite.Store.read(path)
    assert 0 < len(measured) < len(todo)
    assert [one["key"] for one in first.not_run] == [c.key for c in todo if c.key not in measured]
    assert not any(key.endswith("#1") for key in measured)
    suite.run(stored(suite, stage, path), stage, todo, 600.0)
    assert sorted(measured) == sorted(cell.key for cell in todo)  # nothing twice
    assert suite.Store.read(path).not_run == []


def test_without_its_ladder_a_baseline_is_not_run(suite, stage, measured, tmp_path, monkeypatch):
    fails = {"failed": "refused", "why": "no", "left": [], "wall_s": 1.0}
    monkeypatch.setattr(suite, "measured", lambda cell, *_: {**cell, **fails})
    store = stored(suite, stage, tmp_path / "suite.json")
    suite.run(store, stage, suite.cells(stage, 1, ["training"]), 600.0)
    assert {key.split("/")[1] for key in store.records} == {"ladder"}
    assert {one["why"].rpartition(": ")[2] for one in store.not_run} == {"no ladder"}


def test_what_other_code_measured_is_another_suite(suite, stage, measured, tmp_path, monkeypatch):
    path = tmp_path / "suite.json"
    store = stored(suite, stage, path)
    suite.run(store, stage, suite.cells(stage, 1, ["start"]), 600.0)
    with monkeypatch.context() as changed:
        changed.setattr(sys.modules["suite_store"], "source_digest", lambda: "another")
        anew, said = suite.Store.open(path, suite.identity(stage, []))
        assert (anew.records, path.exists()) == ({}, False)
        kept = tmp_path / f"suite-{store.head['suite']}.json"
        assert kept.name in said
        assert suite.Store.read(kept).records == store.records
        anew.write()
    assert stored(suite, stage, path).records == store.records  # the code is as it was
    assert not kept.exists()


def test_a_ratio_across_suites_is_refused(suite, stage, measured, tmp_path, capsys):
    path = tmp_path / "suite.json"
    store = stored(suite, stage, path)
    suite.run(store, stage, suite.cells(stage, 1), 600.0)
    from suite_rows import rows_of

    key = "training/2 GMIs/exclusive#0"
    store.records[key] = {**store.records[key], "suite": "of-another"}
    with pytest.raises(suite.MixedSuites, match=f"is of suite .*{key} of of-another"):
        rows_of(store)
    store.write()
    assert suite.main(["--report", str(path)]) == 2
    said = capsys.readouterr()
    assert "cells of different runs are not compared" in said.err
    assert said.out == ""


def test_the_report_is_made_of_a_stored_file_alone(suite, stage, measured, tmp_path, capsys):
    path = tmp_path / "suite.json"
    suite.run(stored(suite, stage, path), stage, suite.cells(stage, 3), 600.0)
    ran = len(measured)
    assert suite.main(["--report", str(path)]) == 0
    assert len(measured) == ran
    said = capsys.readouterr()
    rows = {row["name"]: row for row in map(json.loads, said.out.splitlines())}
    # steps/s go with the root of num_env, and with k: 2 / sqrt(2) for as many in all
    assert rows["training/2 GMIs/cpu"]["ratio"] == pytest.approx(2**0.5, abs=1e-4)
    assert rows["training/2 GMIs/cpu"]["repeats"] == 3
    each = rows["serving/2 GMIs, as many environments in each/cpu"]
    assert each["ratio"] == 2.0
    assert rows["reduction/1 x 2/cpu/ipc/200000B"]["ratio"] == 4.0
    assert rows["learning/curve/2 cpu"]["value"] == 7.0
    assert all(row["note"] and row["machine"] and row["commit"] for row in rows.values())
    err = " ".join(said.err.split())
    assert "says nothing of a GPU" in err
    assert "Other programs kept up to 1.2 cores busy meanwhile." in err
    assert "packing pays up to 512 (1.41x, 1.41 to 1.41), and where it stops lies beyond" in err
    pictures = {picture.name for picture in tmp_path.glob("*.png")}
    assert pictures == {"throughput.png", "num_env.png", "reduction.png", "learning.png"}


def test_on_a_gpu_ratios_are_over_the_captured_and_over_the_eager_process(
    suite, measured, tmp_path, capsys, monkeypatch
):
    """The command from end to end, but for the cells; an eager process has half the speed."""
    from types import SimpleNamespace

    from gmi_drl.placement import Device, Topology

    gpu = Device(0, "gpu", "NVIDIA H200", (0, 1), "GPU-0", 132, 141 << 30, (9, 0))
    monkeypatch.setattr(suite, "discover", lambda: Topology((gpu,), unusable=(("mps", "no"),)))
    monkeypatch.setattr(suite, "look", lambda: SimpleNamespace(driver="580"))
    monkeypatch.setattr(suite, "check_env", lambda *_: [])
    fake = suite.measured

    def slower(cell, *rest):
        found = fake(cell, *rest)
        if cell["what"].get("capture") is False:
            found["steps_per_s"] /= 2
        return found

    monkeypatch.setattr(suite, "measured", slower)
    assert suite.main(["--repeats", "1", "--minutes", "60", "--results", str(tmp_path)]) == 0
    records = suite.Store.read(tmp_path / "nvidia-h200" / "suite.json").records
    assert records["training/4 GMIs/green#0"]["what"]["capture"] is True
    assert records["experience/async/async#0"]["what"]["gmis"] == 2  # both on the one GPU
    said = capsys.readouterr()
    rows = {row["name"]: row for row in map(json.loads, said.out.splitlines())}
    assert rows["training/4 GMIs/green"]["ratio"] == 2.0
    assert rows["training/4 GMIs/green over eager"]["ratio"] == 4.0
    assert not any("note" in row for row in rows.values())
    assert "mps: not here: no" in said.err
    assert "k = 8 8.00x, one repeat (direct, 4,096 each); most at k = 8." in " ".join(
        said.err.split()
    )


def test_where_packing_stops_is_said_with_the_phases(suite, stage, tmp_path):
    from suite_statement import statement

    def row(total, ratio):
        peer = {"num_env": total, "phases": {"simulate": 0.75, "train": 0.25}}
        return {"experiment": "num_env", "side": "2 cpu", "network": "ant", "gmis": 2,
                "backend": "cpu", "ratio": ratio, "ratio_spread": [0, 2], "repeats": 1,
                "value": 1000.0 * ratio, "peer": 1000.0,
                "phases": {"simulate": 0.5, "reduce": 0.5}, "peer_setting": peer}  # fmt: skip

    store = stored(suite, stage, tmp_path / "suite.json")
    *_, said = statement(store, [row(32, 0.9), row(128, 1.2), row(512, 0.8)])
    assert (
        "packing pays up to 128 (1.20x, one repeat), though not at 32 (0.90x, one repeat), "
        "does not pay at 512 (0.80x, one repeat)." in said
    )
    # of 1 s and of 1.25 s for 1,000 steps
    assert "simulate 750.00 -> 625.00 ms" in said
    assert "reduce 0.00 -> 625.00 ms (0 -> 50 %)" in said


def test_a_machine_without_a_gpu_is_told_so(suite, capsys, monkeypatch):
    from gmi_drl.placement import Topology

    monkeypatch.setattr(suite, "discover", lambda: Topology.from_cores((0, 1)))
    assert suite.main([]) == 0
    assert capsys.readouterr().out.startswith("no GPU here: nothing measured")


def test_a_cell_that_hangs_is_a_record_and_is_ended(suite, monkeypatch, tmp_path):
    """That nothing of it is left is checked after every test."""
    import suite_run

    (tmp_path / "suite_run.py").write_text(
        "import subprocess, time\nprint('so far', flush=True)\n"
        "subprocess.Popen(['sleep', '60'])\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(suite_run, "HERE", tmp_path)
    daemon, gone = (lease.Left("mps", tmp_path, (), same_boot=True) for _ in range(2))
    swept = [lease.Swept(daemon, undone=True), lease.Swept(gone)]
    monkeypatch.setattr(lease, "sweep", lambda: swept)
    record = suite_run.measured({"key": "a"}, {}, 1.0)
    assert (record["failed"], record["left"]) == ("hang", ["what a lease of mps held, undone"])
    assert record["why"] == "was not done after 1 s\nso far"


def started(folder, *arguments):
    """A dry suite of its own, with what the tests keep private."""
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    command = f"import private_leases, sys; sys.path.insert(0, {str(GPU)!r}); import suite; " + (
        f"sys.exit(suite.main({['--dry', '--results', str(folder), *arguments]!r}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_dry_suite_that_is_killed_goes_on_and_runs_nothing_twice(suite, tmp_path):
    path, key = tmp_path / "dry-cpu" / "suite.json", "experience/channels/ucc#0"
    arguments = ("--only", "experience", "--repeats", "1")
    with started(tmp_path, *arguments) as first:
        assert first.stdout is not None
        assert key in first.stdout.readline()
        end_s = time.monotonic() + _DEADLINE_S
        while len(psutil.Process(first.pid).children(recursive=True)) < 3:  # the next has begun
            assert time.monotonic() < end_s, "no cell has begun"
            time.sleep(0.01)  # between two looks
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
    stage = suite.dry_stage("BallBalance-v0", "torch", sorted(os.sched_getaffinity(0)))
    assert list(after) == [cell.key for cell in suite.cells(stage, 1, ["experience"])]
    assert not any("failed" in record or record["left"] for record in after.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "names"),
    [
        ("serving", {"steps_per_s", "phases", "host_bytes", "cores"}),
        ("learning", {"points", "return_mean", "steps"}),
        ("reduction", {"rows", "ranks"}),
        ("start", {"rows"}),
        ("devices", {"steps_per_s"}),
    ],
)
def test_a_real_cell(suite, stage, experiment, names):
    best = {"steps_per_s": 1.0, "what": {"num_env": 64}}
    ladders = {"training/ladder/64#0": best, "serving/ladder/64#0": best}
    cell = suite.cells(stage, 1, [experiment])[-1]  # of several GMIs, or devices
    record = suite.measured(suite.resolved(cell, ladders), asdict(stage), cell.deadline_s)
    assert "failed" not in record, record["why"]
    assert record.keys() >= names
    assert record["left"] == []


@pytest.mark.gpu
@pytest.mark.slow
def test_gmis_start_on_a_gpu(suite, tmp_path):
    assert suite.main(["--minutes", "0.8", "--only", "start", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/suite.json")
    records = suite.Store.read(path).records.values()
    assert {row["gmis"] for record in records for row in record["rows"]} == {1, 2, 4, 8}
