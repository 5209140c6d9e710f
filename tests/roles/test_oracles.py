"""Losses, targets and draws of kept transitions against those of other libraries.

Stable-Baselines3 and its contributions, TorchRL, rlax and cpprb are given our networks' numbers,
our minibatch and our noise. A library that is not installed is left out.
"""

import copy
import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import bodies_off_policy as bodies
from batches import algorithm_of
from gmi_drl.placement.config.algorithms import DDPGConfig, DQNConfig, SACConfig, TD3Config
from gmi_drl.roles.algorithms import algorithm_class
from gmi_drl.roles.algorithms.distributional import project, quantile_huber_loss
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import PrioritizedSampler, Storage

pytestmark = pytest.mark.filterwarnings("ignore:No target network updater")  # of TorchRL

WIDTH, ACTIONS, ROWS, GAMMA = 3, 4, 16, 0.9
CPU = torch.device("cpu")
SHARED = {"network": [16, 16], "activation": "relu", "gamma": GAMMA}
BOX = spaces.Box(-1.0, 1.0, (bodies.ACTION,))


def made_of(settings, action_space):
    """An algorithm whose target is another network than the one that is trained."""
    generator = torch.Generator().manual_seed(1)
    env = bodies.env_of(action_space)
    network = algorithm_class(settings).make_network(settings, env, generator)
    made = algorithm_of(network, settings)
    with torch.no_grad():
        for parameter in (*network.parameters(), *made.target.parameters()):
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return made


def choices(made_settings, **more):
    """DQN, and a minibatch that a replay would draw."""
    made = made_of(DQNConfig(**SHARED, **made_settings), spaces.Discrete(ACTIONS))
    generator = torch.Generator().manual_seed(2)
    over = torch.rand(ROWS, generator=generator) < 0.3
    batch = Batch(
        {
            "observation": torch.randn(ROWS, WIDTH, generator=generator),
            "next_observation": torch.randn(ROWS, WIDTH, generator=generator),
            "action": torch.randint(ACTIONS, (ROWS, 1), generator=generator).float(),
            "reward": 2 * torch.randn(ROWS, generator=generator),
            "discount": torch.where(over, 0.0, GAMMA),
            **more,
        }
    )  # fmt: skip
    return made, batch


def gradients(made, total):
    parameters = list(made.policy.network.parameters())
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return [
        torch.zeros_like(p) if its is None else its
        for p, its in zip(parameters, found, strict=True)
    ]


def assert_alike(ours, theirs, rtol=1e-4, atol=1e-6):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.view_as(one), rtol=rtol, atol=atol)


# Stable-Baselines3, whose losses are within its training steps ------------------------------------


class Recorder:
    """An optimizer that takes no step, and keeps the gradients that it was to step by."""

    def __init__(self, parameters):
        self.parameters, self.param_groups, self.gradients = list(parameters), [{}], None

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters
        ]


class Spaces(gymnasium.Env):
    """An environment of which only the spaces are asked for."""

    def __init__(self, action_space):
        self.observation_space = spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
        self.action_space = action_space


def load(module, parameters):
    with torch.no_grad():
        for mine, its in zip(module.parameters(), parameters, strict=True):
            mine.copy_(its.view_as(mine))


def sb3_model(name, action_space, batch, **how):
    """A model that trains on `batch` alone, its noise aside."""
    sb3 = pytest.importorskip("stable_baselines3")
    samples = pytest.importorskip("stable_baselines3.common.type_aliases").ReplayBufferSamples
    given = {
        "gamma": GAMMA, "buffer_size": 10, "device": "cpu", "verbose": 0,
        "policy_kwargs": {"net_arch": [16, 16], "activation_fn": torch.nn.ReLU}, **how,
    }  # fmt: skip
    model = getattr(sb3, name)("MlpPolicy", Spaces(action_space), **given)
    model.set_logger(pytest.importorskip("stable_baselines3.common.logger").Logger(None, []))
    drawn = samples(
        observations=batch["observation"], actions=batch["action"],
        next_observations=batch["next_observation"],
        dones=(batch["discount"] == 0.0).float()[:, None], rewards=batch["reward"][:, None],
        discounts=torch.where(batch["discount"] > 0, batch["discount"], GAMMA)[:, None],
    )  # fmt: skip
    model.replay_buffer = SimpleNamespace(sample=lambda *_, **__: drawn)
    return model


def load_actor(actor, ours, count):
    """`count`: numbers of each action, which are heads of their own there."""
    parameters = list(ours.parameters())
    weights, biases = parameters[-2].chunk(count), parameters[-1].chunk(count)
    heads = [part for pair in zip(weights, biases, strict=True) for part in pair]
    load(actor, [*parameters[:-2], *heads])


def test_dqn_of_stable_baselines3():
    made, batch = choices({"double": False})
    model = sb3_model("DQN", spaces.Discrete(ACTIONS), batch, max_grad_norm=1e9)
    load(model.q_net, made.policy.network.parameters())
    load(model.q_net_target, made.target.parameters())
    model.policy.optimizer = Recorder(model.q_net.parameters())
    model.train(gradient_steps=1, batch_size=ROWS)
    found = gradients(made, made.losses(batch).total)
    assert_alike(found, model.policy.optimizer.gradients)
    assert max(float(one.abs().max()) for one in found) > 0.01


def test_sac_of_stable_baselines3(monkeypatch):
    made = made_of(SACConfig(**SHARED), BOX)
    batch = bodies.rows_of(made)
    model = sb3_model("SAC", BOX, batch)
    load_actor(model.actor, made.policy.network.actor, 2)
    load(model.critic, made.policy.network.critics.parameters())
    load(model.critic_target, made.target.critics.parameters())
    with torch.no_grad():
        model.log_ent_coef.copy_(made.policy.network.log_temperature)
    after, now = batch["noise"].chunk(2, -1)
    drawn = iter((now, after))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: next(drawn))
    model.actor.optimizer = Recorder(model.actor.parameters())
    model.critic.optimizer = Recorder(model.critic.parameters())
    model.ent_coef_optimizer = Recorder([model.log_ent_coef])
    model.train(gradient_steps=1, batch_size=ROWS)
    given = made.losses(batch)
    names = [name for name, _ in made.policy.network.named_parameters()]
    found = dict(zip(names, gradients(made, given.total), strict=True))
    of_actor = [its for name, its in found.items() if name.startswith("actor")]
    heads = model.actor.optimizer.gradients
    joined = [torch.cat([heads[-4], heads[-2]]), torch.cat([heads[-3], heads[-1]])]
    # There 1e-6 is added within the logarithm of a squashed action's correction.
    assert_alike(of_actor, [*heads[:-4], *joined], rtol=1e-3, atol=1e-4)
    of_critics = [its for name, its in found.items() if name.startswith("critics")]
    assert_alike(of_critics, model.critic.optimizer.gradients, rtol=1e-3, atol=1e-4)
    assert_alike([found["log_temperature"]], model.ent_coef_optimizer.gradients, rtol=1e-3)


@pytest.mark.parametrize("update", [1, 2])
@pytest.mark.parametrize("name", ["TD3", "DDPG"])
def test_td3_and_ddpg_of_stable_baselines3(monkeypatch, name, update):
    """Two updates: the first of the critics alone with TD3, as the actor is delayed."""
    if name == "TD3":
        made = made_of(TD3Config(**SHARED, target_noise=0.4, target_noise_clip=0.3), BOX)
    else:
        made = made_of(DDPGConfig(**SHARED), BOX)
    made._updates = update - 1
    batch = bodies.rows_of(made)
    how = {"target_policy_noise": 0.4, "target_noise_clip": 0.3} if name == "TD3" else {}
    model = sb3_model(name, BOX, batch, tau=made.settings.tau, **how)
    model._n_updates = update - 1
    network, target = made.policy.network, made.target
    load(model.actor, network.actor.parameters())
    load(model.actor_target, target.actor.parameters())
    load(model.critic, network.critics.parameters())
    load(model.critic_target, target.critics.parameters())
    model.actor.optimizer = Recorder(model.actor.parameters())
    model.critic.optimizer = Recorder(model.critic.parameters())
    if name == "TD3":
        monkeypatch.setattr(
            torch.Tensor, "normal_", lambda self, _, std: self.copy_(std * batch["noise"])
        )
    model.train(gradient_steps=1, batch_size=ROWS)
    monkeypatch.undo()
    given = made.losses(batch)
    found = gradients(made, given.total)
    of_actor = list(network.actor.parameters())
    # Half the squared error here, the whole there.
    assert_alike([2 * its for its in found[len(of_actor) :]], model.critic.optimizer.gradients)
    due = name == "DDPG" or update == 2
    assert ("actor" in given.groups) == due
    if due:
        assert_alike(found[: len(of_actor)], model.actor.optimizer.gradients)
    else:
        assert model.actor.optimizer.gradients is None
    made.after_step(update)
    assert_alike(list(target.actor.parameters()), list(model.actor_target.parameters()))
    assert_alike(list(target.critics.parameters()), list(model.critic_target.parameters()))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**16), steps=st.integers(2, 40), n_step=st.integers(1, 6),
    capacity=st.integers(3, 50),
)  # fmt: skip
def test_n_step_transitions_of_stable_baselines3(seed, steps, n_step, capacity):
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    generator = np.random.default_rng(seed)
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    theirs = buffers.NStepReplayBuffer(
        capacity, space, spaces.Discrete(2), "cpu", n_steps=n_step, gamma=GAMMA
    )
    columns = {name: [] for name in ("raw", "next", "reward", "done", "terminated")}
    seen = generator.normal()
    for _ in range(steps):
        after, reward = generator.normal(), generator.normal()
        done = generator.random() < 0.3
        cut = done and generator.random() < 0.5
        theirs.add(
            np.array([[seen]]), np.array([[after]]), np.array([[0]]), np.array([reward]),
            np.array([done]), [{"TimeLimit.truncated": cut}],
        )  # fmt: skip
        for column, value in zip(
            columns.values(), (seen, after, reward, done, done and not cut), strict=True
        ):
            column.append(value)
        seen = generator.normal() if done else after

    def column(name, dtype=torch.float32):
        return torch.tensor(columns[name]).to(dtype)[:, None]

    batch = Batch(
        {
            "raw_observation": column("raw")[..., None],
            "next_observation": column("next")[..., None],
            "action": torch.zeros(steps, 1, 1), "reward": column("reward"),
            "done": column("done"), "terminated": column("terminated", torch.bool),
        }
    )  # fmt: skip
    ours = Storage(batch, DQN.replayed, capacity, CPU, n_step=n_step, gamma=GAMMA)
    ours.put(batch)
    rows = np.array(ours.rows)
    drawn = ours.gather(torch.from_numpy(rows % ours.places))
    wanted = theirs._get_samples(rows % capacity)
    assert_alike([drawn["raw_observation"]], [wanted.observations])
    assert_alike([drawn["reward"]], [wanted.rewards])
    assert_alike([drawn["next_observation"]], [wanted.next_observations])
    assert_alike([drawn["discount"]], [(1 - wanted.dones) * wanted.discounts])


def test_quantile_huber_loss_of_sb3_contrib():
    utils = pytest.importorskip("sb3_contrib.common.utils")
    generator = torch.Generator().manual_seed(3)
    own = (2 * torch.randn(ROWS, 9, generator=generator)).requires_grad_()
    target = 2 * torch.randn(ROWS, 7, generator=generator)
    ours, theirs = quantile_huber_loss(own, target).mean(), utils.quantile_huber_loss(own, target)
    assert_alike([ours], [theirs])
    assert_alike(torch.autograd.grad(ours, own), torch.autograd.grad(theirs, own))


# TorchRL, whose losses are modules ----------------------------------------------------------------


def load_params(params, *modules):
    """Copies numbers into TorchRL's parameters, of several networks one behind the other."""
    flat = {
        ".".join((key,) if isinstance(key, str) else key): value
        for key, value in params.items(include_nested=True, leaves_only=True)
    }
    named = [dict(module.named_parameters()) for module in modules]
    for name in named[0]:
        its = [each[name] for each in named]
        (key,) = (key for key in flat if key.endswith(name))
        flat[key].data.copy_(torch.stack(its) if len(its) > 1 else its[0])


def transitions(batch, action):
    tensordict = pytest.importorskip("tensordict")
    over = (batch["discount"] == 0.0)[:, None]
    after = {
        "observation": batch["next_observation"], "reward": batch["reward"][:, None],
        "done": over, "terminated": over,
    }  # fmt: skip
    columns = {"observation": batch["observation"], "action": action, "next": after}
    return tensordict.TensorDict(columns, [len(over)])


def torchrl_gradients(params, loss):
    """Gradients by the order of names; of several networks one behind the other."""
    flat = [value for _, value in params.items(include_nested=True, leaves_only=True)]
    trained = [its for its in flat if its.requires_grad]
    return torch.autograd.grad(loss, trained, retain_graph=True)


@pytest.mark.slow
@pytest.mark.parametrize("double", [False, True])
def test_dqn_of_torchrl(double):
    objectives = pytest.importorskip("torchrl.objectives")
    modules = pytest.importorskip("torchrl.modules")
    made, batch = choices({"double": double})
    actor = modules.QValueActor(
        copy.deepcopy(made.policy.network), in_keys=["observation"], action_space="categorical"
    )
    loss = objectives.DQNLoss(
        actor, action_space="categorical", double_dqn=double, delay_value=True,
        loss_function="smooth_l1",
    )  # fmt: skip
    loss.make_value_estimator(gamma=GAMMA)
    load_params(loss.target_value_network_params, made.target)
    data = transitions(batch, batch["action"][:, 0].long())
    theirs, given = loss(data)["loss"], made.losses(batch)
    assert_alike([given.total], [theirs])
    assert_alike(gradients(made, given.total), torchrl_gradients(loss.value_network_params, theirs))
    assert_alike([given.extras["priorities"].square()], [data["td_error"]])


class LogProbabilities(torch.nn.Module):
    """Gives C51's outputs as TorchRL has them, [B, atoms, actions]."""

    def __init__(self, network, atoms):
        super().__init__()
        self.network, self.atoms = network, atoms

    def forward(self, observation):
        outputs = self.network(observation).unflatten(-1, (-1, self.atoms))
        return outputs.log_softmax(-1).transpose(-1, -2)


def test_c51_of_torchrl():
    """Its network chooses what is next, and its target says what that is worth."""
    objectives = pytest.importorskip("torchrl.objectives")
    modules = pytest.importorskip("torchrl.modules")
    made, batch = choices(
        {"double": True, "distributional": "c51", "atoms": 11, "value_range": (-3.0, 3.0)}
    )
    actor = modules.DistributionalQValueActor(
        LogProbabilities(copy.deepcopy(made.policy.network), 11), torch.linspace(-3.0, 3.0, 11),
        in_keys=["observation"], action_space="categorical",
    )  # fmt: skip
    loss = objectives.DistributionalDQNLoss(actor, gamma=GAMMA, delay_value=True)
    load_params(loss.target_value_network_params, LogProbabilities(made.target, 11))
    data = transitions(batch, batch["action"].long())
    theirs, given = loss(data)["loss"], made.losses(batch)
    assert_alike([given.total], [theirs])
    found = torchrl_gradients(loss.value_network_params, theirs)
    assert_alike(gradients(made, given.total), found)


class Value(torch.nn.Module):
    """A critic as TorchRL calls it."""

    def __init__(self, critic):
        super().__init__()
        self.critic = critic

    def forward(self, observation, action):
        return self.critic(observation, action)


class Tanh(torch.nn.Module):
    """A deterministic actor."""

    def __init__(self, actor):
        super().__init__()
        self.actor = actor

    def forward(self, observation):
        return self.actor(observation).tanh()


class Normal(torch.nn.Module):
    """The mean and deviation of what is squashed by tanh."""

    def __init__(self, actor):
        super().__init__()
        self.actor = actor

    def forward(self, observation):
        mean, log_std = self.actor(observation).chunk(2, -1)
        return mean, log_std.clamp(-20, 2).exp()


def test_sac_of_torchrl(monkeypatch):
    objectives = pytest.importorskip("torchrl.objectives")
    modules = pytest.importorskip("torchrl.modules")
    nn = pytest.importorskip("tensordict.nn")
    made = made_of(SACConfig(**SHARED), BOX)
    batch, network = bodies.rows_of(made), made.policy.network
    actor = modules.ProbabilisticActor(
        nn.TensorDictModule(
            Normal(copy.deepcopy(network.actor)), in_keys=["observation"], out_keys=["loc", "scale"]
        ),
        in_keys=["loc", "scale"], distribution_class=modules.TanhNormal, return_log_prob=True,
    )  # fmt: skip
    critic = modules.ValueOperator(
        Value(copy.deepcopy(network.critics[0])), in_keys=["observation", "action"]
    )
    loss = objectives.SACLoss(
        actor, critic, num_qvalue_nets=2, loss_function="l2", delay_qvalue=True,
        target_entropy=made._target_entropy, action_spec=None,
        alpha_init=float(network.log_temperature.detach().exp()),
    )  # fmt: skip
    loss.make_value_estimator(gamma=GAMMA)
    load_params(loss.qvalue_network_params, *map(Value, network.critics))
    load_params(loss.target_qvalue_network_params, *map(Value, made.target.critics))
    after, now = batch["noise"].chunk(2, -1)
    drawn = iter((after, now))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: next(drawn))
    theirs = loss(transitions(batch, batch["action"]))
    given = made.losses(batch)
    names = [name for name, _ in network.named_parameters()]
    found = dict(zip(names, gradients(made, given.total), strict=True))
    assert_alike([given.stats["critic_loss"]], [0.5 * theirs["loss_qvalue"]], rtol=1e-3)
    assert_alike([given.stats["actor_loss"]], [theirs["loss_actor"]], rtol=1e-3)
    of_actor = [its for name, its in found.items() if name.startswith("actor")]
    wanted = torchrl_gradients(loss.actor_network_params, theirs["loss_actor"])
    assert_alike(of_actor, wanted, rtol=1e-3, atol=1e-4)
    wanted = torchrl_gradients(loss.qvalue_network_params, theirs["loss_qvalue"])
    for number in range(2):
        of_one = [its for name, its in found.items() if name.startswith(f"critics.{number}")]
        assert_alike([2 * its for its in of_one], [its[number] for its in wanted], rtol=1e-3)
    (wanted,) = torch.autograd.grad(theirs["loss_alpha"], loss.log_alpha)
    assert_alike([found["log_temperature"]], [wanted], rtol=1e-3)


def test_td3_of_torchrl(monkeypatch):
    objectives = pytest.importorskip("torchrl.objectives")
    modules = pytest.importorskip("torchrl.modules")
    nn = pytest.importorskip("tensordict.nn")
    how = {"target_noise": 0.4, "target_noise_clip": 0.3, "policy_delay": 1}
    made = made_of(TD3Config(**SHARED, **how), BOX)
    batch, network = bodies.rows_of(made), made.policy.network
    actor = nn.TensorDictModule(
        Tanh(copy.deepcopy(network.actor)), in_keys=["observation"], out_keys=["action"]
    )
    critic = modules.ValueOperator(
        Value(copy.deepcopy(network.critics[0])), in_keys=["observation", "action"]
    )
    loss = objectives.TD3Loss(
        actor, critic, bounds=(-1.0, 1.0), num_qvalue_nets=2, policy_noise=0.4, noise_clip=0.3,
        loss_function="l2", delay_actor=True, delay_qvalue=True,
    )  # fmt: skip
    loss.make_value_estimator(gamma=GAMMA)
    load_params(loss.qvalue_network_params, *map(Value, network.critics))
    load_params(loss.target_qvalue_network_params, *map(Value, made.target.critics))
    load_params(loss.target_actor_network_params, Tanh(made.target.actor))
    monkeypatch.setattr(torch, "randn_like", lambda _: batch["noise"])
    theirs = loss(transitions(batch, batch["action"]))
    monkeypatch.undo()
    found = gradients(made, made.losses(batch).total)
    count = len(list(network.actor.parameters()))
    assert_alike(found[:count], torchrl_gradients(loss.actor_network_params, theirs["loss_actor"]))
    wanted = torchrl_gradients(loss.qvalue_network_params, theirs["loss_qvalue"])
    each = (len(found) - count) // 2
    for number in range(2):
        of_one = found[count + number * each : count + (number + 1) * each]
        assert_alike([2 * its for its in of_one], [its[number] for its in wanted])


def test_ddpg_of_torchrl():
    objectives = pytest.importorskip("torchrl.objectives")
    modules = pytest.importorskip("torchrl.modules")
    nn = pytest.importorskip("tensordict.nn")
    made = made_of(DDPGConfig(**SHARED), BOX)
    batch, network = bodies.rows_of(made), made.policy.network
    actor = nn.TensorDictModule(
        Tanh(copy.deepcopy(network.actor)), in_keys=["observation"], out_keys=["action"]
    )
    critic = modules.ValueOperator(
        Value(copy.deepcopy(network.critics[0])), in_keys=["observation", "action"]
    )
    loss = objectives.DDPGLoss(
        actor, critic, loss_function="l2", delay_actor=True, delay_value=True
    )
    loss.make_value_estimator(gamma=GAMMA)
    load_params(loss.target_value_network_params, Value(made.target.critics[0]))
    load_params(loss.target_actor_network_params, Tanh(made.target.actor))
    theirs = loss(transitions(batch, batch["action"]))
    found = gradients(made, made.losses(batch).total)
    count = len(list(network.actor.parameters()))
    assert_alike(found[:count], torchrl_gradients(loss.actor_network_params, theirs["loss_actor"]))
    wanted = torchrl_gradients(loss.value_network_params, theirs["loss_value"])
    assert_alike([2 * its for its in found[count:]], wanted)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**16), steps=st.integers(2, 30), n_step=st.integers(1, 6))
def test_n_step_transitions_of_torchrl(seed, steps, n_step):
    """Within one batch, which is all that it sums over."""
    postprocs = pytest.importorskip("torchrl.data.postprocs")
    tensordict = pytest.importorskip("tensordict")
    generator = torch.Generator().manual_seed(seed)
    done = torch.rand(2, steps, 1, generator=generator) < 0.3
    raw = torch.rand(2, steps, 3, generator=generator)
    after = torch.rand(2, steps, 3, generator=generator)
    after[:, :-1] = torch.where(done[:, :-1], after[:, :-1], raw[:, 1:])
    reward = torch.rand(2, steps, 1, generator=generator)
    theirs = postprocs.MultiStep(GAMMA, n_step)(
        tensordict.TensorDict(
            {
                "observation": raw,
                "next": {"observation": after, "reward": reward, "done": done, "terminated": done},
            },
            [2, steps],
        )
    )
    batch = Batch(
        {
            "raw_observation": raw.transpose(0, 1), "next_observation": after.transpose(0, 1),
            "action": torch.zeros(steps, 2, 1), "reward": reward[..., 0].T,
            "done": done[..., 0].T.float(), "terminated": done[..., 0].T,
        }
    )  # fmt: skip
    ours = Storage(batch, DQN.replayed, 2 * steps, CPU, n_step=n_step, gamma=GAMMA)
    ours.put(batch)
    drawn = ours.gather(torch.arange(2 * steps))

    def by_step(column):
        return column.transpose(0, 1).flatten(0, 1)

    assert_alike([drawn["reward"]], [by_step(theirs["next", "reward"])])
    assert_alike([drawn["next_observation"]], [by_step(theirs["next", "observation"])])
    counts = theirs["steps_to_next_obs"]
    over = by_step(done[..., 0].gather(1, torch.arange(steps) + counts - 1))
    discount = GAMMA ** by_step(counts).float()
    assert_alike([drawn["discount"]], [discount.masked_fill(over, 0.0)])


# rlax, whose losses are functions of a row --------------------------------------------------------


def rlax_of(name):
    """A function of rlax on rows of torch's numbers."""
    rlax, jax = pytest.importorskip("rlax"), pytest.importorskip("jax")

    def call(*columns, axes=None):
        arrays = [jax.numpy.asarray(np.asarray(column)) for column in columns]
        axes = axes or (0,) * len(arrays)
        return torch.from_numpy(np.array(jax.vmap(getattr(rlax, name), axes)(*arrays)))

    return call


def test_the_errors_of_double_q_learning_are_those_of_rlax():
    made, batch = choices({"double": True})
    with torch.no_grad():
        now, chooser = (
            made.policy.network(batch[name]) for name in ("observation", "next_observation")
        )
        value = made.target(batch["next_observation"])
    error = rlax_of("double_q_learning")(
        now, batch["action"][:, 0].int(), batch["reward"], batch["discount"], value, chooser
    )
    assert_alike([made.losses(batch).extras["priorities"]], [error.abs()])


@pytest.mark.parametrize("spread", [0.01, 3.0, 30.0])
@pytest.mark.parametrize("atoms", [2, 51])
def test_the_projection_of_c51_is_that_of_rlax(atoms, spread):
    generator = torch.Generator().manual_seed(atoms)
    probabilities = torch.randn(8, atoms, generator=generator).softmax(-1)
    values = (spread * torch.randn(8, atoms, generator=generator)).sort(-1).values
    support = torch.linspace(-10, 10, atoms)
    wanted = rlax_of("categorical_l2_project")(values, probabilities, support, axes=(0, 0, None))
    assert_alike([project(probabilities, values, (-10.0, 10.0))], [wanted], atol=1e-5)


def test_quantile_losses_are_those_of_rlax():
    made, batch = choices({"double": True, "distributional": "qr", "quantiles": 7})
    with torch.no_grad():
        now, chooser = (
            made.policy.network(batch[name]).view(ROWS, ACTIONS, 7).transpose(1, 2)
            for name in ("observation", "next_observation")
        )
        value = made.target(batch["next_observation"]).view(ROWS, ACTIONS, 7).transpose(1, 2)
    middles = (torch.arange(7) + 0.5) / 7
    action = batch["action"][:, 0].int()
    error = rlax_of("quantile_q_learning")(
        now, middles, action, batch["reward"], batch["discount"], chooser, value, np.array(1.0),
        axes=(0, None, 0, 0, 0, 0, 0, None),
    )  # fmt: skip
    # Summed over the quantiles, as the loss is; priorities are the mean over them.
    assert_alike([7 * made.losses(batch).extras["priorities"]], [error])


# cpprb --------------------------------------------------------------------------------------------


def of_cpprb(priorities, **how):
    cpprb = pytest.importorskip("cpprb")
    rows = len(priorities)
    buffer = cpprb.PrioritizedReplayBuffer(rows, {"number": {}}, eps=0.01, **how)
    buffer.add(number=np.arange(rows))
    buffer.update_priorities(np.arange(rows), priorities.numpy())
    return buffer


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_are_those_of_cpprb(beta):
    priorities = torch.rand(40, generator=torch.Generator().manual_seed(4)) ** 3
    drawn = of_cpprb(priorities, alpha=0.7).sample(64, beta)
    sampler = PrioritizedSampler(40, CPU, alpha=0.7, beta=beta, eps=0.01, weights_by="buffer")
    sampler.put(range(40))
    sampler.update(torch.arange(40), priorities)
    places, weights = sampler.draw(2_000, range(40), torch.Generator().manual_seed(5))
    mine = dict(zip(places.tolist(), weights.tolist(), strict=True))
    compared = 0
    for place, weight in zip(drawn["indexes"].tolist(), drawn["weights"].tolist(), strict=True):
        if place in mine:
            assert mine[place] == pytest.approx(weight, rel=1e-4)
            compared += 1
    assert compared > 50


def test_rows_are_drawn_as_often_as_by_cpprb():
    """A chi-square test of two counts, at a chance of one in ten thousand."""
    priorities = torch.rand(30, generator=torch.Generator().manual_seed(6)) ** 2
    buffer, generator = of_cpprb(priorities, alpha=0.7), torch.Generator().manual_seed(7)
    sampler = PrioritizedSampler(30, CPU, alpha=0.7, eps=0.01)
    sampler.put(range(30))
    sampler.update(torch.arange(30), priorities)
    np.random.seed(0)
    theirs, ours = np.zeros(30), np.zeros(30)
    for _ in range(60):
        theirs += np.bincount(buffer.sample(1_000)["indexes"].ravel(), minlength=30)
        places, _ = sampler.draw(1_000, range(30), generator)
        ours += np.bincount(places.numpy(), minlength=30)
    statistic = ((ours - theirs) ** 2 / (ours + theirs)).sum()
    # Wilson and Hilferty's approximation of the distribution's quantile.
    limit = 29 * (1 - 2 / (9 * 29) + 3.719 * math.sqrt(2 / (9 * 29))) ** 3
    assert statistic < limit
