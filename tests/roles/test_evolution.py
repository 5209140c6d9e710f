"""Evolution: gradients against NumPy, the same bits for any number of GMIs, LQR's optimum."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
import torch

import bodies_evolution as bodies
from gmi_drl.comm import create_group, solo_group
from gmi_drl.placement import (
    ARSConfig,
    ConfigError,
    ESConfig,
    Topology,
    check,
    load_config,
)
from gmi_drl.roles.algorithms.ars import ARS
from gmi_drl.roles.algorithms.es import ES
from gmi_drl.roles.algorithms.evolution import centred_ranks
from gmi_drl.roles.errors import PolicyError, RoleError
from gmi_drl.roles.evaluators.episodes import PerturbedEpisodes, direction_of
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.policies.perturbed import GreedyNetwork, PerturbedPolicies
from gmi_drl.roles.policies.trunk import Trunk
from toy_env import ToyEnv


def network_of(width, hidden, actions, settings=None, **options):
    generator = torch.Generator().manual_seed(3)
    trunk = Trunk(width, hidden, "tanh", **options)
    return GreedyNetwork(trunk, Normal(actions), settings or ESConfig(), generator)


def algorithm(kind, settings, width=3):
    network = network_of(width, (), 2, settings)
    policy = kind.make_policy(network, settings)
    return kind(settings, policy, Normalizers.of(settings, width))


def section(algorithm, env="CartPole-v1", num_env=4, **fields):
    return {
        "version": 1,
        "run": {"seed": 5, "total_steps": 1_000_000},
        "env": {"id": env, "num_env": num_env, **fields},
        "algorithm": algorithm,
    }


def test_the_gradient_of_es_is_that_of_the_paper():
    scores = np.random.default_rng(0).normal(size=(6, 2))
    noise = np.stack([direction_of(7, 2, i, torch.empty(5)).numpy() for i in range(6)])
    order = np.argsort(np.argsort(scores.ravel()))
    ranks = (order / 11 - 0.5).reshape(6, 2)
    # Over the whole population, each of whose members has a perturbation of its own.
    whole = sum(
        rank * sign * e
        for row, e in zip(ranks, noise, strict=True)
        for rank, sign in zip(row, (1, -1), strict=True)
    )
    weights = algorithm(ES, ESConfig(noise=0.3)).weights(torch.tensor(scores)).numpy()
    np.testing.assert_allclose(weights @ noise, whole / (12 * 0.3), rtol=1e-6)


def test_the_step_of_ars_is_that_of_the_paper():
    scores = np.random.default_rng(1).normal(size=(7, 2))
    top = np.argsort(-scores.max(1))[:3]
    expected = np.zeros(7)
    expected[top] = (scores[top, 0] - scores[top, 1]) / (3 * scores[top].std())
    made = algorithm(ARS, ARSConfig(population=14, top_directions=3))
    np.testing.assert_allclose(made.weights(torch.tensor(scores)).numpy(), expected)
    assert not made.weights(torch.ones(7, 2, dtype=torch.float64)).any()


def test_equal_returns_have_equal_ranks():
    ranks = centred_ranks(torch.tensor([[5.0, 1.0], [5.0, 5.0], [9.0, 1.0]]))
    assert ranks.flatten().tolist() == pytest.approx([0.1, -0.4, 0.1, 0.1, 0.5, -0.4])
    assert not centred_ranks(torch.full((3, 2), 500.0)).any()  # no order is learned from


def test_a_step_is_along_the_directions_that_were_tried():
    """Of the whole: what ES adds to the parameters, drawn again here from nothing but seeds."""
    learned = section(
        {"name": "es", "network": [], "population": 8, "weight_decay": 0.01, "noise": 0.5,
         "normalize_observation": False},
        "bodies_evolution:GmiLQR-v0",
    )  # fmt: skip
    parameters, _, steps, told = bodies.rounds(solo_group(), learned, 1)
    assert (steps, told[0]["episodes"]) == (8 * bodies.STEPS, 8)
    directions = [direction_of(5, 0, i, torch.empty(3)) for i in range(4)]
    env = bodies.LQR()
    episodes = PerturbedEpisodes(
        ToyEnv(1, 4), network_of(2, (), 1), None, seed=5, longest=9, noise=0.5
    )
    assert episodes.width == 2
    first = first_seed(5, 0)
    scores = np.array(
        [[paid(env, sign * 0.5 * e.numpy(), first + i) for sign in (1, -1)]
         for i, e in enumerate(directions)]
    )  # fmt: skip
    assert told[0]["return_mean"] == pytest.approx(scores.mean(), rel=1e-5)
    order = np.argsort(np.argsort(scores.ravel())) / 7 - 0.5
    gradient = sum(
        (plus - minus) * e.numpy()
        for (plus, minus), e in zip(order.reshape(4, 2), directions, strict=True)
    )
    # The parameters were 0, and Adam's first step is as long as the learning rate.
    np.testing.assert_allclose(parameters, 0.01 * np.sign(gradient), rtol=1e-4)


def first_seed(seed, number):
    return int(np.random.SeedSequence((seed, 9, number)).generate_state(1)[0]) >> 2


def paid(env, parameters, seed):
    bias, gain = parameters[:1], parameters[1:]
    (x, _), total = env.reset(seed=seed), 0.0
    for _ in range(bodies.STEPS):
        x, reward, *_ = env.step(bias + gain @ x)
        total += reward
    return total


def in_threads(size, learned):
    """What three rounds come to in each of `size` GMIs, which are threads of this process."""
    spec = create_group([f"gmi {rank}" for rank in range(size)])
    with ThreadPoolExecutor(size) as pool:
        asked = [
            pool.submit(bodies.rounds, spec.join(rank, timedelta(seconds=60)), learned, 3)
            for rank in range(size)
        ]
        return [each.result() for each in asked]


@pytest.mark.parametrize(
    "learned",
    [
        section({"name": "es", "network": [16, 8], "population": 16, "noise": 0.3}),
        section(
            {"name": "ars", "population": 10, "top_directions": 3, "horizon": 40},
            "Swimmer-v5", num_env=1,
        ),
        section(
            {"name": "es", "network": [12], "layer_norm": True, "population": 8},
            "HalfCheetah-v5", num_env=1, max_episode_steps=20,
        ),
        section({"name": "es", "network": [8], "population": 16, "noise": 0.5}, "TicTacToe-v0"),
    ],
    ids=["es", "ars", "layer_norm", "game"],
)  # fmt: skip
def test_parameters_are_the_same_bits_for_any_number_of_gmis(learned):
    (alone,) = in_threads(1, learned)
    for size in (2, 4):
        for rank in in_threads(size, learned):
            assert rank[0].tobytes() == alone[0].tobytes()
            assert rank[1].tobytes() == alone[1].tobytes()
            assert rank[2] == alone[2]
    fewer = {**learned, "env": {**learned["env"], "num_env": 2 - learned["env"]["num_env"] % 2}}
    (narrow,) = in_threads(1, fewer)
    assert narrow[0].tobytes() == alone[0].tobytes()
    assert alone[0].any()


@pytest.mark.parametrize(("hidden", "options"), [((), {}), ((6, 5), {}), ((6,), {"norm": True})])
def test_many_policies_act_as_each_would_alone(hidden, options):
    network = network_of(4, hidden, 3, **({"layer_norm": True} if options else {}))
    flat = torch.nn.utils.parameters_to_vector([p for _, p in sorted(network.named_parameters())])
    generator = torch.Generator().manual_seed(0)
    parameters = flat.detach() + torch.randn(7, len(flat), generator=generator)
    observation = torch.randn(7, 4, generator=generator)
    policies = PerturbedPolicies(network)
    policies.load(parameters)
    acted = policies.act(observation)
    for row, seen, action in zip(parameters, observation, acted, strict=True):
        at = 0
        for _, its in sorted(network.named_parameters()):
            its.data.copy_(row[at : at + its.numel()].view_as(its))
            at += its.numel()
        with torch.no_grad():
            assert torch.allclose(network(seen[None])[0], action, atol=1e-5)
        policies.load(row[None])
        assert torch.allclose(policies.act(seen[None])[0], action, atol=1e-6)


def test_episodes_are_whole_and_counted_once():
    env = ToyEnv(3, 4)  # pays 1 + 2 + 3 + 4 an episode
    normalizer = RunningNormalizer(2, clip=10.0)
    made = PerturbedEpisodes(env, network_of(2, (), 1), normalizer, seed=0, longest=99, noise=0.1)
    rows = made.play(torch.zeros(3), 0, range(5))
    assert rows.shape == (5, 2, 6)
    assert (rows[..., 0] == 10).all()
    assert (rows[..., 1] == 4).all()
    place = torch.tensor([0.0, 1, 2, 0, 1])[:, None].expand(5, 2)  # of the environment
    assert torch.equal(rows[..., 2], 4 * place.double())
    assert (rows[..., 3] == 0 + 1 + 2 + 3).all()
    assert (rows[..., 5] == 0 + 1 + 4 + 9).all()
    assert len(env.actions) == 2 * 2 * 4  # two times three environments, both ways
    cut = PerturbedEpisodes(env, network_of(2, (), 1), None, seed=0, longest=3, noise=0.1)
    assert (cut.play(torch.zeros(3), 0, range(2))[..., 1] == 3).all()


class LastNeverEnds(ToyEnv):
    """One of whose environments has no end."""

    def __init__(self, num_env, limit):
        super().__init__(num_env, limit)
        self.max_episode_steps = None

    def step(self, action):
        step = super().step(action)
        step.truncated[-1] = False
        return step


def test_environments_that_are_left_over_are_not_waited_for():
    env = LastNeverEnds(3, 4)
    made = PerturbedEpisodes(env, network_of(2, (), 1), None, seed=0, longest=20, noise=0.1)
    rows = made.play(torch.zeros(3), 0, range(5))
    assert rows[..., 1].tolist() == [[4, 4], [4, 4], [20, 20], [4, 4], [4, 4]]
    assert len(env.actions) == 2 * 20 + 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["es", "ars"])
def test_lqr_comes_to_its_riccati_optimum(name):
    settings = {
        "es": {"name": "es", "network": [], "population": 64, "noise": 0.1, "learning_rate": 0.05,
               "weight_decay": 0.0, "normalize_observation": False},
        "ars": {"name": "ars", "population": 32, "noise": 0.05, "learning_rate": 1.0,
                "normalize_observation": False},
    }[name]  # fmt: skip
    learned = section(settings, "bodies_evolution:GmiLQR-v0", num_env=16)
    before = bodies.expected_cost(np.zeros((1, 2)))
    best = bodies.expected_cost(bodies.riccati_gain())
    parameters, *_ = bodies.rounds(solo_group(), learned, 100)
    cost = bodies.expected_cost(parameters[None, 1:].astype(float))
    assert before > 2 * best
    assert cost < 1.02 * best


def test_returns_that_are_nan_are_counted_and_left_out():
    learned = section(
        {"name": "es", "network": [], "population": 8, "noise": 0.5},
        "bodies_evolution:GmiLQR-v0", options={"broken": True},
    )  # fmt: skip
    parameters, moments, steps, told = bodies.rounds(solo_group(), learned, 2)
    assert [round["nan_returns"] for round in told] == [4, 4]  # of two directions, both ways
    assert np.isfinite(parameters).all()
    assert np.isfinite(moments).all()
    assert parameters.any()
    assert (moments[0], steps) == (2 * 4 * bodies.STEPS, 2 * 8 * bodies.STEPS)
    assert [round["episodes"] for round in told] == [4, 4]
    one = {**learned, "algorithm": {"name": "ars", "population": 2}}
    one["env"] = {**one["env"], "num_env": 1}
    with pytest.raises(RoleError, match=r"2 of 2 episodes paid, .* Lower algorithm.noise, 0.05"):
        bodies.rounds(solo_group(), one, 20)


def test_actions_that_are_nan_are_counted_as_returns_that_are():
    settings = {"name": "es", "network": [8], "population": 8, "noise": 1e38, "horizon": 20}
    learned = section(settings, "Pendulum-v1")  # some of whose actions are infinity less infinity
    parameters, _, steps, told = bodies.rounds(solo_group(), learned, 4)
    lost = [round["nan_returns"] for round in told]
    assert any(0 < count < 8 for count in lost)
    assert [round["episodes"] for round in told] == [8 - count for count in lost]
    assert steps == 4 * 8 * 20
    assert np.isfinite(parameters).all()


@pytest.mark.parametrize("normalized", [True, False])
def test_episodes_that_show_nan_are_counted_and_left_out(normalized):
    settings = {"name": "es", "network": [8], "population": 8, "normalize_observation": normalized}
    learned = section(settings, "bodies_evolution:Blind-v0")  # chooses an action all the same
    parameters, moments, steps, told = bodies.rounds(solo_group(), learned, 2)
    assert [(one["nan_returns"], one["episodes"]) for one in told] == [(4, 4), (4, 4)]
    assert [one["return_mean"] for one in told] == [bodies.STEPS, bodies.STEPS]
    assert steps == 2 * 8 * bodies.STEPS
    assert np.isfinite(parameters).all()
    assert np.isfinite(moments).all()


def test_the_survival_bonus_is_taken_off_in_training_alone():
    def first(bonus):
        learned = section({"name": "ars", "population": 8, "survival_bonus": bonus})
        return bodies.rounds(solo_group(), learned, 1)

    without, with_it = first(0.0), first(1.0)
    assert without[3] == with_it[3]  # what is reported has it
    # CartPole pays 1 a step and nothing else: less that, all are as good.
    assert without[0].any()
    assert not with_it[0].any()


def faults_of(words, gmis=1):
    config = load_config(section({"name": "es"}), words)
    return [str(fault) for fault in check(config, Topology.from_cores(range(8), 1))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm.population=7"], "must be even: each direction is tried both ways. Use 6 or 8"),
        (["algorithm.noise=0"], "algorithm.noise=0; must be more than 0"),
        (["algorithm.noise=-1"], "algorithm.noise=-1; must be more than 0"),
        (
            ["algorithm.name=ars", "algorithm.population=8", "algorithm.top_directions=5"],
            "top_directions=5; must be at most 4, the directions of population=8. Lower it",
        ),
        (["algorithm.recurrent={}"], "algorithm.recurrent; is a setting of ppo"),
        (["algorithm.distributional=c51"], "is a setting of dqn, and the algorithm is es"),
        (["algorithm.optimizer=all_reduce"], "the algorithm runs under population. Use population"),
        (["algorithm.gamma=0.9"], "algorithm.gamma=0.9; must be 1 for es"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(words, message):
    with pytest.raises(ConfigError) as caught:
        faults_of(words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["algorithm.population=6", "layout.gmi_per_gpu=4", "env.num_env=1"],
            "algorithm.population=6; must be at least 8, so that each of 4 GMIs has a direction to "
            "try both ways. Raise it, or use fewer GMIs.",
        ),
        (
            ["algorithm.population=16", "layout.gmi_per_gpu=2", "env.num_env=8"],
            "env.num_env=8; population=16 gives each of 2 GMIs 4 directions to try, each in an "
            "environment, one way and then the other. Use 4 or fewer, or a population of 32.",
        ),
        (
            ["layout.template=tdg_ex", "layout.gmi_per_gpu=2"],
            "under population each GMI tries policies in environments of its own. Use tcg_ex.",
        ),
        (["mode=async"], "algorithm.name='es'; it trains in mode sync, and the mode is async"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(words, message):
    assert any(message in fault for fault in faults_of(words)), faults_of(words)


def test_a_network_of_a_roles_own_acts_without_memory_or_noise():
    with pytest.raises(PolicyError, match="without memory or noise"):
        ES.check_network(torch.nn.Linear(3, 2), "mine", 3, None, ESConfig())
