"""The hand-written distributions against torch.distributions."""

import pytest
import torch
from torch import distributions as td

from gmi_drl.roles.policies.distributions import Categorical, Normal


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
