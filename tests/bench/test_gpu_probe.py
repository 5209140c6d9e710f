"""The first checks on a GPU, as far as fakes of CUDA and MPS take them."""

import json
import os
import sys
from pathlib import Path

import pytest

from gmi_drl.placement import Device, Topology

TESTS = Path(__file__).resolve().parents[1]
BENCH = TESTS.parent / "bench"
UUID = "GPU-12345678-1234-1234-1234-123456789abc"
CORES = tuple(sorted(os.sched_getaffinity(0)))


@pytest.fixture
def probe(monkeypatch):
    for folder in (BENCH, BENCH / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    import probe

    yield probe
    for name in ("probe", "report"):
        del sys.modules[name]


@pytest.fixture
def fake_h200(monkeypatch, tmp_path, probe):
    gpus = [{"uuid": UUID, "sm_count": 132, "mem_bytes": 141 << 30, "capability": [9, 0]}]
    (tmp_path / "gpus.json").write_text(json.dumps(gpus))
    monkeypatch.setenv("FAKE_CUDA", str(tmp_path / "gpus.json"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "fake_cuda"))
    path = (TESTS / "fake_mps", Path(sys.executable).parent, os.environ["PATH"])
    monkeypatch.setenv("PATH", ":".join(map(str, path)))
    device = Device(0, "gpu", "NVIDIA H200", CORES, UUID, 132, 141 << 30, (9, 0))
    monkeypatch.setattr(probe, "found_gpus", lambda: Topology((device,)))


def test_a_machine_without_a_gpu_is_told_so(probe, capsys, monkeypatch):
    monkeypatch.setattr(probe, "discover", lambda: Topology.from_cores(CORES))
    assert probe.main([]) == 0
    assert capsys.readouterr().out == "no GPU here: nothing probed\n"


@pytest.mark.usefixtures("fake_h200")
@pytest.mark.parametrize(("words", "half"), [("", 66), ("static", 64)])
def test_what_clients_of_mps_see_is_a_table_and_a_file(
    probe, tmp_path, capfd, monkeypatch, words, half
):
    monkeypatch.setenv("FAKE_MPS", words)
    assert probe.main(["--only", "programs", "shares", "--results", str(tmp_path)]) == 0
    out, table = capfd.readouterr()
    path = tmp_path / "nvidia-h200" / "probe.json"
    assert out == f"0 of 10 rows are not as they should be: {path}\n"
    assert "NVIDIA H200, 132 SMs" in table
    found = json.loads(path.read_text())
    assert found.keys() >= {"machine", "commit", "date", "versions", "gpu", "rows", "seconds"}
    values = {one["what"]: one["value"] for one in found["rows"]}
    assert (values["direct: in MPS"], values["direct: SMs"]) == (False, 132)
    assert (values["mps 50 %: in MPS"], values["mps 50 %: SMs"]) == (True, half)


@pytest.mark.usefixtures("fake_h200")
@pytest.mark.parametrize(("words", "found"), [("static", "GPU-"), ("", "None")])
def test_static_partitions_are_there_or_why_not(probe, tmp_path, monkeypatch, words, found):
    monkeypatch.setenv("FAKE_MPS", words)
    assert probe.main(["--only", "static", "--results", str(tmp_path)]) == 0
    (one,) = json.loads((tmp_path / "nvidia-h200" / "probe.json").read_text())["rows"]
    assert str(one["value"]).startswith(found)
    assert one["why"]


@pytest.mark.usefixtures("fake_h200")
def test_a_check_that_fails_is_a_row_and_not_the_end(probe, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "refuse")
    assert probe.main(["--only", "terminate", "programs", "--results", str(tmp_path)]) == 1
    failed, *programs = json.loads((tmp_path / "nvidia-h200" / "probe.json").read_text())["rows"]
    assert (failed["what"], failed["ok"]) == ("ended with 1", False)
    assert "MpsError" in failed["why"]
    assert [one["ok"] for one in programs] == [True, True]


def test_a_check_that_hangs_is_ended_with_all_it_started(probe, tmp_path, monkeypatch):
    """What it had found is kept; that its child is gone is checked after every test."""
    (tmp_path / "checks.py").write_text(
        "import subprocess, sys, json, time\n"
        "subprocess.Popen(['sleep', '60'])\n"
        "print(json.dumps({'check': 'green', 'what': 'one', 'value': 1, 'ok': True}))\n"
        "sys.stdout.flush()\n"
        "time.sleep(60)\n"  # it hangs
    )
    monkeypatch.setattr(probe, "HERE", tmp_path)
    found, late = probe.checked("green", tmp_path, 3.0)
    assert (found["value"], late["what"], late["ok"]) == (1, "was not done after 3 s", False)
    assert probe.checked("green", tmp_path, 0)[0]["what"] == "not run"


def test_all_checks_together_have_five_minutes(probe):
    import checks

    assert list(checks.CHECKS) == list(probe.DEADLINES_S)
    assert probe.BUDGET_S + max(probe.DEADLINES_S.values()) <= 360
    del sys.modules["checks"]
