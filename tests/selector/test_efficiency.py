"""What a step is worth in an update of another size, and whom that leaves undecided."""

import math

import pytest

from gmi_drl.selector.tune.candidate import Candidate, DeviceSplit, Failed, Measured
from gmi_drl.selector.tune.efficiency import Prediction, rivals


def candidate(num_env, samples=2048):
    return Candidate(DeviceSplit(1, "cpu"), num_env, samples // num_env, samples)


def test_a_step_of_a_larger_update_teaches_less_by_the_noise_scale():
    def efficiency(samples, noise_scale):
        return Prediction(2048, noise_scale).efficiency(samples)

    assert efficiency(2048, 500.0) == 1.0
    assert efficiency(4096, 2048.0) == pytest.approx(2 / 3)
    # Far below the noise scale size costs nothing; far above it each further sample is wasted.
    assert efficiency(4096, 1e9) == pytest.approx(1.0, abs=1e-5)
    assert efficiency(4096, math.inf) == 1.0
    assert efficiency(4096, 1e-3) == pytest.approx(0.5, abs=1e-5)
    assert efficiency(1024, 2048.0) > 1
    assert efficiency(4096, None) == efficiency(4096, 2048.0)


def test_goodput_takes_the_place_of_throughput_alone():
    prediction = Prediction(2048, 2048.0)
    answer = Measured(9000.0, 0.01, 9, 1.0, {}, 1, None, 0.1, 1.0)
    large = candidate(64, 4096)
    found = prediction.as_goodput(answer, large)
    assert found.steps_per_s == pytest.approx(6000.0) == prediction.goodput(large, 9000.0)
    assert found.error == answer.error
    failed = Failed("crash", "it died")
    assert prediction.as_goodput(failed, large) is failed
    assert prediction.as_goodput(None, large) is None


def test_rivals_are_those_whose_goodput_is_within_the_factor():
    worth = {candidate(64): 10.0, candidate(32): 8.0, candidate(16): 7.0, candidate(128): 9.0}
    assert rivals(worth, candidate(64), 1.3) == [candidate(128), candidate(32)]
    assert rivals(worth, candidate(64), 1.05) == []
