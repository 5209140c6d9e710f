"""A step on a small network stays in the thread that takes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gmi_drl.placement import ALGORITHMS
from gmi_drl.roles.optimizers.descent import Descent
from gmi_drl.roles.policies.flat_parameters import FlatParameters


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("units", "threads"), [(64, 1), (400, 2)])
def test_only_a_small_step_is_taken_in_one_thread(
    units: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = FlatParameters(nn.Linear(units, units))
    descent = Descent(parameters, ALGORITHMS["a2c"]())
    taken, step = [], descent._optimizer.step

    def counted() -> None:
        taken.append(torch.get_num_threads())
        step()

    monkeypatch.setattr(descent._optimizer, "step", counted)
    descent.step(torch.ones(parameters.numel), torch.zeros(()))
    assert taken == [threads]
    assert torch.get_num_threads() == 2


def test_the_number_of_threads_is_what_it_was_after_a_step_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = FlatParameters(nn.Linear(4, 4))
    descent = Descent(parameters, ALGORITHMS["a2c"]())

    def failing() -> None:
        raise ValueError("no step")

    monkeypatch.setattr(descent._optimizer, "step", failing)
    with pytest.raises(ValueError, match="no step"):
        descent.step(torch.ones(parameters.numel), torch.zeros(()))
    assert torch.get_num_threads() == 2
