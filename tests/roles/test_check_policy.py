"""What `make_policy` must return: every lack is told at once, by name."""

import pickle

import pytest
import torch
from gymnasium import spaces
from torch import nn

from gmi_drl.roles.errors import PolicyError
from gmi_drl.roles.policies.actor_critic import ActorCritic, distribution_for
from gmi_drl.roles.policies.check_policy import check_policy

BOX, CHOICES = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)


def policy(space=BOX, **changes):
    found = ActorCritic(4, distribution_for(space), [8])
    for name, value in changes.items():
        found.__dict__[name] = value
    return found


def lacks(found, space=BOX):
    with pytest.raises(PolicyError) as caught:
        check_policy(found, "MyTrainer.make_policy", 4, space)
    return str(caught.value)


@pytest.mark.parametrize("space", [BOX, CHOICES])
def test_our_own_policy_lacks_nothing(space):
    check_policy(policy(space), "Holistic.make_policy", 4, space)


def test_everything_that_a_bare_network_lacks_is_listed():
    told = lacks(nn.Linear(4, 3))
    assert told.startswith("MyTrainer.make_policy returned a Linear that cannot be trained:")
    assert all(name in told for name in ("map_value(scale, shift)", "log_std", "distribution_for"))


def test_no_module_at_all_is_told_so():
    assert "returned a NoneType that cannot be trained:\n  - it is no torch.nn.Module" in lacks(
        None
    )


def test_shapes_are_told_with_what_they_must_be():
    wide = policy(forward=lambda observation: torch.zeros(len(observation), 5))
    assert "forward of observations [2, 4] gives float32 [2, 5]" in lacks(wide)
    assert "must give float32 [2, 3], distribution.parameters and then the value" in lacks(wide)
    double = policy(forward=lambda observation: torch.zeros(2, 3, dtype=torch.float64))
    assert "gives float64 [2, 3]" in lacks(double)
    pair = policy(forward=lambda observation: (observation, observation))
    assert "gives a tuple" in lacks(pair)
    raising = policy(forward=lambda observation: observation @ torch.zeros(7, 3))
    assert "forward of observations [2, 4] raised RuntimeError: " in lacks(raising)


def test_a_policy_for_another_action_space_is_told_so():
    assert "has 1 action columns, and the action space Box" in lacks(policy(CHOICES))
    few = policy()
    few.log_std = nn.Parameter(torch.zeros(1))
    assert "its log_std has shape [1]; must be [2]" in lacks(few)
    assert "its parameters are torch.float64" in lacks(policy().double())
    half = policy(distribution=type("Half", (), {"sample": print, "parameters": 2})())
    assert "its distribution has no noise, mode, log_prob, entropy, kl, action_columns" in lacks(
        half
    )


def test_the_error_survives_the_way_between_processes():
    error = PolicyError("T.make_policy", "Linear", ["it has no log_std"], "some.Base")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.faults) == (str(error), error.faults)
