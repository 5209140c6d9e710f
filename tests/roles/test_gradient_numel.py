"""The length of a run's gradient is that of the network which the class that trains makes."""

import pytest
import torch
from torch import nn

import gmi_drl
from gmi_drl.placement import Topology, load_config, tcg_ex
from gmi_drl.roles.role.acting import gradient_numel
from gmi_drl.roles.role.manager import GMI_manager


class Wide(gmi_drl.Holistic):
    def make_policy(self, env, generator):
        policy = super().make_policy(env, generator)
        policy.more = nn.Linear(7, 100)
        return policy


class Lone(gmi_drl.DRL_role):
    def GMI_run(self):
        return None


def padded(*counts):
    return sum(-(-count // 64) * 64 for count in counts)


def numel(role, **algorithm):
    config = load_config(
        {"version": 1, "env": {"id": "CartPole-v1", "num_env": 4}, "algorithm": algorithm}
    )
    return gradient_numel(role, config, tcg_ex(Topology.from_cores(range(2)), 2, 4))


PPO = padded(4 * 8, 8, 8 * 3, 3, 0) + 6 + 1
DQN = padded(4 * 8, 8, 8 * 2, 2) + 3 + 1


@pytest.mark.parametrize(
    ("role", "name", "wanted"),
    [
        (gmi_drl.Holistic, "ppo", PPO),
        (Wide, "ppo", PPO + padded(700, 100)),
        (gmi_drl.Holistic, "dqn", DQN),
        (Lone, "ppo", None),
    ],
)
def test_it_is_that_of_the_network_which_is_trained(role, name, wanted):
    assert numel(role, name=name, network=[8]) == wanted


def test_nothing_stays_bound_when_a_network_cannot_be_made():
    class Broken(gmi_drl.Holistic):
        def make_policy(self, env, generator):
            raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        numel(Broken, name="ppo")
    assert GMI_manager.add_GMI(5).get_group(5).size == 1
    assert torch.is_grad_enabled()
