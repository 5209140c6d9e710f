"""Runs that are struck by random signals and resumed lose nothing and never wait for ever."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[2] / "bench" / "chaos.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 2, 3, 6], ids=["tcg_ex", "tdg_ex", "async", "replay"])
def test_a_run_that_is_struck_again_and_again_comes_to_its_end(seed):
    words = [sys.executable, str(CHAOS), "--only", str(seed), "--strikes", "2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=800, check=False)
    outcome = json.loads(done.stdout)
    assert outcome["failure"] == "", "\n".join(outcome["told"])
    assert outcome["blows"]
