"""The commands that the pages name: they can be called, and say in a line what is wrong."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
SUITE, UPDATE = BENCH / "gpu" / "suite" / "suite.py", BENCH / "gpu" / "update.py"


def called():
    """Scripts that a page calls by name, as its first word in a line of shell or in backticks."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = (re.findall(r"(?m)(?:^|`)(bench/[\w/]+\.py)", page.read_text()) for page in pages)
    return sorted({name for names in found for name in names})


@pytest.mark.parametrize("name", called())
def test_a_script_that_a_page_calls_can_be_called(name):
    assert os.access(ROOT / name, os.X_OK)
    assert (ROOT / name).read_text().startswith("#!/usr/bin/env python3\n")


@pytest.mark.parametrize(
    ("script", "arguments", "word"),
    [
        (SUITE, ["--report", "nope.json"], "No such file"),
        (SUITE, ["--report", "empty.json"], "is not a suite's results"),
        (UPDATE, ["--dry", "--network", "foo"], "'foo'"),
    ],
)
def test_a_wrong_argument_is_told_without_a_traceback(script, arguments, word, tmp_path):
    (tmp_path / "empty.json").write_text(json.dumps({}))
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def plan(monkeypatch):
    """The suite's plan, whose modules are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    yield importlib.import_module("gpu.suite.plan")
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("only", "ladders"),
    [("precision", {"training"}), ("serving", {"serving"}), ("start", set()),
     ("devices", {"training", "serving"})],
)  # fmt: skip
def test_an_experiment_alone_brings_the_ladders_that_it_follows_from(plan, only, ladders):
    stage = importlib.import_module("gpu.suite.stage").dry_stage(
        "BallBalance-v0", "torch", (0, 1), lambda *_: []
    )
    cells = plan.cells(stage, 1, [only])
    assert {cell.experiment for cell in cells if cell.block == "ladder"} == ladders
    assert {cell.experiment for cell in cells if cell.block != "ladder"} <= {only}
    blocks = [cell.block for cell in cells]
    assert blocks == sorted(blocks, key="ladder".__ne__)  # ladders come first
