"""The notebook runs, cell by cell, and its policy balances the pole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AFTER = """
assert total >= 195, total
assert evaluation.mean >= 195, evaluation
assert file.is_file()
"""

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    cells = json.loads((EXAMPLES / "trained_policy.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 4
    (tmp_path / "cartpole.yaml").write_text((EXAMPLES / "cartpole.yaml").read_text())
    script = "\n".join([*code, AFTER])
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "bit for bit" in done.stdout
