"""A step is torch's own Adam's, stays in its thread where it is small, and imports no compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from gmi_drl.placement import ALGORITHMS
from gmi_drl.roles.optimizers.descent import Descent, step_together
from gmi_drl.roles.policies.flat_parameters import FlatParameters

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.parametrize(("units", "threads"), [(64, 1), (400, 2)])
def test_only_a_small_step_is_taken_in_one_thread(
    units: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = FlatParameters(nn.Linear(units, units))
    descent = Descent(parameters, ALGORITHMS["a2c"]())
    taken, step = [], torch._fused_adam_

    def counted(*args: Any, **options: Any) -> None:
        taken.append(torch.get_num_threads())
        step(*args, **options)

    monkeypatch.setattr(torch, "_fused_adam_", counted)
    descent.step(torch.ones(parameters.numel), torch.zeros(()))
    assert taken == [threads]
    assert torch.get_num_threads() == 2


def test_the_number_of_threads_is_what_it_was_after_a_step_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = FlatParameters(nn.Linear(4, 4))
    descent = Descent(parameters, ALGORITHMS["a2c"]())

    def failing(*args: Any, **options: Any) -> None:
        raise ValueError("no step")

    monkeypatch.setattr(torch, "_fused_adam_", failing)
    with pytest.raises(ValueError, match="no step"):
        descent.step(torch.ones(parameters.numel), torch.zeros(()))
    assert torch.get_num_threads() == 2


def test_a_step_of_several_is_that_of_torchs_adam_bit_for_bit() -> None:
    settings = ALGORITHMS["sac"]()
    ours = [nn.Parameter(torch.randn(2**i, generator=_generator(i))) for i in (7, 9)]
    theirs = [nn.Parameter(one.detach().clone()) for one in ours]
    flat = [FlatParameters(nn.ParameterList([one])) for one in ours]
    descents = [Descent(one, settings) for one in flat]
    adam = torch.optim.Adam(theirs, lr=settings.learning_rate, eps=settings.adam_eps, fused=True)
    for number in range(3):
        for descent, its in zip(descents, theirs, strict=True):
            its.grad = torch.randn(its.shape, generator=_generator(number))
            descent.follow(its.grad, torch.zeros(()))
        step_together(descents)
        adam.step()
    for one, its in zip(flat, theirs, strict=True):
        assert torch.equal(one.data.detach(), its.detach())


_SHARD = """
import sys
import numpy as np
from gmi_drl.placement import ALGORITHMS
from gmi_drl.roles.optimizers.over_evaluators.parameter_server import ParameterShard

shard = ParameterShard(np.ones(64, np.float32), ALGORITHMS["a3c"]())
moved = shard.push(np.ones(64, np.float32), None)
shard.save()
print(bool((moved < 1).all()), "torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_a_shard_steps_without_importing_a_compiler() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _SHARD], capture_output=True, text=True, timeout=120, check=True
    )
    assert told.stdout.split() == ["True", "False"]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
