"""Rainbow's parts: dueling streams, noisy layers, distributions of values; against formulas."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import bodies_dqn as bodies
from device_only import DeviceOnly
from gmi_drl.comm import solo_group
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.placement.checks.memory import Sizes
from gmi_drl.placement.config.algorithms import DQNConfig
from gmi_drl.roles.algorithms.distributional import (
    action_values,
    categorical_loss,
    project,
    quantile_huber_loss,
    support,
)
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.errors import PolicyError
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.q_network import DuelingHead, NoisyLinear, QNetwork, factorised_
from gmi_drl.roles.samples.batch import Batch
from toy_env import ToyEnv

KINDS = ("none", "c51", "qr")
EVERYTHING = {"dueling": True, "noisy": True, "double": True}


# Rows are few: a second thread waits longer than it works.
pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def settings_of(distributional="none", **changes):
    values = {"network": [16], "gamma": 0.9, "atoms": 5, "value_range": [-2.0, 2.0], "quantiles": 5}
    return DQNConfig(distributional=distributional, **values | changes)


def algorithm_of(settings):
    network = QNetwork(bodies.WIDTH, bodies.ACTIONS, settings, seeded(1))
    algorithm = DQN(settings, DQN.make_policy(network, settings), Normalizers(None, None))
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.normal_(0.0, 0.5, generator=seeded(3))
    return algorithm


def minibatch(algorithm, seed=2):
    """Rows of one to three steps, some of which end an episode."""
    whole = bodies.experience(seeded(seed), 6, 7)
    rows = Batch({name: column.flatten(0, 1) for name, column in whole.columns.items()})
    rows = rows.transitions(None)
    steps = torch.randint(1, 4, (42,), generator=seeded(seed))
    rows.columns |= {"steps": steps, "discount": (0.9**steps).masked_fill(rows["terminated"], 0.0)}
    algorithm.draw_noise(rows, seeded(5))
    return rows


# Dueling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("atoms", [1, 5])
def test_dueling_is_the_value_and_the_advantages_less_their_mean(atoms):
    head = DuelingHead(
        4, 3, atoms, "relu", lambda inputs, outputs, gain: nn.Linear(inputs, outputs)
    )
    features = torch.randn(6, 4, generator=seeded())
    with torch.no_grad():
        value = head.value(torch.relu(head.value_hidden(features)))
        advantage = head.advantage(torch.relu(head.advantage_hidden(features))).view(6, 3, atoms)
        given = head(features).view(6, 3, atoms)
    for row, action, atom in itertools.product(range(6), range(3), range(atoms)):
        mean = sum(float(advantage[row, other, atom]) for other in range(3)) / 3
        wanted = float(value[row, atom]) + float(advantage[row, action, atom]) - mean
        assert float(given[row, action, atom]) == pytest.approx(wanted, abs=1e-6)
    with torch.no_grad():
        head.advantage.bias.add_(7.0)  # a part of all advantages is none
        torch.testing.assert_close(head(features).view(6, 3, atoms), given)
        head.value.bias.add_(2.0)
        torch.testing.assert_close(head(features).view(6, 3, atoms), given + 2.0)


# Noisy layers -------------------------------------------------------------------------------------


def test_noise_is_the_signed_root_of_normal_numbers():
    normal = torch.randn(1000, generator=seeded())
    wanted = [np.sign(number) * abs(number) ** 0.5 for number in normal.tolist()]
    assert factorised_(normal.clone()).tolist() == pytest.approx(wanted, rel=1e-5)


def test_noise_has_the_mean_and_the_variance_of_the_paper():
    layer = NoisyLinear(20, 10, seeded())
    features = torch.randn(20, generator=seeded(1))
    noise = factorised_(torch.randn(40_000, 30, generator=seeded(2)))
    # f(e)^2 = |e|, of which the mean is sqrt(2 / pi).
    expected = (2 / np.pi) ** 0.5
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.005)
    assert float(noise.square().mean()) == pytest.approx(expected, rel=0.01)
    with torch.no_grad():
        given = layer(features.expand(40_000, 20), noise)
        mean = layer(features)
        # Weights: of products of two such numbers; the bias has one: section 3 there, (b).
        sigmas = layer.sigma_weight.square() @ features.square() * expected**2
        variance = sigmas + layer.sigma_bias.square() * expected
    torch.testing.assert_close(given.mean(0), mean, atol=0.02, rtol=0)
    torch.testing.assert_close(given.var(0), variance, rtol=0.05, atol=0)


def varied(layer, noise):
    """The dense layer that a noisy one is with this noise: eq. 9 to 11 of the paper."""
    inputs = layer.weight.shape[1]
    of_inputs, of_outputs = noise[:inputs], noise[inputs:]
    weight = layer.weight + layer.sigma_weight * torch.outer(of_outputs, of_inputs)
    return weight, layer.bias + layer.sigma_bias * of_outputs


def test_a_noisy_layer_has_a_weight_matrix_of_its_own_for_each_row():
    layer = NoisyLinear(5, 3, seeded())
    features, noise = torch.randn(4, 5, generator=seeded(1)), torch.randn(4, 8, generator=seeded(2))
    for row in range(4):
        weight, bias = varied(layer, noise[row])
        wanted = weight @ features[row] + bias
        torch.testing.assert_close(layer(features, noise)[row], wanted)
        torch.testing.assert_close(layer(features, noise[row])[row], wanted)
    torch.testing.assert_close(layer(features), features @ layer.weight.T + layer.bias)


def test_noisy_layers_begin_as_the_paper_has_them():
    layer = NoisyLinear(100, 50, seeded())
    assert float(layer.weight.detach().abs().max()) <= 0.1
    assert float(layer.weight.detach().std()) == pytest.approx(0.1 / 3**0.5, rel=0.05)
    for sigma in (layer.sigma_weight, layer.sigma_bias):
        torch.testing.assert_close(sigma.detach(), torch.full_like(sigma, 0.05))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("distributional", KINDS)
def test_a_noisy_policy_acts_by_noise_of_each_step_and_environment(distributional, dueling):
    settings = settings_of(distributional, noisy=True, dueling=dueling)
    policy = algorithm_of(settings).policy
    with torch.no_grad():
        for name, parameter in policy.network.named_parameters():
            parameter.mul_(10.0 if "sigma" in name else 1.0)
    policy.epsilon.fill_(1.0)  # is not looked at
    batch = Batch.allocate(2, 50, bodies.WIDTH, policy, torch.device("cpu"))
    batch["observation"].copy_(torch.randn(bodies.WIDTH, generator=seeded()))
    policy.noise(seeded(4), batch)
    assert len(batch["noise"].flatten().unique()) > 0.99 * batch["noise"].numel()
    with torch.no_grad():
        for step in batch.steps():
            policy.act(step)
        network, seen = policy.network, batch["observation"]
        for t, env in ((0, 3), (1, 7)):
            given = network(seen[t, env : env + 1], batch["noise"][t, env])
            best = int(action_values(given, settings).argmax())
            assert int(batch["action"][t, env, 0]) == best
        greedy = policy.mode(seen[0])
    assert len(batch["action"].unique()) > 1
    assert len(greedy.unique()) == 1
    again = Batch.allocate(2, 50, bodies.WIDTH, policy, torch.device("cpu"))
    policy.noise(seeded(4), again)
    assert torch.equal(again["noise"], batch["noise"])


@pytest.mark.parametrize("distributional", KINDS)
def test_a_noisy_loss_is_that_of_three_networks_with_other_weights(distributional):
    settings = settings_of(distributional, noisy=True)
    algorithm, plain = algorithm_of(settings), settings_of(distributional)
    batch = minibatch(algorithm)
    given = algorithm.losses(batch)

    def dense(network, noise):
        like = QNetwork(bodies.WIDTH, bodies.ACTIONS, plain)
        with torch.no_grad():
            like.trunk.load_state_dict(network.trunk.state_dict())
            weight, bias = varied(network.head, noise)
            like.head.weight.copy_(weight)
            like.head.bias.copy_(bias)
        return like

    network, target = algorithm.policy.network, algorithm.target
    own, chooser = dense(network, batch["noise"][0]), dense(network, batch["noise"][1])
    valued = dense(target, batch["noise"][2])

    def networks(observation):
        return (own if observation is batch["observation"] else chooser)(observation)

    columns = {name: column for name, column in batch.columns.items() if name != "noise"}
    wanted = DQN.loss(networks, valued, Batch(columns), plain)
    torch.testing.assert_close(given.total, wanted.total)
    torch.testing.assert_close(given.extras["priorities"], wanted.extras["priorities"])
    again = minibatch(algorithm)
    algorithm.draw_noise(again, seeded(6))
    assert not torch.equal(again["noise"], batch["noise"])


# Distributions ------------------------------------------------------------------------------------


def projected(probabilities, values, v_min, v_max):
    """Algorithm 1 of Bellemare et al. (2017), word for word."""
    atoms = len(probabilities)
    delta, out = (v_max - v_min) / (atoms - 1), np.zeros(atoms)
    for probability, value in zip(probabilities, values, strict=True):
        place = (min(max(value, v_min), v_max) - v_min) / delta
        lower, upper = int(np.floor(place)), int(np.ceil(place))
        if lower == upper:
            out[lower] += probability
        else:
            out[lower] += probability * (upper - place)
            out[upper] += probability * (place - lower)
    return out


@pytest.mark.parametrize(("atoms", "v_min", "v_max"), [(2, 0.0, 1.0), (5, -2.0, 2.0), (51, -10, 7)])
def test_the_projection_is_that_of_algorithm_1(atoms, v_min, v_max):
    probabilities = torch.randn(40, atoms, generator=seeded()).mul(3).softmax(-1)
    values = torch.linspace(v_min, v_max, atoms) * torch.rand(40, 1, generator=seeded(1))
    values += torch.randn(40, 1, generator=seeded(2)) * (v_max - v_min)
    values[0] = torch.linspace(v_min, v_max, atoms)  # where they are already
    values[1:3] = torch.tensor([[v_min], [v_max]])  # ends of episodes, just at the ends
    given = project(probabilities, values, (v_min, v_max))
    for row in range(40):
        wanted = projected(
            probabilities[row].double().numpy(), values[row].double().numpy(), v_min, v_max
        )
        np.testing.assert_allclose(given[row].numpy(), wanted, atol=1e-5)
    torch.testing.assert_close(given[0], probabilities[0], atol=1e-5, rtol=0)


def test_a_projection_keeps_the_mass_and_inside_the_support_the_mean():
    probabilities = torch.randn(200, 11, generator=seeded()).softmax(-1)
    values = torch.rand(200, 11, generator=seeded(1)) * 6 - 3
    given = project(probabilities, values, (-3.0, 3.0))
    assert float(given.min()) >= 0.0
    torch.testing.assert_close(given.sum(-1), torch.ones(200))
    means = (given * torch.linspace(-3.0, 3.0, 11)).sum(-1)
    torch.testing.assert_close(means, (probabilities * values).sum(-1), atol=1e-5, rtol=1e-4)
    outside = project(probabilities, values * 10, (-3.0, 3.0))
    torch.testing.assert_close(outside.sum(-1), torch.ones(200))


def huber(error, kappa):
    return 0.5 * error**2 if abs(error) <= kappa else kappa * (abs(error) - 0.5 * kappa)


@pytest.mark.parametrize("kappa", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(("own", "other"), [(1, 1), (4, 4), (3, 8)])
def test_the_quantile_loss_is_equation_10(own, other, kappa):
    quantiles = torch.randn(6, own, generator=seeded())
    targets = torch.randn(6, other, generator=seeded(1)) * 2
    given = quantile_huber_loss(quantiles, targets, kappa)
    for row in range(6):
        wanted = 0.0
        for i in range(own):
            for j in range(other):
                error = float(targets[row, j] - quantiles[row, i])
                weight = abs((2 * i + 1) / (2 * own) - (error < 0))
                wanted += weight * huber(error, kappa) / kappa / other
        assert float(given[row]) == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_the_quantile_loss_is_sb3_contrib_s():
    theirs = pytest.importorskip("sb3_contrib.common.utils", reason="of the extra `bench`")
    quantiles = torch.randn(6, 7, generator=seeded())
    targets = torch.randn(6, 7, generator=seeded(1)) * 2
    wanted = theirs.quantile_huber_loss(quantiles, targets, sum_over_quantiles=True)
    torch.testing.assert_close(quantile_huber_loss(quantiles, targets, 1.0).mean(), wanted)


def test_one_quantile_is_half_of_dqn():
    one = algorithm_of(settings_of("qr", quantiles=1))
    plain = DQN(settings_of(), one.policy, Normalizers(None, None))
    plain.__dict__["target"] = one.target
    batch = minibatch(one)
    torch.testing.assert_close(one.losses(batch).total * 2, plain.losses(batch).total)


def test_quantiles_that_are_trained_are_those_of_the_target():
    quantiles = nn.Parameter(torch.zeros(1, 4))
    sample = torch.randn(1, 1000, generator=seeded()).exp()
    optimizer = torch.optim.Adam([quantiles], lr=0.02)
    for _ in range(600):
        optimizer.zero_grad()
        quantile_huber_loss(quantiles, sample, 1e-3).sum().backward()
        optimizer.step()
    wanted = torch.quantile(sample[0], torch.tensor([0.125, 0.375, 0.625, 0.875]))
    torch.testing.assert_close(quantiles.detach()[0], wanted, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("distributional", ["c51", "qr"])
def test_the_loss_of_a_distribution_is_the_one_that_is_written_out(distributional, double):
    settings = settings_of(distributional, double=double)
    algorithm = algorithm_of(settings)
    batch = minibatch(algorithm)
    given = algorithm.losses(batch)
    network, target = algorithm.policy.network, algorithm.target
    values = torch.linspace(-2.0, 2.0, 5)

    def mean(numbers):  # [A, 5]
        return numbers.softmax(-1) @ values if distributional == "c51" else numbers.mean(-1)

    losses, priorities, errors = [], [], []
    for row in range(len(batch["reward"])):
        at = {name: column[row] for name, column in batch.columns.items()}
        with torch.no_grad():
            following = target(at["next_observation"]).view(3, 5)
            chooser = following
            if double:
                chooser = network(at["next_observation"]).view(3, 5)
            after = following[int(mean(chooser).argmax())]
        own = network(at["observation"]).view(3, 5)[int(at["action"][0])]
        discount = 0.0 if at["terminated"] else 0.9 ** int(at["steps"])
        reward = float(at["reward"])
        if distributional == "c51":
            goal = torch.from_numpy(
                projected(after.softmax(-1).numpy(), reward + discount * values.numpy(), -2, 2)
            ).float()
            losses.append(-(goal * own.log_softmax(-1)).sum())
            priorities.append(float(losses[-1].detach()))
            errors.append(abs(float((own.detach().softmax(-1) - goal) @ values)))
        else:
            goal = reward + discount * after
            losses.append(quantile_huber_loss(own[None], goal[None], 1.0)[0])
            priorities.append(float(losses[-1].detach()) / 5)
            errors.append(abs(float(own.detach().mean() - goal.mean())))
    wanted = torch.stack(losses).mean()
    assert given.total.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert given.extras["priorities"].tolist() == pytest.approx(priorities, rel=1e-4, abs=1e-6)
    assert given.stats["td_error"].item() == pytest.approx(np.mean(errors), rel=1e-4)
    for mine, theirs in zip(
        torch.autograd.grad(given.total, list(network.parameters())),
        torch.autograd.grad(wanted, list(network.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_cross_entropy_is_least_where_both_agree():
    target = torch.randn(3, 5, generator=seeded()).softmax(-1)
    least = categorical_loss(target.log(), target)
    torch.testing.assert_close(least, -(target * target.log()).sum(-1))
    other = torch.randn(3, 5, generator=seeded(1))
    assert (categorical_loss(other, target) > least).all()


# All of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("distributional", KINDS)
@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["alone", "all"])
def test_each_row_counts_by_its_weight(distributional, changes):
    algorithm = algorithm_of(settings_of(distributional, **changes))
    batch = minibatch(algorithm)
    alike = algorithm.losses(batch).total.detach()
    batch.columns["weight"] = torch.rand(len(batch["reward"]), generator=seeded())
    weighted = algorithm.losses(batch)
    total, weights = weighted.total.detach(), batch["weight"].clone()
    rows = []
    for row in range(len(weights)):
        batch["weight"].zero_()[row] = 1.0
        rows.append(algorithm.losses(batch).total.detach())
    torch.testing.assert_close(torch.stack(rows).sum(), alike)
    torch.testing.assert_close((torch.stack(rows) * weights).sum(), total)
    assert weighted.extras["priorities"].min() >= 0.0
    assert weighted.extras["priorities"].shape == (len(weights),)


@pytest.mark.parametrize("distributional", KINDS)
def test_what_was_seen_where_an_episode_ended_counts_for_nothing(distributional):
    algorithm = algorithm_of(settings_of(distributional, **EVERYTHING))
    batch = minibatch(algorithm)
    wanted = algorithm.losses(batch)
    batch["next_observation"][batch["terminated"]] = torch.nan
    assert batch["terminated"].any()
    given = algorithm.losses(batch)
    torch.testing.assert_close(given.total, wanted.total)
    torch.testing.assert_close(given.extras["priorities"], wanted.extras["priorities"])


@pytest.mark.parametrize("distributional", KINDS)
def test_nothing_is_read_on_the_host(distributional):
    algorithm = algorithm_of(settings_of(distributional, target_every=1, **EVERYTHING))
    batch = minibatch(algorithm)
    acted = Batch.allocate(1, 4, bodies.WIDTH, algorithm.policy, torch.device("cpu"))
    step = acted.steps()[0]
    with DeviceOnly():
        algorithm.losses(batch).total.backward()
        with torch.no_grad():
            algorithm.policy.act(step)
        algorithm.after_step(1)


@pytest.mark.parametrize("distributional", KINDS)
def test_it_learns_what_each_action_pays(distributional):
    its = {"atoms": 21, "quantiles": 21, "learning_rate": 1e-2, "target_every": 10}
    settings = settings_of(distributional, **its, **EVERYTHING)
    algorithm = algorithm_of(settings)
    learner, generator = Learner(algorithm, seeded()), seeded(8)
    learner.connect(solo_group())
    pays = torch.tensor([-1.0, 0.5, 1.2])
    for _ in range(200):
        action = torch.randint(0, 3, (64, 1), generator=generator)
        luck = torch.randn(64, generator=generator) * 0.2
        batch = Batch(
            {
                "observation": torch.ones(64, bodies.WIDTH), "action": action.float(),
                "next_observation": torch.ones(64, bodies.WIDTH),
                "reward": pays[action[:, 0]] + luck, "discount": torch.zeros(64),
            }
        )  # fmt: skip
        algorithm.draw_noise(batch, generator)
        learner.step(batch)
    with torch.no_grad():
        given = action_values(algorithm.policy.network(torch.ones(1, bodies.WIDTH)), settings)
    torch.testing.assert_close(given[0], pays, atol=0.15, rtol=0)


# Gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("distributional", KINDS)
@pytest.mark.parametrize("dueling", [False, True])
def test_gradients_of_noisy_networks_are_those_of_finite_differences(distributional, dueling):
    settings = settings_of(distributional, noisy=True, dueling=dueling, network=[4])
    network = QNetwork(bodies.WIDTH, bodies.ACTIONS, settings, seeded()).double()
    noise = factorised_(torch.randn(network.noise_columns, generator=seeded(1)).double())
    observation = torch.randn(3, bodies.WIDTH, generator=seeded(2)).double()
    names = [name for name, _ in network.named_parameters()]

    def values(*parameters):
        its = dict(zip(names, parameters, strict=True))
        outputs = torch.func.functional_call(network, its, (observation, noise))
        return outputs.unflatten(-1, (bodies.ACTIONS, -1)).logsumexp(-1)

    assert torch.autograd.gradcheck(values, tuple(network.parameters()))


def test_gradients_of_the_losses_are_those_of_finite_differences():
    outputs = torch.randn(4, 5, generator=seeded()).double().requires_grad_()
    target = torch.randn(4, 5, generator=seeded(1)).double()
    assert torch.autograd.gradcheck(lambda own: categorical_loss(own, target.softmax(-1)), outputs)
    assert torch.autograd.gradcheck(lambda own: quantile_huber_loss(own, target * 2), outputs)


# Settings and networks of one's own ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"distributional": "c51"}, "distributional: c51 needs it. Give the least and the largest"),
        ({"distributional": "c51", "value_range": [5, 5]}, "two numbers, the smaller one first"),
        ({"distributional": "c51", "value_range": [5]}, "must be two numbers. Write"),
        ({"distributional": "c51", "atoms": 1, "value_range": [0, 1]}, "algorithm.atoms=1; "),
        ({"distributional": "qr", "quantiles": 0}, "algorithm.quantiles=0; "),
        ({"distributional": "quantile"}, "must be one of none, c51, qr"),
    ],
)
def test_settings_that_tell_nothing_are_faults(settings, rule):
    section = {"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"} | settings}
    with pytest.raises(ConfigError) as caught:
        load_config(section)
    (fault,) = caught.value.faults
    assert rule in str(fault)


def test_settings_that_are_written_out_are_read_again():
    given = {"name": "dqn", "distributional": "c51", "value_range": [0, 10], "dueling": True}
    config = load_config({"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": given})
    assert config.algorithm.value_range == (0.0, 10.0)
    assert load_config(config.model_dump(mode="json", by_alias=True)) == config


@pytest.mark.parametrize("name", ["c51", "QR-DQN"])
def test_who_asks_for_an_algorithm_of_that_name_is_told_of_dqn(name):
    section = {"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": {"name": name}}
    kind = name.lower().removesuffix("-dqn")
    with pytest.raises(ConfigError, match=f"Use dqn with distributional: {kind}"):
        load_config(section)


@pytest.mark.parametrize("distributional", KINDS)
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_all_parameters_are_counted_before_there_are_any(distributional, dueling, noisy):
    settings = settings_of(distributional, dueling=dueling, noisy=noisy, network=[16, 8])
    section = {"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": settings.model_dump()}
    sizes = Sizes(observation=4, action=1, parameters=3)
    made = QNetwork(4, 3, settings)
    counted = sizes.network(load_config(section))
    assert counted == sum(parameter.numel() for parameter in made.parameters())


def test_a_network_of_one_s_own_gives_all_outputs_and_takes_noise():
    env = ToyEnv(1, 3)
    with pytest.raises(EnvSpecError, match="dqn takes Discrete"):
        DQN.make_network(settings_of("c51"), env, None)
    env.action_space = bodies.CHOICES
    for distributional in KINDS:
        settings = settings_of(distributional, **EVERYTHING)
        DQN.check_network(QNetwork(2, 3, settings), "mine", 2, env, settings)
    for changes, why in (
        ({"distributional": "qr"}, "algorithm.quantiles=5 numbers of the value of each action"),
        ({"noisy": True}, "no noise_columns"),
    ):
        with pytest.raises(PolicyError, match=why):
            DQN.check_network(nn.Linear(2, 3), "mine", 2, env, settings_of(**changes))


def test_a_description_says_what_the_parameters_do_not():
    def told(distributional):
        its = QNetwork(2, 3, settings_of(distributional)).describe()
        return its.get("distributional"), its.get("value_range")

    assert [told(kind) for kind in KINDS] == [(None, None), ("c51", (-2.0, 2.0)), ("qr", None)]


def test_the_support_is_even_from_end_to_end():
    given = support(settings_of("c51"), torch.device("cpu")).tolist()
    assert given == pytest.approx([-2.0, -1.0, 0.0, 1.0, 2.0])
