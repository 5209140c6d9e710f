"""The suite of the paper's experiments: planned, stopped and gone on with, on cores."""

import errno
import json
import os
import re
import sys
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest

from gmi_drl.runtime.cache_files import locked
from suite_records import ladders_of, stored

TESTS = Path(__file__).resolve().parents[1]


def test_every_experiment_has_a_row_before_any_has_its_second_repeat(suite, stage, measured):
    todo = suite.cells(stage, 3)
    assert len({cell.key for cell in todo}) == len(todo)
    firsts = [cell.repeat for cell in todo]
    assert firsts == sorted(firsts)
    blocks = [(cell.experiment, cell.block, cell.kind) for cell in todo]
    every = list(dict.fromkeys(blocks))
    assert [block for _, block, _ in every[:2]] == ["ladder", "ladder"]  # others follow from them
    here = set(suite.EXPERIMENTS) - {"eager"}  # where there are no graphs, that is `training`
    started = every[2:][: len(here)]
    assert {experiment for experiment, *_ in started} == here
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
        # One eager rung is enough to tell what capturing gives.
        assert sides[experiment, "ladder"] == ["4096", "4096 eager", "1024", "2048", "512"]
        for k in (4, 8):
            assert sides[experiment, f"{k} GMIs"] == [
                "exclusive", "direct", "mps", "mps-x2", "mps-uncapped"
            ]  # fmt: skip
        assert sides[experiment, "2 GMIs"] == ["exclusive", "direct", "mps", "mps-x2"]
        assert sides[experiment, "1 GMIs"] == ["exclusive", "mps"]
    assert sides["devices", "sync"] == ["one device", "2 devices", "2 devices, 4 GMIs each"]
    assert stage.unusable == {"green": "no cuda-bindings"}
    assert sides["eager", "4 GMIs"] == [
        "exclusive", "mps-uncapped", "mps-uncapped, as many in each"
    ]  # fmt: skip
    assert sides["precision", "training"] == [
        f"{who} {how}" for who in ("exclusive", "4 mps") for how in ("fp32", "tf32", "bf16")
    ]


def test_one_switch_of_a_cell_is_for_the_step_the_update_and_the_simulation(suite):
    from gpu.suite.config import config_of

    what = {"mode": "sync", "gmis": 1, "devices": 1, "backend": "direct", "network": "ant",
            "num_env": 64, "precision": "bf16"}  # fmt: skip
    for capture in (True, False, None):
        said = {} if capture is None else {"capture": capture}
        # The bound of the solver is the same on all sides: green ones launch all of it.
        for adapter, its in (("warp", {**said, "solver_iterations": 16}), ("torch", {})):
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
    from gpu.suite.config import config_of, tune_config_of

    from gmi_drl.placement import Device, Topology, check, load_config
    from gmi_drl.selector.tune.space import space_of

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
    from gpu.suite.plan import own_best

    assert own_best(records, asked)["backend"] == "mps"
    records["1 direct"]["steps_per_s"] = 7.0
    assert own_best(records, asked)["gmis"] == 1


def test_a_border_is_settled_between_as_many_environments_in_all_alone(suite):
    from gpu.suite.summary import border

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
    with locked(folder / ".kept" / "suite.lock", timedelta(0), "process 4711") as lock:
        assert lock.held
        assert suite.main(["--dry", "--results", str(tmp_path)]) == 2
    assert "suite.json: process 4711 adds to it." in capsys.readouterr().err
    monkeypatch.setattr(suite, "_ENDING", timedelta(0))
    with locked(folder / ".kept" / "cell.lock", timedelta(0), "serving/2 GMIs/cpu#0"):
        assert suite.main(["--dry", "--results", str(tmp_path)]) == 2
    assert "cell serving/2 GMIs/cpu#0 of a suite that was killed" in capsys.readouterr().err
    assert not (folder / "suite.json").exists()


def on_an_h200(suite, adapter="warp"):
    from gmi_drl.placement import Device, Topology

    gpu = Device(0, "gpu", "NVIDIA H200", (0, 1), "GPU-0", 132, 141 << 30, (9, 0))
    return suite.gpu_stage("Ant-v5", adapter, Topology((gpu,)), lambda *_: [])


def test_a_named_ladder_holds_gmis_against_one_process_at_each_num_env(suite):
    shares = ["direct", "mps", "mps-x2", "mps-uncapped", "green"]
    stage = on_an_h200(suite).narrowed([4096, 16384], [4, 8], shares, alone=True)
    todo = suite.cells(stage, 2, ["training"])
    assert [c.key for c in todo[:2]] == [
        "warm-up/Ant-v5/kernels#0", "training/ladder/4096 eager#0"
    ]  # fmt: skip
    blocks = {}
    for cell in todo[2:]:
        blocks.setdefault((cell.block, cell.repeat), {})[cell.side] = cell.what
    assert list(blocks) == [
        (f"{k} GMIs, {total} in all", repeat)
        for repeat in (0, 1) for total in (4096, 16384) for k in (4, 8)
    ]  # fmt: skip
    for sides in blocks.values():
        assert list(sides) == ["exclusive", *shares]
        assert all(what["capture"] is True for what in sides.values())
        total = sides["exclusive"]["num_env"]
        assert {what["num_env"] * what["gmis"] for what in sides.values()} == {total}
    eight = blocks["8 GMIs, 16384 in all", 1]
    overcommit = {side: what.get("sm_overcommit") for side, what in eight.items()}
    assert overcommit == {
        "exclusive": None, "direct": None, "mps": None, "mps-x2": 2.0, "mps-uncapped": 8.0,
        "green": None,
    }  # fmt: skip
    assert stage.networks == ("ant",)


def test_commands_that_ask_for_other_cells_add_to_one_file(suite, stage, measured, tmp_path):
    path = tmp_path / "suite.json"
    first = stage.narrowed([64], [2], [], alone=False)
    more = stage.narrowed([64, 256], [2], [], alone=True)
    for asked in (first, more, more):
        store = stored(suite, asked, path)
        suite.run(store, asked, suite.cells(asked, 1, ["training"]), 600.0)
    assert measured == [
        f"training/2 GMIs, {total} in all/{side}#0"
        for total in (64, 256) for side in ("exclusive", "cpu")
    ]  # fmt: skip
    records = suite.Store.read(path).records
    assert list(records) == measured
    assert all(record["at"].endswith("Z") for record in records.values())


def test_a_cell_of_other_numbers_of_gmis_is_run_again(suite, stage, measured, tmp_path):
    """Where they are not in its name."""
    path, key = tmp_path / "suite.json", "start/cpu/start#0"
    for gmis in ([2], [4], [4]):
        asked = stage.narrowed([], gmis, [], alone=False)
        store = stored(suite, asked, path)
        suite.run(store, asked, suite.cells(asked, 1, ["start"]), 600.0)
        assert store.records[key]["what"]["gmis"] == [1, *gmis]
    assert measured == [key, key]


def test_a_block_keeps_the_best_num_env_that_it_began_with(suite, stage, measured, tmp_path):
    """Although a longer ladder has a better one: its sides are compared with each other."""
    store = stored(suite, stage, tmp_path / "suite.json")
    todo = [c for c in suite.cells(stage, 1, ["training"]) if c.block in ("ladder", "2 GMIs")]
    suite.run(store, stage, todo[:3], 600.0)
    assert store.records["training/2 GMIs/exclusive#0"]["what"]["num_env"] == 256
    best = {**store.records["training/ladder/256#0"], "steps_per_s": 1e9}
    store.records["training/ladder/512#0"] = best | {"what": {**best["what"], "num_env": 512}}
    suite.run(store, stage, todo, 600.0)
    assert store.records["training/2 GMIs/cpu#0"]["what"]["num_env"] == 128


def test_kernels_that_are_not_there_in_time_fail_no_later_cell(
    suite, measured, tmp_path, monkeypatch
):
    """Warp keeps what it has compiled: the next command goes on, and then measures."""
    stage = on_an_h200(suite).narrowed([4096], [4], ["green"], alone=True)
    store = stored(suite, stage, tmp_path / "suite.json")
    todo, fake = suite.cells(stage, 1, ["training"]), suite.measured

    def late(cell, *rest):
        failed = {"failed": "hang", "why": "was not done after 300 s"}
        return fake(cell, *rest) | (failed if cell["kind"] == "warm" else {})

    monkeypatch.setattr(suite, "measured", late)
    warm = "warm-up/Ant-v5/kernels#0"
    suite.run(store, stage, todo, 600.0)
    assert measured == [warm]
    assert {one["why"] for one in store.not_run} == {f"the kernels are not there: see {warm}"}
    assert len(store.not_run) == len(todo) - 1
    monkeypatch.setattr(suite, "measured", fake)
    suite.run(store, stage, todo, 600.0)
    assert measured == [warm, *(cell.key for cell in todo)]
    assert not any("failed" in record for record in store.records.values())
    assert store.not_run == []


def test_a_share_that_hangs_twice_costs_a_command_no_more(suite, measured, tmp_path, monkeypatch):
    stage = on_an_h200(suite).narrowed([4096], [4, 8], ["mps", "mps-uncapped", "green"], alone=True)
    store = stored(suite, stage, tmp_path / "suite.json")
    todo, fake = suite.cells(stage, 2, ["training"]), suite.measured

    def stuck(cell, *rest):
        hung = cell["what"].get("backend") == "mps" and "sm_overcommit" not in cell["what"]
        return fake(cell, *rest) | ({"failed": "hang", "why": "late"} if hung else {})

    monkeypatch.setattr(suite, "measured", stuck)
    suite.run(store, stage, todo, 6000.0)
    hung = [key for key, record in store.records.items() if record.get("failed") == "hang"]
    assert len(hung) == 2
    assert {one["why"] for one in store.not_run} == {"2 cells of mps hung in this command"}
    others = [key for key, record in store.records.items() if record["side"] == "mps-uncapped"]
    assert len(others) == 4  # k = 4 and 8, twice: nothing but that share is left out


def test_backends_of_which_none_can_be_used_are_no_baseline_alone(suite, monkeypatch, capsys):
    stage = replace(on_an_h200(suite), shares=(), unusable={"mps": "no daemon"})
    monkeypatch.setattr(suite, "_gpu", lambda options: (stage, "an-h200", []))
    monkeypatch.setattr(suite, "check_env", lambda *_: [])
    assert suite.main(["--backends", "mps"]) == 2
    assert "--backends mps; none of these can be used: mps: no daemon" in capsys.readouterr().err


def test_cells_that_simulate_nothing_need_no_kernels(suite, measured, tmp_path):
    stage = on_an_h200(suite)
    assert not any(cell.needs for cell in suite.cells(stage, 1, ["reduction", "start"]))


def test_results_that_were_given_back_are_gone_on_with(suite, tmp_path, measured, capsys):
    """In another folder, as after a slot whose machine is gone."""
    small = ["--dry", "--no-pictures", "--only", "reduction", "--repeats", "1"]
    before, after = tmp_path / "before", tmp_path / "after"
    assert suite.main([*small, "--results", str(before)]) == 0
    ran = len(measured)
    again = [*small, "--results", str(after), "--kept", str(tmp_path / "kept")]
    assert suite.main([*again, "--given", str(tmp_path / "none"), str(before)]) == 0
    assert len(measured) == ran
    assert f"{ran} cells of {before / 'dry-cpu' / 'suite.json'} are taken in" in (
        capsys.readouterr().err
    )
    assert [path.name for path in (after / "dry-cpu").iterdir()] == ["suite.json"]
    other = before / "dry-cpu" / "suite.json"
    other.write_text(other.read_text().replace('"suite": "', '"suite": "0'))
    assert suite.main([*again, "--given", str(before)]) == 0
    assert "is left alone: it is of suite 0" in capsys.readouterr().err
    other.write_text(other.read_text()[:400])  # cut short on its way
    assert suite.main([*again, "--given", str(before)]) == 2
    assert f"{other} is not a suite's results: " in capsys.readouterr().err


def test_failed_cells_of_other_commands_are_not_forgotten(suite, tmp_path, measured, monkeypatch):
    fake, small = suite.measured, ["--dry", "--no-pictures", "--repeats", "1"]

    def fails(*arguments):
        return fake(*arguments) | {"failed": "crash", "why": "it died"}

    def records():
        return suite.Store.read(tmp_path / "dry-cpu" / "suite.json").records

    results = ["--results", str(tmp_path)]
    monkeypatch.setattr(suite, "measured", fails)
    assert suite.main([*small, *results, "--only", "start", "reduction"]) == 1
    monkeypatch.setattr(suite, "measured", fake)
    assert suite.main([*small, *results, "--only", "start", "--retry"]) == 0
    failed = {key.partition("/")[0]: "failed" in record for key, record in records().items()}
    assert failed == {"start": False, "reduction": True}


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    suite, tmp_path, measured, monkeypatch, capsys
):
    from gmi_drl.runtime import cache_files as kept

    (tmp_path / "file").write_text("")
    assert suite.main(["--dry", "--results", str(tmp_path / "file")]) == 2
    assert "suite.json cannot be written: Not a directory. Make room" in capsys.readouterr().err

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kept.os, "fsync", full)
    assert suite.main(["--dry", "--results", str(tmp_path / "full")]) == 2
    said = capsys.readouterr().err
    assert "suite.json cannot be written: No space left on device. Make room there, or name" in said
    assert measured == []
    assert not list((tmp_path / "full" / "dry-cpu").glob("*suite*"))  # nothing half-written


def test_the_commit_is_gits_or_that_of_the_variable(suite, monkeypatch, tmp_path):
    import report

    monkeypatch.setenv("GMI_DRL_COMMIT", "0123456789ab")  # also in a copy that has an older git
    assert report.commit.__wrapped__() == "0123456789ab"
    monkeypatch.delenv("GMI_DRL_COMMIT")
    assert re.fullmatch("[0-9a-f]{12}[+]?", report.commit.__wrapped__())
    monkeypatch.setattr(report, "HERE", tmp_path)  # no checkout
    assert report.commit.__wrapped__() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert report.commit.__wrapped__() == "unknown"


def test_what_other_code_measured_is_another_suite(suite, stage, measured, tmp_path, monkeypatch):
    path = tmp_path / "suite.json"
    store = stored(suite, stage, path)
    suite.run(store, stage, suite.cells(stage, 1, ["start"]), 600.0)
    with monkeypatch.context() as changed:
        changed.setattr(sys.modules["gpu.suite.store"], "source_digest", lambda: "another")
        anew, said = suite.Store.open(path, suite.identity(stage, []))
        assert (anew.records, path.exists()) == ({}, False)
        kept = tmp_path / f"suite-{store.head['suite']}.json"
        assert kept.name in said
        assert suite.Store.read(kept).records == store.records
        anew.write()
    assert stored(suite, stage, path).records == store.records  # the code is as it was
    assert not kept.exists()


def test_a_virtual_machine_that_is_given_more_memory_is_the_same(suite, stage, monkeypatch):
    import report

    heads = []
    for gib in (4, 64):
        pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gib << 18}
        monkeypatch.setattr(report.os, "sysconf", pages.__getitem__)
        report.machine.cache_clear()
        heads.append(suite.identity(stage, ["driver 580"]))
        assert f", {gib} GiB, " in heads[-1]["machine"]
    report.machine.cache_clear()
    assert heads[0]["suite"] == heads[1]["suite"]
    assert heads[0]["suite"] != suite.identity(stage, ["driver 581"])["suite"]


def test_a_named_reduction_is_of_every_launch_and_of_another_suite(
    suite, stage, measured, tmp_path
):
    """The way round where CUDA IPC does not work: else each launch would try it first."""
    from gpu.suite.config import config_of

    from gmi_drl.placement import load_config

    for name in ("auto", "mpr"):
        its = ["--dry", "--only", "training", "--results", str(tmp_path / name)]
        assert suite.main([*its, "--repeats", "1", "--reduction", name]) == 0
    heads = [
        suite.Store.read(tmp_path / n / "dry-cpu" / "suite.json").head for n in ("auto", "mpr")
    ]
    assert heads[0]["suite"] != heads[1]["suite"]
    cell = {"mode": "sync", "gmis": 2, "devices": 1, "backend": "cpu", "capture": None,
            "network": "ant", "env": "BallBalance-v0", "num_env": 64}  # fmt: skip
    found = [load_config(config_of(cell, head["stage"])).comm.reduction for head in heads]
    assert found == ["auto", "mpr"]


def test_another_model_or_module_is_other_code(suite, tmp_path):
    from gpu.suite.store import source_digest

    found = [source_digest(tmp_path)]
    (tmp_path / "roles" / "envs").mkdir(parents=True)
    for name in ("ball.xml", "world.py"):
        (tmp_path / "roles" / "envs" / name).write_text("one")
        found.append(source_digest(tmp_path))
        (tmp_path / "roles" / "envs" / name).write_text("another")
        found.append(source_digest(tmp_path))
    assert len(set(found)) == 5


def test_a_machine_without_a_gpu_is_told_so(suite, capsys, monkeypatch):
    from gmi_drl.placement import Topology

    monkeypatch.setattr(suite, "discover", lambda: Topology.from_cores((0, 1)))
    assert suite.main([]) == 0
    assert capsys.readouterr().out.startswith("no GPU here: nothing measured")
