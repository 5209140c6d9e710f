"""The losses of IMPALA and APPO: worked by hand, and gradients by finite differences."""

import math

import pytest
import torch
from torch import distributions as td

from gmi_drl.placement import ALGORITHMS
from gmi_drl.roles.algorithms.appo import appo_loss
from gmi_drl.roles.algorithms.impala import impala_loss
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Categorical, Normal
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.returns import gae, vtrace
from gmi_drl.roles.samples.batch import Batch

T, B, OBS = 5, 3, 4
LOSSES = {"impala": impala_loss, "appo": appo_loss}


def settings_of(name, **changes):
    base = {"gamma": 0.9, "lam": 0.8, "value_coef": 0.7, "entropy_coef": 0.02, "bounds_coef": 0.3}
    return ALGORITHMS[name](**(base | changes))


def a_policy(distribution):
    generator = torch.Generator().manual_seed(0)
    policy = ActorCritic(OBS, distribution, [6], "tanh", -0.2, generator).double()
    with torch.no_grad():  # away from the tiny initial head, so that every term matters
        policy.head.weight.normal_(0, 0.8, generator=generator)
    return policy


def a_batch(policy):
    g = torch.Generator().manual_seed(1)
    distribution = policy.distribution
    action = torch.randn(T, B, distribution.action_columns, generator=g).double()
    if isinstance(distribution, Categorical):
        action = torch.randint(0, distribution.parameters, (T, B, 1), generator=g).double()
    observations = torch.randn(T + 1, B, OBS, generator=g).double()
    with torch.no_grad():
        params = policy(observations[:-1])[..., :-1]
        log_prob = distribution.log_prob(params, policy.log_std, action)
    log_prob += 0.5 * torch.randn(T, B, generator=g)
    reward = torch.randn(T, B, generator=g).double()
    done = (torch.rand(T, B, generator=g) < 0.2).double()
    return batch_of(observations, action, log_prob, reward, done)


def batch_of(observations, action, log_prob, reward, done):
    return Batch(
        {"observations": observations, "action": action, "log_prob": log_prob, "reward": reward,
         "done": done}
    )  # fmt: skip


def values_normalizer():
    values = RunningNormalizer(1, clip=float("inf"))
    values.mean.fill_(2.0)
    values.inv_std.fill_(0.5)
    return values


@pytest.fixture(params=[Normal(3), Categorical(4)], ids=["normal", "categorical"])
def policy(request):
    return a_policy(request.param)


def reference(policy, batch, advantage, targets, values, settings):
    """The loss spelled out with torch.distributions; advantages and targets are given numbers."""
    head = policy(batch["observations"][:-1])
    params, value = head[..., :-1], head[..., -1]
    if isinstance(policy.distribution, Normal):
        pi = td.Independent(td.Normal(params, policy.log_std.exp()), 1)
        log_prob = pi.log_prob(batch["action"])
        high, low = (params - 1.1).clamp(min=0), (params + 1.1).clamp(max=0)
        bounds = (high**2 + low**2).sum(-1).mean()
    else:
        pi = td.Categorical(logits=params)
        log_prob, bounds = pi.log_prob(batch["action"][..., 0]), 0.0
    policy_loss = -(advantage * values.inv_std * log_prob).mean()
    value_loss = 0.5 * ((value - (targets - values.mean) * values.inv_std) ** 2).mean()
    loss = policy_loss + settings.value_coef * value_loss
    return loss - settings.entropy_coef * pi.entropy().mean() + settings.bounds_coef * bounds


@torch.no_grad()
def test_gradients_are_the_slopes_of_the_reference(policy):
    batch, s, values = a_batch(policy), settings_of("impala"), values_normalizer()
    with torch.enable_grad():
        ours = impala_loss(policy, batch, values, s)
        ours.total.backward()
    head = policy(batch["observations"])
    worth = values.denormalize(head[..., -1])
    log_prob = policy.distribution.log_prob(head[:-1, :, :-1], policy.log_std, batch["action"])
    targets, advantages = vtrace(
        log_prob - batch["log_prob"], s.gamma * (1 - batch["done"]), batch["reward"],
        worth[:-1], worth[-1], lam=s.lam,
    )  # fmt: skip
    here = reference(policy, batch, advantages, targets, values, s)
    assert ours.total.item() == pytest.approx(here.item(), rel=1e-9)
    check_slopes(policy, lambda: reference(policy, batch, advantages, targets, values, s).item())


def check_slopes(policy, total):
    """The gradients of a policy's parameters against the slopes of `total`."""
    step = 1e-6
    for parameter in filter(torch.numel, policy.parameters()):  # logits have no log-std
        numbers = parameter.data.view(-1)
        for i, gradient in enumerate(parameter.grad.view(-1).tolist()):
            before, sides = numbers[i].item(), []
            for side in (before + step, before - step):
                numbers[i] = side
                sides.append(total())
            numbers[i] = before
            assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(gradient, rel=1e-5, abs=1e-8)


def one_step(log_ratio):
    """A policy with the value 3 everywhere, uniform over 2 actions; one step that paid 1."""
    policy = ActorCritic(1, Categorical(2), [1])
    with torch.no_grad():
        policy.head.weight.zero_()
        policy.head.bias.copy_(torch.tensor([0.0, 0.0, 3.0]))
    behaviour = torch.full((1, 1), math.log(0.5) - log_ratio)
    zeros = torch.zeros(1, 1)
    return policy, batch_of(
        torch.zeros(2, 1, 1), torch.zeros(1, 1, 1), behaviour, zeros + 1.0, zeros
    )


@pytest.mark.parametrize(
    ("ratio", "advantage"),
    # reward 1 + 0.5 * 3 - 3 = -0.5; V-trace takes half of it when the policy would act so half as
    # often as the behaviour, and never more than all of it.
    [(0.5, -0.25), (2.0, -0.5)],
)
def test_a_step_worked_by_hand(ratio, advantage):
    settings = settings_of("impala", gamma=0.5, value_coef=2.0, entropy_coef=0.1)
    parts = impala_loss(*one_step(math.log(ratio)), None, settings)
    log_2 = math.log(2.0)
    assert parts.stats["policy_loss"].item() == pytest.approx(advantage * log_2, rel=1e-5)
    assert parts.stats["value_loss"].item() == pytest.approx(0.5 * advantage**2, rel=1e-5)
    assert parts.extras["targets"].item() == pytest.approx(3.0 + advantage, rel=1e-5)
    assert parts.stats["kl"].item() == pytest.approx(-math.log(ratio), rel=1e-4)
    assert parts.stats["rho"].item() == pytest.approx(min(ratio, 1.0), rel=1e-5)
    total = advantage * log_2 + 2.0 * 0.5 * advantage**2 - 0.1 * log_2
    assert parts.total.item() == pytest.approx(total, rel=1e-5)


@torch.no_grad()
def test_the_gradients_of_appo_are_the_slopes_of_the_reference(policy):
    """Given targets by V-trace's sum of products (Espeholt et al., 2018, eq. 1)."""
    batch, values = a_batch(policy), values_normalizer()
    s = settings_of("appo", lam=1.0, clip=0.3, rho_clip=0.9, c_clip=0.8)
    with torch.enable_grad():
        ours = appo_loss(policy, batch, values, s)
        ours.total.backward()

    def ratio_of():
        head = policy(batch["observations"][:-1])
        now = policy.distribution.log_prob(head[..., :-1], policy.log_std, batch["action"])
        return (now - batch["log_prob"]).exp()

    worth = values.denormalize(policy(batch["observations"])[..., -1])
    discount, rho = s.gamma * (1 - batch["done"]), ratio_of()
    delta = rho.clamp(max=0.9) * (batch["reward"] + discount * worth[1:] - worth[:-1])
    targets = worth[:-1].clone()
    for t in range(T):
        weight = torch.ones(B).double()
        for later in range(t, T):
            targets[t] += weight * delta[later]
            weight = weight * discount[later] * rho[later].clamp(max=0.8)
    following = torch.cat([targets[1:], worth[-1:]])
    advantage = (batch["reward"] + discount * following - worth[:-1]) * values.inv_std

    def total():
        ratio = ratio_of()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.7, 1.3) * advantage)
        rest = reference(policy, batch, torch.zeros_like(advantage), targets, values, s)
        return rest - surrogate.mean()

    assert torch.allclose(ours.extras["targets"], targets)
    assert ours.total.item() == pytest.approx(total().item(), rel=1e-9)
    check_slopes(policy, lambda: total().item())


def test_appo_clips_against_the_policy_that_sampled():
    # reward 1 + 0.5 * 3 - 3 = -0.5: an action that is worth less is held at 1 - clip.
    settings = settings_of("appo", gamma=0.5, clip=0.2)
    for ratio, wanted in ((0.5, 0.8), (1.1, 1.1), (2.0, 2.0)):
        parts = appo_loss(*one_step(math.log(ratio)), None, settings)
        assert parts.stats["policy_loss"].item() == pytest.approx(0.5 * wanted, rel=1e-5)


def test_on_policy_impala_is_the_policy_gradient_by_gae(policy):
    batch, settings = a_batch(policy), settings_of("impala")
    with torch.no_grad():
        head = policy(batch["observations"])
        params, worth = head[:-1, :, :-1], head[..., -1]
        log_prob = policy.distribution.log_prob(params, policy.log_std, batch["action"])
    batch = batch_of(
        batch["observations"], batch["action"], log_prob, batch["reward"], batch["done"]
    )
    advantage = torch.empty_like(batch["reward"])
    gae(
        batch["reward"], worth[:-1], batch["done"], worth[-1], gamma=settings.gamma,
        lam=settings.lam, out=advantage,
    )  # fmt: skip
    ours = impala_loss(policy, batch, None, settings)
    policy_loss = -(advantage * log_prob).mean().item()
    assert ours.stats["policy_loss"].item() == pytest.approx(policy_loss, abs=1e-9)
    targets = ours.extras["targets"]
    assert torch.allclose(targets, advantage + worth[:-1], atol=1e-9)
    assert ours.stats["kl"].item() == pytest.approx(0.0, abs=1e-9)
    assert ours.stats["rho"].item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_the_scale_of_rewards_does_not_matter_to_the_policy(policy, name):
    batch, settings, values = a_batch(policy), settings_of(name), values_normalizer()
    larger = batch_of(
        batch["observations"],
        batch["action"],
        batch["log_prob"],
        100 * batch["reward"],
        batch["done"],
    )
    scaled = RunningNormalizer(1, clip=float("inf"))
    scaled.mean.fill_(200.0)
    scaled.inv_std.fill_(0.005)
    one = LOSSES[name](policy, batch, values, settings)
    hundred = LOSSES[name](policy, larger, scaled, settings)
    assert hundred.total.item() == pytest.approx(one.total.item(), rel=1e-5)
    assert torch.allclose(hundred.extras["targets"], 100 * one.extras["targets"], rtol=1e-5)
