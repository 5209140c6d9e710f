"""The benchmark of one update, on the CPU: its ways agree, and its rows say what was measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

UPDATE = Path(__file__).resolve().parents[2] / "bench" / "gpu" / "update.py"


def rows_of(tmp_path, *arguments, timeout=50):
    """What a run printed, which is also what it wrote."""
    small = ("--dry", "--rows", "256", "--obs", "6", "--actions", "2", "--rounds", "2")
    done = subprocess.run(
        [sys.executable, str(UPDATE), *small, "--results", str(tmp_path), *arguments],
        capture_output=True, text=True, timeout=timeout, check=False,
        env=os.environ
        | {
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # each other one is a process that imports torch
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert json.loads((tmp_path / "dry-cpu" / "update.json").read_text()) == rows
    return {row["name"]: row for row in rows}, done.stderr


@pytest.mark.slow
def test_precisions_take_turns_and_what_a_cpu_lacks_is_said(tmp_path):
    rows, said = rows_of(tmp_path, "--ways", "eager", "captured")
    assert list(rows) == ["update/fp32/eager", "update/bf16/eager"]
    for row in rows.values():
        low, high = row["spread"]
        assert 0 < low <= row["value"] <= high
        assert row["ratio"] == 1.0
        assert row["repeats"] == 2
        assert "no GPU figure" in row["note"]
        assert row["machine"]
        assert row["commit"]
    losses = [row["value_loss"] for row in rows.values()]
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.02)
    assert "fp32 captured: not run, no GPU to capture for" in said
    assert "tf32 eager: not run, CPU cores compute in fp32" in said


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_is_compiled_trains_the_same(tmp_path):
    ways = ("--ways", "eager", "compiled", "--precisions", "fp32")
    rows, said = rows_of(tmp_path, *ways, timeout=230)
    if "no C++ compiler" in said:
        pytest.skip("no C++ compiler")
    losses = [row["value_loss"] for row in rows.values()]
    assert len(losses) == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_updates_from_a_replay_are_measured_beside_those_of_batches(tmp_path):
    kept = [{"name": "update/fp32/eager", "value": 1.0}, {"name": "old", "algorithm": "dqn"}]
    path = tmp_path / "dry-cpu" / "update.json"
    path.parent.mkdir()
    path.write_text(json.dumps(kept))
    done = subprocess.run(
        [
            sys.executable, str(UPDATE), "--dry", "--rounds", "1", "--results", str(tmp_path),
            "--algorithms", "sac", "dqn", "--ways", "eager", "--precisions", "fp32",
        ],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())
    names = ["update/fp32/eager", "update/sac/fp32/eager", "update/dqn/fp32/eager"]
    assert [row["name"] for row in rows] == names
    assert rows[1]["critic_loss"] > 0 < rows[2]["q_loss"]
    assert rows[1]["value"] > rows[2]["value"] > 0  # of an update
