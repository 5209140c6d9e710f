"""A2C and PG: against torch.distributions, A2C as a case of PPO, and PG's returns."""

import copy

import pytest
import torch
from torch import distributions as td

from batches import batch_for, learner_of, row_layout_of
from gmi_drl.comm import solo_group
from gmi_drl.placement import A2CConfig, ConfigError, PGConfig, PPOConfig, load_config
from gmi_drl.roles.algorithms.a2c import a2c_loss
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Categorical, Normal
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.collector import Collector
from toy_env import ToyEnv

OBS, ROWS = 5, 64
SHARED = {
    "network": [16, 8], "activation": "tanh", "schedule": "constant", "value_coef": 0.7,
    "entropy_coef": 0.01, "bounds_coef": 0.3, "max_grad_norm": 0.5, "learning_rate": 1e-3,
    "horizon": 8, "gamma": 0.9, "lam": 0.8, "normalize_value": False,
}  # fmt: skip


@pytest.mark.parametrize("distribution", [Normal(3), Categorical(4)], ids=["normal", "categorical"])
def test_the_loss_equals_the_reference(distribution):
    generator = torch.Generator().manual_seed(0)
    network = ActorCritic(OBS, distribution, [16, 8], "tanh", -0.2, generator)
    with torch.no_grad():  # away from the tiny initial head, so that every term matters
        network.head.weight.normal_(0, 0.8, generator=generator)
    at = row_layout_of(OBS, distribution)
    rows = torch.randn(ROWS, at.width, generator=generator)
    if isinstance(distribution, Categorical):
        rows[:, at.action] = torch.randint(0, 4, (ROWS, 1), generator=generator).float()
    settings = A2CConfig(**SHARED)
    ours = a2c_loss(network, rows, at, network.log_std.detach(), settings)

    head = network(rows[:, at.observation])
    params, value = head[:, :-1], head[:, -1]
    if isinstance(distribution, Normal):
        pi = td.Independent(td.Normal(params, network.log_std.exp()), 1)
        log_prob = pi.log_prob(rows[:, at.action])
        bounds = ((params - 1.1).clamp(min=0) ** 2 + (params + 1.1).clamp(max=0) ** 2).sum(-1)
        bounds = bounds.mean()
    else:
        pi, bounds = td.Categorical(logits=params), 0.0
        log_prob = pi.log_prob(rows[:, at.action][:, 0])
    policy_loss = -(rows[:, at.advantage] * log_prob).mean()
    value_loss = 0.5 * torch.nn.functional.mse_loss(value, rows[:, at.ret])
    total = policy_loss + 0.7 * value_loss - 0.01 * pi.entropy().mean() + 0.3 * bounds
    assert torch.allclose(ours.total, total, atol=1e-6)
    assert set(ours.stats) == {"policy_loss", "value_loss", "entropy", "bounds_loss"}


def trained(settings, network, updates=4):
    """The parameters after some updates on experience of the policy as it is."""
    network, device = copy.deepcopy(network), torch.device("cpu")
    normalizers = Normalizers.of(settings, 2, device)
    batch = batch_for(network, settings, settings.horizon, 3, 2)
    learner = learner_of(network, settings, batch, normalizers)
    learner.connect(solo_group())
    env, generator = ToyEnv(3, limit=5), torch.Generator().manual_seed(7)
    collector = Collector(env, learner.algorithm, batch, generator)
    for iteration in range(updates):
        collector.collect(iteration)
        learner.update(batch)
    learner.close()
    return batch, torch.cat([one.detach().flatten() for one in network.parameters()])


def test_a2c_is_ppo_of_one_epoch_and_one_minibatch_without_clipping():
    network = ActorCritic(2, Normal(1), [16, 8], "tanh", generator=torch.Generator().manual_seed(0))
    before = torch.cat([one.detach().flatten() for one in network.parameters()])
    unclipped = {"minibatches": 1, "epochs": 1, "clip": 1e9, "clip_value_loss": False}
    _, ppo = trained(PPOConfig(**SHARED, **unclipped), network)
    _, a2c = trained(A2CConfig(**SHARED), network)
    assert torch.allclose(a2c, ppo, atol=1e-6)
    assert (a2c - before).abs().max() > 1e-3


def test_the_returns_of_pg_are_the_discounted_rewards_until_an_episode_ends():
    network = ActorCritic(2, Normal(1), [8], generator=torch.Generator().manual_seed(0))
    keys = {**SHARED, "lam": 1.0, "normalize_advantage": False, "bootstrap_time_limit": False}
    settings = PGConfig(**keys, normalize_observation=False)
    batch, _ = trained(settings, network, updates=1)
    # Episodes of 5 steps pay 1, 2, 3, 4, 5; a horizon of 8 ends in the third step of the second.
    paid, gamma = [1.0, 2.0, 3.0, 4.0, 5.0], settings.gamma
    for start in range(5):
        wanted = sum(gamma**i * reward for i, reward in enumerate(paid[start:]))
        assert batch["ret"][start].tolist() == pytest.approx([wanted] * 3, rel=1e-5)
    last = batch.bootstrap["value"]
    for place, rewards in ((5, [1.0, 2.0, 3.0]), (7, [3.0])):
        wanted = sum(gamma**i * reward for i, reward in enumerate(rewards))
        wanted = wanted + gamma ** len(rewards) * last
        assert torch.allclose(batch["ret"][place], wanted, rtol=1e-5)
    assert torch.allclose(batch["advantage"], batch["ret"] - batch["value"], atol=1e-5)


def test_a_second_step_down_the_same_gradient_is_refused():
    config = {"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": {"name": "a2c"}}
    assert load_config(config).algorithm.minibatches == 1
    for word in ("algorithm.epochs=2", "algorithm.minibatches=2"):
        with pytest.raises(ConfigError, match=r"must be 1 for a2c"):
            load_config(config, [word])
    with pytest.raises(ConfigError, match=r"algorithm.lam=0.5"):
        load_config(config, ["algorithm.name=pg", "algorithm.lam=0.5"])
