"""A GMI computes with as many threads as its largest multiplication keeps busy."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

import gmi_drl
from gmi_drl.placement import Topology, load_config, tcg_ex, tdg_ex
from gmi_drl.roles import threads
from gmi_drl.roles.algorithms import with_settings
from gmi_drl.roles.algorithms.ppo import PPO
from gmi_drl.roles.policies.networks import actor_critic_of
from gmi_drl.roles.role.manager import GMI_manager, GmiContext
from gmi_drl.roles.threads import model_products, rows_at_once, threads_for

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.parametrize(
    ("rows", "units", "cores", "count"),
    [
        (16, 64, 2, 1),
        (256, 64, 2, 1),
        (4096, 64, 2, 2),
        (64, 256, 16, 1),
        (256, 256, 16, 4),
        (256, 256, 2, 2),
        (10**6, 256, 16, 16),
    ],
)
def test_there_are_as_many_as_the_largest_layer_keeps_busy(rows, units, cores, count):
    network = nn.Sequential(nn.Linear(4, units), nn.Linear(units, units), nn.Linear(units, 2))
    assert threads_for(rows, network, cores) == count


def test_convolutions_keep_a_thread_a_core():
    assert threads_for(1, nn.Conv2d(1, 1, 3), 8) == 8


@pytest.mark.parametrize(
    ("algorithm", "products"),
    [
        ({"name": "mbpo"}, 7 * 256 * 200 * 752),  # the last
        ({"name": "mbpo", "ensemble": 5, "elites": 3, "model_network": [8]}, 5 * 256 * 8 * 752),
        ({"name": "mbpo", "ensemble": 5, "elites": 3, "model_network": []}, 5 * 256 * 376 * 752),
        ({"name": "sac"}, 0),
    ],
)
def test_a_model_counts_by_its_largest_layer(algorithm, products):
    assert model_products(config_of(**algorithm).algorithm, 376) == products


def test_a_small_network_with_a_large_model_has_threads_for_the_model():
    assert threads_for(16, nn.Linear(4, 8), 16, beside=20_000_000) == 5


def config_of(**algorithm):
    changes = {"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}, "algorithm": algorithm}
    return with_settings(load_config(changes))


@pytest.mark.parametrize(
    ("template", "algorithm", "rows"),
    [
        (tcg_ex, {"horizon": 32, "minibatches": 4}, [64, 64]),  # 8 environments each
        (tdg_ex, {"horizon": 32, "minibatches": 4}, [8, 64]),  # one only acts
        (tcg_ex, {"horizon": 4, "minibatches": 8}, [8, 8]),  # acting takes the most
        (tcg_ex, {"horizon": 32, "minibatches": 2, "recurrent": {"size": 8}}, [8, 8]),
        (tcg_ex, {"name": "dqn", "batch_size": 50}, [50, 50]),
        (tcg_ex, {"name": "dqn", "batch_size": 50, "recurrent": {"size": 8}}, [50, 50]),
        (tcg_ex, {"name": "es", "horizon": 32}, [8, 8]),  # it only acts
        (tdg_ex, {"name": "a3c", "horizon": 32}, [256, 256]),  # those that act send gradients
    ],
)
def test_rows_are_those_of_a_minibatch_or_of_all_environments(template, algorithm, rows):
    layout = template(Topology.from_cores(range(2)), 2, 8)
    config = config_of(**algorithm)
    assert [rows_at_once(config, layout, gmi.gmi_id) for gmi in layout.gmis] == rows


class Own(gmi_drl.Holistic):
    def make_policy(self, env, generator):
        return actor_critic_of(self.mgr.config.algorithm, env, generator)


class OwnAlgorithm(PPO):
    pass


@pytest.mark.parametrize(
    ("algorithm", "is_all_ours"),
    [
        ({}, True),
        ({"network": "bodies_networks:Wide"}, False),
        ({"class": f"{__name__}:OwnAlgorithm"}, False),
        ({"name": "mbpo"}, True),
        ({"name": "cem"}, False),  # it plans by a model
    ],
)
def test_what_the_network_does_not_tell_of_is_known(algorithm, is_all_ours):
    assert threads.is_all_ours(config_of(**algorithm).algorithm) is is_all_ours


@contextmanager
def built(role_class, **algorithm):
    layout = tcg_ex(Topology.from_cores(range(2)), 1, 8)
    GMI_manager.bind(GmiContext(0, layout, config_of(**algorithm)))
    try:
        role = role_class(0, "simulator+agent+trainer", 0)
        role.build_for_spaces()
        yield role
    finally:
        GMI_manager.bind(None)


@pytest.mark.parametrize(
    ("role_class", "units", "count"),
    [(gmi_drl.Holistic, 8, 1), (gmi_drl.Holistic, 2048, 2), (Own, 8, 2)],
)
def test_a_role_computes_with_so_many_while_it_trains(role_class, units, count):
    with built(role_class, network=[units, units], horizon=8, minibatches=4) as role:
        assert torch.get_num_threads() == 2
        with role.use_threads():
            assert torch.get_num_threads() == count
        assert torch.get_num_threads() == 2


def test_threads_are_as_before_after_training_that_failed():
    counts = []

    def fail():
        counts.append(torch.get_num_threads())
        raise KeyError

    with built(gmi_drl.Holistic, network=[8]) as role:
        with pytest.raises(KeyError), role.use_threads():
            fail()
        assert [*counts, torch.get_num_threads()] == [1, 2]
