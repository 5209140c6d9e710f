"""IMPALA and APPO learn, from a policy that is some updates behind (docs/async.md)."""

import pytest

from lagged import config_of, train

pytestmark = pytest.mark.usefixtures("one_thread")

CARTPOLE = {
    "network": [64, 64], "activation": "tanh", "horizon": 16, "minibatches": 2,
    "learning_rate": 1e-3,
}  # fmt: skip


def cartpole(name, lag, seed):
    env = {"id": "CartPole-v1", "num_env": 16}
    config = config_of(env, {"name": name, **CARTPOLE}, total_steps=100_000, seed=seed)
    return train(config, lag)


@pytest.mark.slow
def test_impala_balances_the_pole_with_experience_eight_updates_old():
    assert cartpole("impala", lag=8, seed=1) >= 300


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lag", "wanted"), [("impala", 0, 300), ("appo", 2, 300)])
def test_the_pole_is_balanced_from_experience_of_another_age(name, lag, wanted):
    assert cartpole(name, lag, seed=2) >= wanted
