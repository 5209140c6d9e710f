"""The hand-written distributions against torch.distributions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as td

from gmi_drl.placement import IMPALAConfig
from gmi_drl.roles.algorithms.terms import weighted_sum
from gmi_drl.roles.policies.actor_critic import distribution_for
from gmi_drl.roles.policies.distributions import Bernoulli, Categorical, Joint, Normal


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def test_normal_equals_torch(generator):
    mean, old_mean, action = torch.randn(3, 16, 4, generator=generator)
    log_std, old_log_std = torch.randn(2, 4, generator=generator) * 0.3
    ours = Normal(4)
    theirs = td.Independent(td.Normal(mean, log_std.exp()), 1)
    old = td.Independent(td.Normal(old_mean, old_log_std.exp()), 1)
    assert torch.allclose(ours.log_prob(mean, log_std, action), theirs.log_prob(action), atol=1e-5)
    assert torch.allclose(ours.entropy(mean, log_std), theirs.entropy().mean(), atol=1e-5)
    kl = ours.kl(old_mean, old_log_std, mean, log_std)
    assert torch.allclose(kl, td.kl_divergence(old, theirs).mean(), atol=1e-5)


def test_normal_samples_have_its_mean_and_spread(generator):
    ours, log_std = Normal(2), torch.tensor([-1.0, 0.5])
    mean = torch.tensor([[3.0, -2.0]]).expand(20_000, 2)
    noise = torch.empty(20_000, 2)
    ours.noise((20_000,), log_std, generator, noise)
    action = ours.sample(mean, noise, torch.empty(20_000, 2))
    assert torch.allclose(action.mean(0), mean[0], atol=0.05)
    assert torch.allclose(action.std(0), log_std.exp(), rtol=0.03)


def test_categorical_equals_torch(generator):
    logits, old_logits = torch.randn(2, 16, 5, generator=generator)
    action = torch.randint(0, 5, (16, 1), generator=generator).float()
    ours, nothing = Categorical(5), torch.empty(0)
    theirs, old = td.Categorical(logits=logits), td.Categorical(logits=old_logits)
    log_prob = ours.log_prob(logits, nothing, action)
    assert torch.allclose(log_prob, theirs.log_prob(action[:, 0]), atol=1e-5)
    assert torch.allclose(ours.entropy(logits, nothing), theirs.entropy().mean(), atol=1e-5)
    kl = ours.kl(old_logits, nothing, logits, nothing)
    assert torch.allclose(kl, td.kl_divergence(old, theirs).mean(), atol=1e-5)


def test_categorical_samples_have_its_frequencies(generator):
    ours = Categorical(3)
    probabilities = torch.tensor([0.2, 0.7, 0.1])
    logits = probabilities.log().expand(30_000, 3)
    noise = torch.empty(30_000, 3)
    ours.noise((30_000,), torch.empty(0), generator, noise)
    action = ours.sample(logits, noise, torch.empty(30_000, 1))
    frequency = torch.bincount(action[:, 0].long(), minlength=3) / 30_000
    assert torch.allclose(frequency, probabilities, atol=0.015)


def test_bernoulli_equals_torch(generator):
    logits, old_logits = 2 * torch.randn(2, 16, 5, generator=generator)
    action = torch.randint(0, 2, (16, 5), generator=generator).float()
    ours, nothing = Bernoulli(5), torch.empty(0)
    theirs, old = (td.Independent(td.Bernoulli(logits=one), 1) for one in (logits, old_logits))
    assert torch.allclose(
        ours.log_prob(logits, nothing, action), theirs.log_prob(action), atol=1e-5
    )
    assert torch.allclose(ours.entropy(logits, nothing), theirs.entropy().mean(), atol=1e-5)
    kl = ours.kl(old_logits, nothing, logits, nothing)
    assert torch.allclose(kl, td.kl_divergence(old, theirs).mean(), atol=1e-5)
    assert torch.equal(ours.mode(logits), (logits > 0).float())


def test_bernoulli_samples_have_its_frequencies(generator):
    ours, probabilities = Bernoulli(3), torch.tensor([0.2, 0.7, 0.5])
    logits = torch.logit(probabilities).expand(30_000, 3)
    noise = torch.empty(30_000, 3)
    ours.noise((30_000,), torch.empty(0), generator, noise)
    action = ours.sample(logits, noise, torch.empty(30_000, 3))
    assert torch.allclose(action.mean(0), probabilities, atol=0.015)


def test_what_is_joint_is_the_sum_of_its_parts(generator):
    normal, categorical, bernoulli = Normal(2), Categorical(3), Bernoulli(2)
    joint = Joint([categorical, normal, bernoulli])
    assert (joint.parameters, joint.action_columns, joint.noise_columns) == (7, 5, 7)
    assert joint.deviations == 2
    params, old = torch.randn(2, 16, 7, generator=generator)
    log_std, old_log_std = 0.3 * torch.randn(2, 2, generator=generator)
    noise, action = torch.empty(4, 16, 7), torch.empty(16, 5)
    joint.noise((4, 16), log_std, generator, noise)
    joint.sample(params, noise[2], action)
    parts = [
        (categorical, slice(0, 3), slice(0, 1)), (normal, slice(3, 5), slice(1, 3)),
        (bernoulli, slice(5, 7), slice(3, 5)),
    ]  # fmt: skip
    for part, its, columns in parts:
        out = torch.empty(16, columns.stop - columns.start)
        alone = part.sample(params[:, its], noise[2][:, its], out)
        assert torch.equal(action[:, columns], alone)
        assert torch.equal(joint.mode(params)[:, columns], part.mode(params[:, its]))
    mine = joint.log_prob(params, log_std, action)
    each = [
        part.log_prob(params[:, its], log_std, action[:, columns]) for part, its, columns in parts
    ]
    assert torch.allclose(mine, sum(each), atol=1e-6)
    entropies = [part.entropy(params[:, its], log_std) for part, its, _ in parts]
    assert torch.allclose(joint.entropy(params, log_std), sum(entropies), atol=1e-6)
    kls = [part.kl(old[:, its], old_log_std, params[:, its], log_std) for part, its, _ in parts]
    assert torch.allclose(joint.kl(old, old_log_std, params, log_std), sum(kls), atol=1e-5)
    assert torch.equal(joint.means(params), params[:, 3:5])


UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,))


@pytest.mark.parametrize(
    ("space", "bounds_loss"),
    [
        (UNBOUNDED, 0.0),
        (spaces.Box(0.0, np.inf, (2,)), 0.0),
        (spaces.Box(-2.0, 5.0, (2,)), 2.0),
        (spaces.Discrete(2), 0.0),
        (spaces.Tuple((UNBOUNDED, spaces.Box(-2.0, 5.0, (1,)))), 1.0),
        (spaces.Tuple((UNBOUNDED, spaces.Discrete(2))), 0.0),
    ],
    ids=str,
)
def test_means_are_pushed_back_to_bounds_that_there_are(space, bounds_loss):
    distribution = distribution_for(space)
    network = SimpleNamespace(
        distribution=distribution, log_std=torch.zeros(distribution.deviations)
    )
    zero, settings = torch.zeros(()), IMPALAConfig()
    params = torch.full((3, distribution.parameters), 2.1)
    total, stats = weighted_sum(network, params, zero, zero, settings)
    assert float(stats["bounds_loss"]) == pytest.approx(bounds_loss)
    assert float(total) == pytest.approx(settings.bounds_coef * bounds_loss)
