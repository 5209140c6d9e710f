"""What the suite says of what it measured: ratios, borders, the aim."""

import json
from dataclasses import replace

import pytest

from suite_records import stored


def test_a_ratio_across_suites_is_refused(suite, stage, measured, tmp_path, capsys):
    path = tmp_path / "suite.json"
    store = stored(suite, stage, path)
    suite.run(store, stage, suite.cells(stage, 1), 600.0)
    from gpu.suite.rows import rows_of

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
    assert rows["training/4 GMIs/green over eager 4096"]["ratio"] == 4.0
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
    assert rows["precision/training/4 green bf16 over one process in it"]["ratio"] == 2.0


def test_a_baseline_that_was_not_captured_is_not_the_aims(suite, stage, tmp_path):
    """Whatever it was asked for: what its GMI said in the log counts."""
    from gpu.suite.summary import summary
    from gpu.suite.watch import _not_captured

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
    *_, aim = summary(store, [row])
    assert aim == (
        "serving, aim: >= 1.86 over the exclusive captured baseline at num_env <= 4,096: reached: "
        "1.90x, 1.80 to 2.00 by 4 GMIs (mps, 1,024 each) over one process with 4,096, network ant; "
        "4,096 is the most that one process was given: it may do better with more"
    )
    *_, aim = summary(store, [{**row, "ratio": 1.85}])
    assert ": not reached: 1.85x" in aim
    *_, aim = summary(store, [{**row, "peer_setting": {**peer, "not_captured": [said]}}])
    assert aim.endswith("4,096: not measured")


def test_more_environments_in_all_are_no_success_of_packing(suite, stage, tmp_path):
    """Speed follows environments in all alone, up to 16,384, whoever has them."""
    from gpu.suite.rows import rows_of
    from gpu.suite.summary import summary

    from gmi_drl.placement import Device, Topology

    gpu = Device(0, "gpu", "NVIDIA H200", (0, 1), "GPU-0", 132, 141 << 30, (9, 0))
    on_gpu = suite.gpu_stage("Ant-v5", "warp", Topology((gpu,)), lambda *_: [])
    store = stored(suite, stage, tmp_path / "suite.json")
    for cell in suite.cells(on_gpu, 1, ["training", "num_env"]):
        if cell.kind == "rate":
            record = suite.resolved(replace(cell, needs=""), store.records)
            what = record["what"]
            total = min(16384, what["num_env"] * what["gmis"])
            rate = 30.0 * total if what["capture"] else 10.0 * what["num_env"]
            store.records[cell.key] = {
                **record, "suite": store.head["suite"], "left": [], "steps_per_s": rate,
                "phases": {"simulate": 1.0},
            }  # fmt: skip
    said = summary(store, rows_of(store))
    (packed,) = [one for one in said if one.startswith("training, k GMIs")]
    assert "k = 8 1.00x, one repeat (direct, 512 each); packing does not pay here." in packed
    (more,) = [one for one in said if one.startswith("training, with as many environments in each")]
    assert "k = 4 4.00x" in more
    assert more.endswith("counts for no verdict.")
    (aim,) = [one for one in said if one.startswith("training, aim:")]
    assert ": not reached: 1.00x" in aim
    assert aim.endswith(
        "one process does better with more: with 16,384 4.00x this baseline, 4.00x those GMIs"
    )


def test_not_captured_in_one_repeat_is_not_captured(suite):
    from gpu.suite.rows import named

    records = [{"steps_per_s": rate, "what": {}} for rate in (1.0, 2.0, 3.0)]
    assert "not_captured" not in named(records)
    records[0]["not_captured"] = ["no"]
    assert named(records)["not_captured"] == ["no"]


def test_where_packing_stops_is_said_with_the_phases(suite, stage, tmp_path):
    from gpu.suite.summary import summary

    def row(total, ratio):
        peer = {"num_env": total, "phases": {"simulate": 0.75, "train": 0.25}}
        return {"experiment": "num_env", "side": "2 cpu", "network": "ant", "gmis": 2, "env": "E",
                "backend": "cpu", "ratio": ratio, "ratio_spread": [0, 2], "repeats": 1,
                "value": 1000.0 * ratio, "peer": 1000.0,
                "phases": {"simulate": 0.5, "reduce": 0.5}, "peer_setting": peer}  # fmt: skip

    store = stored(suite, stage, tmp_path / "suite.json")
    (said,) = [one for one in summary(store, [row(32, 0.9), row(128, 1.2), row(512, 0.8)])
               if one.startswith("num_env, network ant (E)")]  # fmt: skip
    assert (
        "packing pays up to 128 (1.20x, one repeat), though not at 32 (0.90x, one repeat), "
        "does not pay at 512 (0.80x, one repeat)." in said
    )
    # of 1 s and of 1.25 s for 1,000 steps
    assert "simulate 750.00 -> 625.00 ms" in said
    assert "reduce 0.00 -> 625.00 ms (0 -> 50 %)" in said
