"""A GMI whose parameters have drifted is found, and so is where."""

import pickle

import pytest
import torch

import bodies_comm as bodies
from gmi_drl.comm import ParametersDiffer, assert_identical, solo_group
from ranks import run_ranks


def test_equal_parameters_pass():
    assert run_ranks(bodies.compare_parameters, 3, {}) == [None] * 3
    assert_identical(solo_group(), torch.zeros(3), ["w"], [0], 1)


@pytest.mark.parametrize(
    ("changed", "ranks", "parameter"),
    [
        ({1: 5}, (1,), "weight"),
        ({0: 11}, (0,), "log_std"),  # the majority is right, even against rank 0
        ({0: 3, 1: 4, 2: 4, 3: 4}, (0,), "bias"),
        ({2: 0, 3: 11}, (2,), "bias"),
    ],
)
def test_who_and_where_is_named_on_every_rank(changed, ranks, parameter):
    for outcome in run_ranks(bodies.compare_parameters, 4, changed):
        assert isinstance(outcome, ParametersDiffer)
        assert outcome.iteration == 50
        assert outcome.ranks == ranks
        assert outcome.parameter == parameter
        assert f"first in '{parameter}'" in str(outcome)


def test_of_two_ranks_the_first_counts():
    for outcome in run_ranks(bodies.compare_parameters, 2, {0: 2}):
        assert outcome.ranks == (1,)
        assert str(outcome).startswith("iteration 50: the parameters of rank 1 (gmi 4, GPU 0)")


def test_other_names_are_a_difference_only_when_numbers_differ():
    # Equal numbers are what training needs; names are looked at to say where numbers differ.
    assert run_ranks(bodies.compare_names, 2) == [None, None]


def test_the_error_crosses_processes():
    error = ParametersDiffer(3, [1, 2], ["gmi 1", "gmi 2"], "weight")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert "rank 1 (gmi 1) and rank 2 (gmi 2)" in str(again)
