"""The suite of the paper's experiments: planned, stopped, gone on with and reported, on cores."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from gmi_drl.gmi import lease
from gmi_drl.runtime.kept import locked

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
    return suite.dry_stage("BallBalance-v0", "torch", (0, 1), suite.check_env)


def tuned_record(what):
    """What a tuner finds where two GMIs pay up to 64 environments, and not at 256."""

    def one(gmis, num_env, rate, **phases):
        return {"gmis": gmis, "num_env": num_env, "backend": what["backend"], "steps_per_s": rate,
                "error": 0.01, "phases": phases}  # fmt: skip

    tried = [one(1, 64, 1000.0, simulate=1.0), one(1, 256, 2500.0, simulate=1.0),
             one(2, 32, 1500.0, simulate=0.5, train=0.5),
             one(2, 128, 2000.0, simulate=0.5, train=0.5)]  # fmt: skip
    choice = {"gmis": 1, "num_env": 256, "backend": what["backend"], "capture": what["capture"]}
    return {"choice": choice, "steps_per_s": 2500.0, "error": 0.01, "why": "it is fastest",
            "complete": True, "profiles": 5, "space": 20, "spent_s": 14.0, "candidates": tried,
            "refused": []}  # fmt: skip


@pytest.fixture
def measured(suite, monkeypatch):
    """Cells are not run: they take a second of a clock that only they move."""
    clock = [0.0]
    monkeypatch.setattr(suite.time, "monotonic", lambda: clock[0])
    ran = []

    def record(cell, stage, deadline_s, kept, tells):
        clock[0] += 1.0
        ran.append(cell["key"])
        found = {**cell, "left": [], "wall_s": 1.0}
        if cell["kind"] == "tune":
            return found | tuned_record(cell["what"])
        if cell["kind"] == "warm":
            return found | {"compiled_s": 34.0}
        if cell["kind"] == "rate":
            what = cell["what"]
            rate = 1000.0 * what["num_env"] ** 0.5 * what["gmis"]
            phases = {"simulate": 0.75, "train": 0.25}
            return found | {"steps_per_s": rate, "predictions_per_s": rate, "phases": phases,
                            "host_bytes": 2**30, "cores": 1.0, "gmi_mem_bytes": 2**29,
                            "gmi_mem_share": 0.25}  # fmt: skip
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


def ladders_of(num_env, env="BallBalance-v0"):
    """What cells follow from, as if it had been measured."""
    what = {"num_env": num_env, "gmis": 1, "backend": "direct", "devices": 1, "env": env}
    best = {"steps_per_s": 1.0, "kind": "rate"}
    found = {
        f"{experiment}/ladder/{num_env}#0": {
            **best, "experiment": experiment, "what": {**what, "mode": mode, "network": "ant"},
        }
        for experiment, mode in (("training", "sync"), ("serving", "serving"))
    }  # fmt: skip
    hand = {**what, "mode": "sync", "network": "shadowhand"}
    found["num_env/shadowhand#0"] = {**best, "experiment": "num_env", "what": hand}
    for network in ("ant", "shadowhand"):
        for cap in (256, 4096, 65536):
            key = f"tuner/{network}, {cap} environments/tune#0"
            found[key] = {"kind": "tune", "experiment": "tuner", "choice": {**what, "gmis": 2}}
    return found


def stored(suite, stage, path):
    return suite.Store.open(path, suite.identity(stage, []))[0]


def test_every_experiment_has_a_row_before_any_has_its_second_repeat(suite, stage, measured):
    todo = suite.cells(stage, 3)
    assert len({cell.key for cell in todo}) == len(todo)
    firsts = [cell.repeat for cell in todo]
    assert firsts == sorted(firsts)
    blocks = [(cell.experiment, cell.block, cell.kind) for cell in todo]
    every = list(dict.fromkeys(blocks))
    assert [block for _, block, _ in every[:2]] == ["ladder", "ladder"]  # others follow from them
    started = every[2:][: len(suite.EXPERIMENTS)]
    assert {experiment for experiment, *_ in started} == set(suite.EXPERIMENTS)
    for block in dict.fromkeys(blocks):  # what is compared runs one after the other
        at = [place for place, cell in enumerate(todo) if cell.repeat == 0
              and (cell.experiment, cell.block, cell.kind) == block]  # fmt: skip
        assert at == list(range(at[0], at[0] + len(at))), block


def test_a_gpu_has_every_backend_beside_the_exclusive_process(suite):
    from gmi_drl.placement import Device, Topology

    gpus = tuple(Device(i, "gpu", "NVIDIA H200", (i,), f"GPU-{i}", 132) for i in range(2))
    topology = Topology(gpus, unusable=(("green", "no cuda-bindings"),))
    stage = suite.gpu_stage("Ant-v5", "warp", topology, lambda env, adapter: [])
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
    assert sides["precision", "training"] == [
        f"{who} {how}" for who in ("exclusive", "4 mps") for how in ("fp32", "tf32", "bf16")
    ]


def test_one_switch_of_a_cell_is_for_the_step_the_update_and_the_simulation(suite):
    from suite_config import config_of

    what = {"mode": "sync", "gmis": 1, "devices": 1, "backend": "direct", "network": "ant",
            "num_env": 64, "precision": "bf16"}  # fmt: skip
    for capture in (True, False, None):
        said = {} if capture is None else {"capture": capture}
        for adapter, its in (("warp", said), ("torch", {})):
            stage = {"env": "BallBalance-v0", "adapter": adapter, "kind": "gpu"}
            config = config_of({**what, "capture": capture}, stage)
            run = {k: v for k, v in config["run"].items() if k == "capture"}
            assert (run, config["env"]["options"]) == (said, its)
            assert config["algorithm"]["precision"] == "bf16"


def test_a_second_network_has_its_own_environment_where_adapter_warp_has_that(suite):
    from gmi_drl.placement import Device, Topology

    topology = Topology((Device(0, "gpu", "NVIDIA H200", (0,), "GPU-0", 132),))

    def stage_of(env, adapter, refusals):
        return suite.gpu_stage(env, adapter, topology, lambda *_: refusals)

    ant = stage_of("Ant-v5", "warp", [])
    assert ant.networks == ("ant", "shadowhand")
    what = {(c.what["network"], c.what["env"]) for c in suite.cells(ant, 1, ["num_env", "tuner"])
            if c.kind != "warm"}  # fmt: skip
    assert what == {("ant", "Ant-v5"), ("shadowhand", "ShadowHand-v0")}
    for only, envs in (("tuner", ["Ant-v5", "ShadowHand-v0"]), ("training", ["Ant-v5"]),
                       ("start", [])):  # fmt: skip
        warm = [c.key for c in suite.cells(ant, 3, [only]) if c.kind == "warm"]
        assert warm == [f"warm-up/{env}/kernels#0" for env in envs]
    mjx = suite.cells(stage_of("Ant-v5", "mjx", []), 2)
    warm = [c.what["num_env"] for c in mjx if c.kind == "warm"]
    assert sorted(warm) == [256, 512, 1024, 2048, 4096, 16384, 65536]  # once each
    assert warm[:2] == [4096, 1024]
    sizes = [c.what.get("num_env") for c in mjx]
    assert all(mjx[sizes.index(size)].kind == "warm" for size in warm)
    assert stage_of("Ant-v5", "warp", ["no"]).envs == stage_of("Ant-v5", "mujoco", []).envs == {}
    assert stage_of("Humanoid-v5", "warp", []).networks[0] == "humanoid"
    assert stage_of("ShadowHand-v0", "warp", []).networks == ("shadowhand", "ant")
    torch = suite.cells(stage_of("BallBalance-v0", "torch", []), 1)
    assert {c.what["capture"] for c in torch if c.block == "ladder"} == {True, False}
    assert not any(c.kind == "warm" for c in torch)


def test_what_is_launched_on_gpus_passes_the_checks_of_a_launch(suite, tmp_path):
    """Where there is no GPU, as far as that goes: every config, on a machine that is not there."""
    from suite_config import config_of, tune_config_of

    from gmi_drl.placement import Device, Topology, check, load_config
    from gmi_drl.selector.space import space_of

    layout = tmp_path / "layout.yaml"
    layout.write_text((TESTS.parent / "examples" / "layouts" / "one_device.yaml").read_text())
    ladders = ladders_of(4096)
    for count in (1, 2):
        gpus = tuple(
            Device(i, "gpu", "NVIDIA H200", tuple(range(8 * i, 8 * i + 8)), f"GPU-{i}", 132,
                   141 << 30, (9, 0))
            for i in range(count)
        )  # fmt: skip
        stage = suite.gpu_stage("BallBalance-v0", "torch", Topology(gpus), suite.check_env)
        for cell in suite.cells(stage, 1):
            if cell.kind == "tune":
                config = load_config(tune_config_of(cell.what, asdict(stage)))
                rows = space_of(config, Topology(gpus[:1]))[0].rows
                assert {its[0].row.gmi_per_gpu for its in rows} == {1, 2, 4, 8}
                most = max(c.num_env * c.row.gmi_per_gpu for its in rows for c in its)
                assert most == cell.what["cap"]
                continue
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


def test_the_tuner_is_held_against_the_best_of_the_suites_own_rows(
    suite, stage, measured, tmp_path, capsys
):
    """Its choice is launched beside that, which is not the same in the second repeat."""
    store = stored(suite, stage, tmp_path / "suite.json")
    suite.run(store, stage, suite.cells(stage, 2, ["tuner"]), 600.0)
    assert {one["why"] for one in store.not_run} == {
        f"no row of the suite has network {network} and 256 environments or fewer"
        for network in stage.networks
    }
    suite.run(store, stage, suite.cells(stage, 2, ["training", "num_env", "tuner"]), 600.0)
    what = {key: record["what"] for key, record in store.records.items()}
    block = "tuner/ant, 256 environments"
    assert (what[f"{block}/choice of tune#0"]["gmis"], what[f"{block}/tune#0"]["seconds"]) == (
        1,
        15,
    )
    own = what[f"{block}/best of the suite#1"]
    assert (own["gmis"], own["num_env"]) == (2, 128)
    suite.show(store, tmp_path)
    said = capsys.readouterr()
    rows = {row["name"]: row for row in map(json.loads, said.out.splitlines())}
    assert rows[f"{block}/choice of tune"]["ratio"] == pytest.approx(0.5**0.5, abs=1e-4)
    assert len(rows[f"{block}/tune"]["candidates"]) == 4
    err = " ".join(said.err.split())
    assert "it chose 1 GMI (cpu, 256 each) by 5 measurements of 20 candidates in 14 s." in err
    assert "by its backend (2 GMIs, cpu, 128 each), that is 0.71x, 0.71 to 0.71." in err
    assert "It saw, over one GMI (256), each at its best num_env: k = 2 0.80x (128 each); " in err
    assert "packing does not pay; with as many environments in all it pays" in err
    assert "environments in all it pays up to 64 (1.50x) and does not pay at 256 (0.80x)." in err
    assert "1 GMI of 256 -> 2 GMIs of 128: simulate 400.00 -> 250.00 ms (100 -> 50 %)" in err
    assert (tmp_path / "tuner.png").stat().st_size > 5000


def test_the_tuner_is_held_against_gmis_by_its_own_backend(suite):
    what = {"network": "ant", "env": "E", "mode": "sync", "devices": 1, "num_env": 64}
    asked = {**what, "cap": 256, "backend": "mps"}
    records = {
        f"{gmis} {backend}": {"kind": "rate", "experiment": "training", "steps_per_s": rate,
                              "what": {**what, "gmis": gmis, "backend": backend}}
        for gmis, backend, rate in ((1, "direct", 5.0), (2, "mps", 6.0), (4, "direct", 9.0))
    }  # fmt: skip
    from suite_plan import own_best

    assert own_best(records, asked)["backend"] == "mps"
    records["1 direct"]["steps_per_s"] = 7.0
    assert own_best(records, asked)["gmis"] == 1


def test_a_border_is_settled_between_as_many_environments_in_all_alone(suite):
    from suite_border import border

    def one(gmis, num_env, rate):
        return {"gmis": gmis, "num_env": num_env, "steps_per_s": rate, "phases": {"train": 1.0}}

    apart = [one(1, 64, 1000.0), one(1, 128, 1500.0), one(2, 256, 3000.0)]
    assert (
        "over one GMI (128), each at its best num_env: k = 2 2.00x (256 each); not settled, as "
        "these have no number of environments in all in common: 1 GMI with 64, 128, 2 GMIs with "
        "512." in border(apart)
    )
    assert "; it pays up to k = 2, the most" in border([*apart, one(1, 512, 1600.0)])


def test_the_second_suite_of_a_file_is_told_who_adds_to_it(suite, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "dry-cpu"
    with locked(folder / ".suite.lock", timedelta(0), "process 4711") as lock:
        assert lock.held
        assert suite.main(["--dry", "--results", str(tmp_path)]) == 2
    assert "suite.json: process 4711 adds to it." in capsys.readouterr().err
    monkeypatch.setattr(suite, "_ENDING", timedelta(0))
    with locked(folder / ".kept" / "cell.lock", timedelta(0), "serving/2 GMIs/cpu#0"):
        assert suite.main(["--dry", "--results", str(tmp_path)]) == 2
    assert "cell serving/2 GMIs/cpu#0 of a suite that was killed" in capsys.readouterr().err
    assert not (folder / "suite.json").exists()


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


def test_another_model_or_module_is_other_code(suite, tmp_path):
    from suite_store import source_digest

    found = [source_digest(tmp_path)]
    (tmp_path / "roles" / "envs").mkdir(parents=True)
    for name in ("ball.xml", "world.py"):
        (tmp_path / "roles" / "envs" / name).write_text("one")
        found.append(source_digest(tmp_path))
        (tmp_path / "roles" / "envs" / name).write_text("another")
        found.append(source_digest(tmp_path))
    assert len(set(found)) == 5


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
    assert pictures == {"throughput.png", "num_env.png", "tuner.png", "reduction.png",
                        "learning.png"}  # fmt: skip
    assert rows["training/2 GMIs/cpu"]["gmi_mem_share"] == 0.25
    assert "(25 % of" in err
    for name in ("training", "serving"):  # there are no captured rows
        assert f"{name}, aim: >= 1.86 over the exclusive captured baseline" in err
    assert err.count("at num_env <= 4,096: not measured") == 2


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
    err = " ".join(said.err.split())
    assert "k = 8 2.83x, one repeat (direct, 512 each); most at k = 8." in err
    assert (
        "k times as many in all: k = 2 2.00x, one repeat (direct, 4,096 each), k = 4 4.00x" in err
    )
    assert (
        "training, aim: >= 1.86 over the exclusive captured baseline at num_env <= 4,096: "
        "reached: 2.83x, one repeat by 8 GMIs (direct, 512 each) over one process with 4,096"
    ) in err
    assert "kernels of Ant-v5: there in 34 s" in err
    assert list(records)[:2] == ["warm-up/Ant-v5/kernels#0", "warm-up/ShadowHand-v0/kernels#0"]
    assert rows["precision/training/4 direct bf16 over one process in it"]["ratio"] == 2.0


def test_a_baseline_that_was_not_captured_is_not_the_aims(suite, stage, tmp_path):
    """Whatever it was asked for: what its GMI said in the log counts."""
    from suite_statement import statement
    from suite_watch import _not_captured

    said = "the update is not captured as a CUDA graph: operation not permitted. It is slower."
    (tmp_path / "logs").mkdir()
    for gmi in range(2):
        (tmp_path / "logs" / f"gmi{gmi}.log").write_text(f"ready\n{said}\n")
    assert _not_captured([tmp_path]) == [said]
    peer = {"num_env": 4096, "capture": True, "phases": {"train": 1.0}}
    row = {"experiment": "serving", "side": "mps", "network": "ant", "gmis": 4, "ratio": 1.9,
           "ratio_spread": [1.8, 2.0], "repeats": 3, "backend": "mps", "num_env": 1024,
           "value": 190.0, "peer": 100.0, "phases": {"train": 1.0},
           "peer_setting": peer}  # fmt: skip
    store = stored(suite, stage, tmp_path / "suite.json")
    *_, aim = statement(store, [row])
    assert aim == (
        "serving, aim: >= 1.86 over the exclusive captured baseline at num_env <= 4,096: reached: "
        "1.90x, 1.80 to 2.00 by 4 GMIs (mps, 1,024 each) over one process with 4,096, network ant"
    )
    *_, aim = statement(store, [{**row, "ratio": 1.85}])
    assert ": not reached: 1.85x" in aim
    *_, aim = statement(store, [{**row, "peer_setting": {**peer, "not_captured": [said]}}])
    assert aim.endswith("4,096: not measured")


def test_more_environments_in_all_are_no_success_of_packing(suite, stage, tmp_path):
    """Speed follows environments in all alone, up to 16,384, whoever has them."""
    from suite_rows import rows_of
    from suite_statement import statement

    from gmi_drl.placement import Device, Topology

    gpu = Device(0, "gpu", "NVIDIA H200", (0, 1), "GPU-0", 132, 141 << 30, (9, 0))
    on_gpu = suite.gpu_stage("Ant-v5", "warp", Topology((gpu,)), lambda *_: [])
    store = stored(suite, stage, tmp_path / "suite.json")
    for cell in suite.cells(on_gpu, 1, ["training", "num_env"]):
        if cell.kind == "rate":
            record = suite.resolved(cell, store.records)
            what = record["what"]
            total = min(16384, what["num_env"] * what["gmis"])
            rate = 30.0 * total if what["capture"] else 10.0 * what["num_env"]
            store.records[cell.key] = {
                **record, "suite": store.head["suite"], "left": [], "steps_per_s": rate,
                "phases": {"simulate": 1.0},
            }  # fmt: skip
    said = statement(store, rows_of(store))
    (packed,) = [one for one in said if one.startswith("training, k GMIs")]
    assert "k = 8 1.00x, one repeat (direct, 512 each); packing does not pay here." in packed
    (more,) = [one for one in said if one.startswith("training, with as many environments in each")]
    assert "k = 4 4.00x" in more
    assert more.endswith("counts for no verdict.")
    (aim,) = [one for one in said if one.startswith("training, aim:")]
    assert ": not reached: 1.00x" in aim
    assert aim.endswith(
        "4,096 is the ladder's end: one process may do better with more, as that with 16,384 does: "
        "4.00x this baseline, 4.00x those GMIs"
    )


def test_not_captured_in_one_repeat_is_not_captured(suite):
    from suite_rows import named

    records = [{"steps_per_s": rate, "what": {}} for rate in (1.0, 2.0, 3.0)]
    assert "not_captured" not in named(records)
    records[0]["not_captured"] = ["no"]
    assert named(records)["not_captured"] == ["no"]


def test_where_packing_stops_is_said_with_the_phases(suite, stage, tmp_path):
    from suite_statement import statement

    def row(total, ratio):
        peer = {"num_env": total, "phases": {"simulate": 0.75, "train": 0.25}}
        return {"experiment": "num_env", "side": "2 cpu", "network": "ant", "gmis": 2, "env": "E",
                "backend": "cpu", "ratio": ratio, "ratio_spread": [0, 2], "repeats": 1,
                "value": 1000.0 * ratio, "peer": 1000.0,
                "phases": {"simulate": 0.5, "reduce": 0.5}, "peer_setting": peer}  # fmt: skip

    store = stored(suite, stage, tmp_path / "suite.json")
    (said,) = [one for one in statement(store, [row(32, 0.9), row(128, 1.2), row(512, 0.8)])
               if one.startswith("num_env, network ant (E)")]  # fmt: skip
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
    monkeypatch.setattr(suite_run, "_TELLS_S", 0.3)
    told = []
    record = suite_run.measured({"key": "a"}, {}, 1.0, tmp_path, told.append)
    assert len(told) >= 2
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
    path, key = tmp_path / "dry-cpu" / "suite.json", "reduction/1 x 2/cpu#0"
    arguments = ("--only", "reduction", "--repeats", "1")
    with started(tmp_path, *arguments) as first:
        assert first.stdout is not None
        while "measured" not in (line := first.stdout.readline()):
            assert "so far" in line, line + first.stdout.read()
        assert key in line
        end_s = time.monotonic() + _DEADLINE_S
        while len(psutil.Process(first.pid).children(recursive=True)) < 3:  # the next has begun
            assert time.monotonic() < end_s, "no cell has begun"
            time.sleep(0.01)  # between two looks
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
