"""k GMIs on shards of the data are one GMI on all of it: the invariants of data-parallel PPO."""

import numpy as np
import pytest

import bodies_roles
from gmi_drl.comm import solo_group
from ranks import run_ranks

SHARED = [
    "parameters", "first moment", "second moment", "observation mean", "observation scale",
    "value mean", "value scale", "learning rate", "kl",
]  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    return bodies_roles.one_iteration(solo_group())


@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_sharded_updates_equal_the_update_on_the_joined_batch(alone, as_on_a_gpu):
    gmis = run_ranks(bodies_roles.one_iteration, 2, False, as_on_a_gpu)
    for name in SHARED:
        for gmi in gmis:
            assert np.allclose(gmi[name], alone[name], rtol=1e-5, atol=1e-6), name
    joined = np.concatenate([gmi["advantages"] for gmi in gmis], axis=1)
    assert np.allclose(joined, alone["advantages"], atol=1e-6)


def test_all_gmis_hold_the_same_bits_even_when_their_data_differ():
    first, second = run_ranks(bodies_roles.one_iteration, 2, True)
    for name in SHARED:
        assert np.array_equal(first[name], second[name]), name
