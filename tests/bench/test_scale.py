"""The study of scale: what is kept is what the code foretells, and errors are counted rightly."""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
KEPT = json.loads((BENCH / "results" / "scale.json").read_text())


@pytest.fixture
def scale(monkeypatch):
    """The benchmarks are scripts: they find each other in their own folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    import scale

    yield scale
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


def test_what_is_kept_of_the_checks_is_what_the_model_foretells(scale):
    checks = scale.scale_checks
    groups = {"H100", "templates", "reduction", "reduction, beyond what was fitted",
              "hosts, reduction", "hosts, training"}  # fmt: skip
    anew = [*checks.h100_rows(), *checks.reduction_rows(), *checks.host_rows(),
            *checks.template_rows()]  # fmt: skip
    assert anew == [row for row in KEPT["checks"] if row["group"] in groups]
    assert checks.paper() == KEPT["paper"]


def test_the_errors_are_of_all_rows_and_the_aim_is_met_by_their_median(scale):
    errors = scale.scale_checks.summary(KEPT["checks"])
    assert errors["rows"] == len(KEPT["checks"])
    assert sum(group["rows"] for group in errors["groups"].values()) == errors["rows"]
    told = {row["name"]: row["value"] for row in KEPT["rows"]}
    assert told["error/all"] == pytest.approx(100 * errors["median"], abs=0.01)
    assert errors["median"] < 0.10


def test_an_error_is_foretold_over_measured(scale):
    row_of, summary = scale.scale_checks.row_of, scale.scale_checks.summary
    rows = [row_of("a", "x", "s", 2.0, one, "") for one in (1.0, 2.2, 3.0)]
    assert [row["error"] for row in rows] == [-0.5, 0.1, 0.5]
    assert summary(rows)["median"] == 0.5


def test_nothing_that_the_model_was_fitted_to_is_among_the_checks():
    names = [row["name"] for row in KEPT["checks"]]
    assert len(set(names)) == len(names)
    for name in names:
        assert "4096 in all/exclusive" not in name or "serving" in name
        assert not name.endswith((" of 16", " of 256"))
