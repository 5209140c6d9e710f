"""What a step is worth in an update of another size or horizon, and whom that leaves undecided."""

import pytest

from gmi_drl.selector.tune.candidate import Candidate, DeviceSplit
from gmi_drl.selector.tune.efficiency import Prediction, rivals, seen_share


def candidate(num_env, samples=2048):
    return Candidate(DeviceSplit(1, "cpu"), num_env, samples // num_env, samples)


def test_a_step_of_a_larger_update_teaches_less_by_the_noise_scale():
    def efficiency(samples, noise_scale):
        return Prediction(2048, 128, noise_scale).efficiency(samples, 128)

    assert efficiency(2048, 5000.0) == 1.0
    assert efficiency(4096, 2048.0) == pytest.approx(2 / 3)
    assert efficiency(4096, 4096.0) == pytest.approx(0.75)
    assert efficiency(1024, 2048.0) > 1
    # One that is not given is as large as two updates; one that is, from one to eight.
    assert efficiency(4096, None) == efficiency(4096, 4096.0)
    assert efficiency(4096, 10.0) == efficiency(4096, 2048.0)
    assert efficiency(4096, 1e9) == efficiency(4096, 8 * 2048.0) == pytest.approx(0.9)


def test_a_shorter_horizon_sees_less_of_an_advantage():
    decay = 0.99 * 0.95
    # Of the t-th of 4 steps all weights but those from step 4 - t on lie within the horizon.
    by_hand = [sum((1 - decay) * decay**step for step in range(4 - t)) for t in range(4)]
    assert seen_share(4, decay) == pytest.approx(sum(by_hand) / 4)
    assert seen_share(1, 0.0) == seen_share(64, 0.0) == 1.0
    assert seen_share(64, 1.0) / seen_share(128, 1.0) == pytest.approx(65 / 129, rel=0.01)
    prediction = Prediction(2048, 128, 2048.0, decay)
    halved = seen_share(64, decay) / seen_share(128, decay)
    assert prediction.efficiency(2048, 64) == pytest.approx(halved)
    assert prediction.efficiency(4096, 64) == pytest.approx(halved * 2 / 3)
    assert prediction.efficiency(2048, 512) == 1.0  # a longer one is worth no more
    assert prediction.of(candidate(32)) == prediction.efficiency(2048, 64)


def test_rivals_are_those_whose_goodput_is_within_the_factor():
    worth = {candidate(64): 10.0, candidate(32): 8.0, candidate(16): 7.0, candidate(128): 9.0}
    assert rivals(worth, candidate(64), 1.3) == [candidate(128), candidate(32)]
    assert rivals(worth, candidate(64), 1.05) == []
