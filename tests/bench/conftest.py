"""The suite's scripts, and a suite whose cells are not run."""

import sys
from pathlib import Path

import pytest

from suite_records import tuned_record

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def suite(monkeypatch):
    """The suite's modules are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.path.insert(0, str(BENCH))
    from gpu.suite import suite

    yield suite
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


@pytest.fixture
def stage(suite):
    return suite.dry_stage("BallBalance-v0", "torch", (0, 1), suite.check_env)


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
                            "gmi_mem_share": 0.25, "sm_count": [33, 32]}  # fmt: skip
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
