"""What the benchmark of templates makes of a run's metrics, and of the model."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def templates(monkeypatch):
    """The benchmarks are scripts: they find each other in their own folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    import templates

    yield templates
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


def test_the_models_of_training(templates):
    """Ts + Ta + Tt = 4; sending takes 1. By the paper's constants, 5.46."""
    found = templates.models("training", templates.Times(1.0, 2.0, 1.0, 1.0, 1.0))
    assert found == {"model_paper": 5.458, "model_measured": 1.25, "model_held": 2.5}


def test_the_models_of_serving(templates):
    """Ts + Ta = 4; of the two halves that take turns the longer counts, 3, and half of sending."""
    found = templates.models("serving", templates.Times(1.0, 3.0, 1.0, 0.0, 1.0))
    assert found == {"model_paper": 2.58, "model_measured": 1.25, "model_held": 1.75}


def test_sending_is_what_a_trainer_waits_beside_its_agents_work(templates):
    line = {"simulate_s": 0.2, "infer_s": 0.1, "send_s": 0.01, "wait_s": 0.35, "train_s": 0.4,
            "reduce_s": 0.05}  # fmt: skip
    lines = [{"steps": 640 * n, "time_s": 0.8 * n, **line} for n in (1, 2, 3)]
    times = templates.times_of(lines, num_env=64, packets_s=0.0)
    assert times.steps_per_s == pytest.approx(800)
    found = (times.ts_s, times.ta_s, times.tt_s, times.com_s)  # of a step: an iteration has ten
    assert found == pytest.approx((0.02, 0.01, 0.045, 0.005))
