"""Runs that are struck by random signals and resumed lose nothing and never wait for ever."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[2] / "bench" / "chaos.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mode", "seed", "strikes"),
    [
        ("tcg_ex", 4626, 1),
        ("tdg_ex", 2, 2),
        ("async", 1091, 2),
        ("replay", 1096, 2),
        ("resize", 279, 1),
        ("resize", 100022, 4),
        ("ars", 100060, 1),
        ("hosts", 363, 1),
    ],
)
def test_a_run_that_is_struck_again_and_again_comes_to_its_end(mode, seed, strikes):
    check("--modes", mode, "--only", str(seed), "--strikes", str(strikes))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "strikes"), [(2, 2)])
def test_a_run_over_hosts_whose_processes_are_killed_comes_to_its_end(seed, strikes):
    pytest.importorskip("ray")
    check("--modes", "hosts", "--ray", "--only", str(seed), "--strikes", str(strikes))


def test_cases_of_before_are_counted_and_not_run_again(tmp_path):
    case = {"seed": 100_000, "mode": "tcg_ex", "blows": [["launcher", "kill", "went on"]] * 3}
    raw = tmp_path / "cases.jsonl"
    raw.write_text(json.dumps(case) + "\n")
    words = [sys.executable, str(CHAOS), "--kills", "3", "--raw", str(raw), "--dry"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=True)
    assert json.loads(done.stdout)["table"] == {"tcg_ex": {"kill launcher": {"went on": 3}}}
    assert len(raw.read_text().splitlines()) == 1


def check(*words):
    """Runs a case."""
    words = [sys.executable, str(CHAOS), *words, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=800, check=False)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["failure"] == "", "\n".join(outcome["told"])
    assert outcome["blows"]
