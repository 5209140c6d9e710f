"""What a checkpoint says of its policy, and how a config that means another one is refused."""

from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from gmi_drl.placement import PPOConfig
from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.policies.actor_critic import ActorCritic, distribution_for
from gmi_drl.roles.policies.description import compare, described
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.state.checkpoint import Checkpoint


def env(**changes):
    usual = {
        "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "action_space": spaces.Box(-1.0, 1.0, (2,), np.float32),
    }
    return SimpleNamespace(**(usual | changes))


def description(its=None, hidden=(8,), activation="elu", **settings):
    its = its or env()
    policy = ActorCritic(
        its.observation_space.shape[0], distribution_for(its.action_space), hidden, activation
    )
    return described(policy, its, Normalizers.of(PPOConfig(**settings), 3))


def found(policy):
    manifest = {"environment": "Ant-v5", "algorithm": "ppo", "policy": policy}
    return Checkpoint(Path("runs/ant/checkpoints/iteration_000050"), manifest)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: description(activation="tanh"), "activation: checkpoint elu; config tanh"),
        (lambda: description(hidden=(4,)), "network: checkpoint [8]; config [4]"),
        (
            lambda: description(hidden=(8, 8)),
            "parameter trunk.2.weight: checkpoint none; config [8, 8]",
        ),
        (
            lambda: description(env(action_space=spaces.Box(-0.4, 0.4, (2,), np.float32))),
            "action space: checkpoint Box[2] of numbers, -1 to 1; config Box[2] of numbers, "
            "-0.4 to 0.4",
        ),
        (
            lambda: description(env(action_space=spaces.Discrete(2))),
            "distribution: checkpoint Normal; config Categorical",
        ),
        (
            lambda: description(env(observation_space=spaces.Box(0, 255, (3,), np.uint8))),
            "config Box[3] of uint8, 0 to 255",
        ),
        (
            lambda: description(normalize_observation=False),
            "normalize_observation: checkpoint true; config false",
        ),
    ],
)
def test_each_difference_is_named(other, said):
    with pytest.raises(CheckpointError) as error:
        compare(found(description()), other(), "Do this.")
    assert said in str(error.value)
    assert "(of ppo Ant-v5) holds another policy" in str(error.value)
    assert str(error.value).endswith("Do this.")


def test_the_same_policy_of_another_seed_or_adapter_is_no_difference():
    double = env(observation_space=spaces.Box(-np.inf, np.inf, (3,), np.float64))
    compare(found(description()), description(double), "")  # raises nothing
    bounds = np.array([4.8, np.inf, 0.41887903], np.float32)
    cart = [
        env(observation_space=spaces.Box(-bounds.astype(kind), bounds.astype(kind), dtype=kind))
        for kind in (np.float32, np.float64)
    ]
    assert description(cart[0]) == description(cart[1])


def test_many_bounds_are_told_by_a_checksum():
    low = np.arange(100.0)
    space = spaces.Box(low, low + 1, dtype=np.float64)
    text = described(
        torch.nn.Linear(100, 1), env(observation_space=space), Normalizers(None, None)
    )["observation space"]
    assert "100 bounds with checksum" in text
    assert len(text) < 200


def test_a_network_that_says_nothing_of_itself_is_known_by_its_parameters():
    first, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2, bias=False)
    mine = described(first, env(), Normalizers(None, None))
    assert mine["parameter weight"] == [2, 3]
    with pytest.raises(CheckpointError, match=r"parameter bias: checkpoint \[2\]; config none"):
        compare(found(mine), described(other, env(), Normalizers(None, None)), "")


def test_what_a_network_says_of_itself_must_be_plain():
    policy = torch.nn.Linear(3, 2)
    policy.describe = lambda: {"slope": torch.ones(1)}
    with pytest.raises(RoleError, match=r"Linear\.describe\(\) gave .* must be a dict"):
        described(policy, env(), Normalizers(None, None))


def test_spaces_of_gymnasium_are_plain_text():
    made = gymnasium.make("CartPole-v1")
    text = described(torch.nn.Linear(1, 1), made, Normalizers(None, None))
    assert text["action space"] == "Discrete(2) from 0"
    assert text["observation space"].startswith("Box[4] of numbers, [-4.8 -inf -0.418879 -inf] to")
