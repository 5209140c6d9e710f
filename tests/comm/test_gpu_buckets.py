"""Buckets on a GPU under every strategy that one GPU can serve."""

import pytest

import bodies_rings as bodies
from gmi_drl.comm.reducers import ipc
from ranks import run_ranks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("strategy", ["mpr", "ipc"])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_one_gpu_reduce_to_the_mean_and_the_same_bits(strategy, size):
    import torch

    fault = ipc.why_not(torch.device("cuda"))
    if strategy == "ipc" and fault:
        pytest.skip(fault)
    for outcome in run_ranks(bodies.reduce_on_gpu, size, [0, 1, 997, 750_000], strategy=strategy):
        assert outcome == [0.0] * 4
