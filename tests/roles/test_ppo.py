"""The PPO loss and one update, against a reference written with torch.distributions and Adam."""

from dataclasses import replace

import pytest
import torch
from torch import distributions as td

from batches import learner_of_rows, row_layout_of
from gmi_drl.comm import solo_group
from gmi_drl.placement import PPOConfig
from gmi_drl.roles.algorithms.ppo import ppo_loss
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.optimizers.descent import adapt_learning_rate
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Categorical, Normal

OBS, ROWS = 5, 64


def algorithm(**changes):
    base = {
        "network": [16, 8], "activation": "tanh", "minibatches": 1, "epochs": 1, "clip": 0.2,
        "learning_rate": 1e-3, "schedule": "constant", "value_coef": 1.5, "entropy_coef": 0.01,
        "bounds_coef": 0.3, "max_grad_norm": 0.5,
    }  # fmt: skip
    return PPOConfig(**(base | changes))


def make_policy(distribution, seed=0):
    generator = torch.Generator().manual_seed(seed)
    policy = ActorCritic(OBS, distribution, [16, 8], "tanh", -0.2, generator)
    with torch.no_grad():  # away from the tiny initial head, so that every term matters
        policy.head.weight.normal_(0, 0.8, generator=generator)
    return policy


def make_rows(policy, row_layout, seed=0):
    """Rows as if sampled by a policy that differs from the present one."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS, row_layout.width, generator=g)
    dist = policy.distribution
    if isinstance(dist, Categorical):
        rows[:, row_layout.action] = torch.randint(
            0, dist.parameters, (ROWS, 1), generator=g
        ).float()
    old = policy(rows[:, row_layout.observation]).detach()[:, :-1]
    rows[:, row_layout.parameters] = old + 0.1 * rows[:, row_layout.parameters]
    rows[:, row_layout.log_prob] = dist.log_prob(
        rows[:, row_layout.parameters], policy.log_std.detach(), rows[:, row_layout.action]
    )
    return rows


def reference_loss(policy, rows, row_layout, s):
    """The same loss, spelled out with torch.distributions."""
    head = policy(rows[:, row_layout.observation])
    params, value = head[:, :-1], head[:, -1]
    action = rows[:, row_layout.action]
    if isinstance(policy.distribution, Normal):
        pi = td.Independent(td.Normal(params, policy.log_std.exp()), 1)
        log_prob = pi.log_prob(action)
        high, low = (params - 1.1).clamp(min=0), (params + 1.1).clamp(max=0)
        bounds = (high**2 + low**2).sum(-1).mean()
    else:
        pi = td.Categorical(logits=params)
        log_prob, bounds = pi.log_prob(action[:, 0]), 0.0
    ratio = (log_prob - rows[:, row_layout.log_prob]).exp()
    adv = rows[:, row_layout.advantage]
    policy_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - s.clip, 1 + s.clip)).mean()
    ret, old = rows[:, row_layout.ret], rows[:, row_layout.value]
    clipped = old + torch.clamp(value - old, -s.clip, s.clip)
    value_loss = 0.5 * torch.max((value - ret) ** 2, (clipped - ret) ** 2).mean()
    entropy = pi.entropy().mean()
    loss = policy_loss + s.value_coef * value_loss
    return loss - s.entropy_coef * entropy + s.bounds_coef * bounds


@pytest.fixture(params=[Normal(3), Categorical(4)], ids=["normal", "categorical"])
def setting(request):
    policy = make_policy(request.param)
    row_layout = row_layout_of(OBS, request.param)
    return policy, row_layout, make_rows(policy, row_layout)


def test_loss_equals_the_reference(setting):
    policy, row_layout, rows = setting
    settings = algorithm()
    ours = ppo_loss(policy, rows, row_layout, policy.log_std.detach(), settings).total
    assert torch.allclose(ours, reference_loss(policy, rows, row_layout, settings), atol=1e-6)


def test_hand_worked_clipping():
    # One row, advantage 1: ratio 2 is clipped at 1.2, so its loss is -1.2; with advantage -1 the
    # pessimistic side is the unclipped -1 * 2, loss 2.
    policy = make_policy(Normal(1))
    row_layout = row_layout_of(OBS, policy.distribution)
    rows = torch.zeros(1, row_layout.width)
    params = policy(rows[:, row_layout.observation]).detach()[:, :-1]
    log_prob = policy.distribution.log_prob(params, policy.log_std.detach(), torch.zeros(1, 1))
    rows[:, row_layout.log_prob] = log_prob - torch.tensor(2.0).log()
    for advantage, loss in ((1.0, -1.2), (-1.0, 2.0)):
        rows[:, row_layout.advantage] = advantage
        parts = ppo_loss(policy, rows, row_layout, policy.log_std.detach(), algorithm())
        assert parts.stats["policy_loss"].item() == pytest.approx(loss, abs=1e-5)


def test_one_update_is_one_clipped_adam_step_on_the_reference_loss(setting):
    policy, row_layout, rows = setting
    settings = algorithm()
    theirs = ActorCritic(OBS, policy.distribution, [16, 8], "tanh", -0.2)
    theirs.load_state_dict(policy.state_dict())
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-3, eps=1e-5)
    reference_loss(theirs, rows, row_layout, settings).backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    adam.step()

    learner, batch = learner_of_rows(policy, rows, row_layout, settings)
    learner.connect(solo_group())
    learner.update(batch)
    for name, parameter in theirs.named_parameters():
        assert torch.allclose(policy.get_parameter(name), parameter, atol=2e-6), name
    assert learner.stats()["kl"] > 0


def test_every_row_is_used_once_an_epoch():
    policy = make_policy(Normal(3))
    row_layout = row_layout_of(OBS, policy.distribution)
    rows = make_rows(policy, row_layout)
    rows[:, 0] = torch.arange(ROWS)
    seen = []

    def loss(policy, minibatch, *rest):
        seen.append(minibatch[:, 0].clone())
        return ppo_loss(policy, minibatch, *rest)

    settings = algorithm(minibatches=4, epochs=2)
    learner, batch = learner_of_rows(policy, rows, row_layout, settings, loss)
    learner.connect(solo_group())
    learner.update(batch)
    for epoch in (torch.cat(seen[:4]), torch.cat(seen[4:])):
        assert torch.equal(epoch.sort().values, torch.arange(ROWS).float())
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:]))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda parts: parts.total, "losses gave a Tensor"),
        (lambda parts: replace(parts, total=0.5), "gave a total 0.5"),
        (lambda parts: replace(parts, total=parts.total.view(1)), r"a total of shape \(1,\)"),
        (lambda parts: replace(parts, total=parts.total.detach()), "depends on no parameter"),
        (lambda parts: replace(parts, stats={**parts.stats, "kl": 1.0}), "a stat 'kl' 1.0"),
        (
            lambda parts: replace(parts, stats={**parts.stats, "kl": torch.zeros(2, 4)}),
            r"a stat 'kl' of shape \(2, 4\)",
        ),
    ],
)
def test_a_loss_that_gives_something_else_is_told(change, word):
    policy = make_policy(Normal(3))
    row_layout = row_layout_of(OBS, policy.distribution)
    rows = make_rows(policy, row_layout)
    learner, batch = learner_of_rows(
        policy, rows, row_layout, algorithm(), lambda *args: change(ppo_loss(*args))
    )
    learner.connect(solo_group())
    with pytest.raises(RoleError, match=word + "; must"):
        learner.update(batch)


def test_learning_rate_follows_the_kl():
    assert adapt_learning_rate(3e-4, 0.02, 0.008) == pytest.approx(2e-4)
    assert adapt_learning_rate(3e-4, 0.003, 0.008) == pytest.approx(4.5e-4)
    assert adapt_learning_rate(3e-4, 0.008, 0.008) == 3e-4
    assert adapt_learning_rate(1e-6, 1.0, 0.008) == 1e-6
    assert adapt_learning_rate(1e-2, 0.0, 0.008) == 1e-2
