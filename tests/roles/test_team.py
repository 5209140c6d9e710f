"""A team's value by those of its agents: VDN and QMIX, and the rows that they learn from."""

import itertools

import pytest
import torch

from batches import algorithm_of
from gmi_drl.placement import MultiAgentConfig, QMIXConfig, VDNConfig
from gmi_drl.roles.algorithms import algorithm_class
from gmi_drl.roles.envs import EnvError, EnvSpecError, make_env
from gmi_drl.roles.samples.batch import Batch


def team_of(what="Matching", num_env=2, multi_agent=None, **options):
    return make_env(
        f"bodies_agents:{what}", num_env, adapter="pettingzoo", options=options, seed=1,
        of_team=True, multi_agent=multi_agent,
    )  # fmt: skip


def made(kind, env, **changes):
    settings = kind(network=[8], **changes)
    generator = torch.Generator().manual_seed(0)
    network = algorithm_class(settings).make_network(settings, env, generator)
    return algorithm_of(network, settings)


def test_agents_of_a_team_are_columns_and_are_paid_the_mean():
    env = team_of(count=3)
    assert (env.num_env, env.team) == (2, (3, 1, 2))
    seen = env.reset()
    assert seen.shape == (2, 3)
    right = seen.clone()
    right[1, 0] = 1 - right[1, 0]  # one of three is wrong
    step = env.step(right)
    assert step.reward.tolist() == pytest.approx([1.0, 2 / 3])
    for _ in range(9):
        assert not step.truncated.any()
        step = env.step(torch.zeros(2, 3))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert step.final_observation.shape == (2, 3)


def test_a_team_comes_and_goes_together():
    env = team_of("Meadow", 1, sheep=2, wolves=0)
    env.reset()
    env.step(torch.zeros(1, 2))
    with pytest.raises(EnvError, match=r"some of its agents have left.*algorithm\.name: ppo"):
        env.step(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("options", "policies", "words"),
    [
        ({"sheep": 0}, None, ["Box", "agents of a team choose", "Use algorithm.name: ppo"]),
        ({}, MultiAgentConfig(policies=("a", "b"), mapping={"sheep_*": "a", "*": "b"}),
         ["multi_agent.policies=a, b", "share one policy", "Give one"]),
    ],
)  # fmt: skip
def test_who_is_no_team_is_refused(options, policies, words):
    with pytest.raises(EnvSpecError) as raised:
        team_of("Meadow", 1, policies, **options)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize("kind", [VDNConfig, QMIXConfig])
def test_what_is_best_for_each_is_best_for_the_team(kind):
    algorithm = made(kind, team_of(count=3))
    network = algorithm.policy.network
    with torch.no_grad():  # away from what is the same for all
        for parameter in network.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    seen = torch.randn(20, 3, generator=torch.Generator().manual_seed(2))
    values = network(seen)
    assert values.shape == (20, 3, 2)
    totals = {
        actions: network.total(
            values.gather(-1, torch.tensor(actions).expand(20, 3)[..., None])[..., 0], seen
        )
        for actions in itertools.product(range(2), repeat=3)
    }
    best = torch.stack(list(totals.values())).amax(0)
    greedy = algorithm.policy.mode(seen).long()
    of_greedy = torch.stack([totals[tuple(row)][i] for i, row in enumerate(greedy.tolist())])
    assert torch.allclose(of_greedy, best)
    assert torch.allclose(algorithm.policy.value(seen), best)
    if kind is VDNConfig:
        assert torch.allclose(best, values.amax(-1).sum(-1))


def test_the_loss_is_the_squared_error_towards_what_the_target_network_says():
    algorithm = made(QMIXConfig, team_of(count=2), double=False)
    g = torch.Generator().manual_seed(0)
    batch = Batch(
        {
            "observation": torch.randn(4, 2, generator=g),
            "next_observation": torch.full((4, 2), torch.nan),
            "action": torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]),
            "reward": torch.randn(4, generator=g),
            "discount": torch.tensor([0.0, 0.9, 0.9, 0.0]),
        }
    )
    batch["next_observation"][1:3] = torch.randn(2, 2, generator=g)
    losses = algorithm.losses(batch)
    network, errors = algorithm.policy.network.requires_grad_(False), []
    for i in range(4):
        seen, following = batch["observation"][i : i + 1], batch["next_observation"][i : i + 1]
        target = float(batch["reward"][i])
        if batch["discount"][i]:
            target += 0.9 * float(network.total(network(following).amax(-1), following))
        taken = [network(seen)[0, a, int(batch["action"][i, a])] for a in range(2)]
        errors.append(float(network.total(torch.stack(taken)[None], seen)) - target)
    wanted = torch.tensor(errors)
    assert torch.allclose(losses.total, wanted.square().mean(), atol=1e-6)
    assert torch.allclose(losses.extras["priorities"], wanted.abs(), atol=1e-6)


def test_a_team_explores_each_agent_by_itself():
    algorithm = made(VDNConfig, team_of(count=2))
    policy = algorithm.policy
    step = {
        "observation": torch.zeros(2000, 2), "action": torch.zeros(2000, 2),
        "noise": torch.rand(2000, 4, generator=torch.Generator().manual_seed(0)),
    }  # fmt: skip
    greedy = policy.mode(step["observation"])[0]
    policy.epsilon.fill_(0.5)
    other = policy.act(step) != greedy
    assert other.float().mean(0).tolist() == pytest.approx([0.25, 0.25], abs=0.04)
    assert (other[:, 0] & other[:, 1]).float().mean() == pytest.approx(0.0625, abs=0.02)
    policy.epsilon.zero_()
    assert (policy.act(step) == greedy).all()


def test_choices_of_a_team_are_counted_from_where_those_of_its_agents_are():
    """What acts elsewhere adds the start of the space to the policy's choices."""
    env = team_of("Counted", count=2)
    assert env.action_space.start.tolist() == [1, 1]
    seen = env.reset()
    assert env.step(seen.clone()).reward.tolist() == [1.0, 1.0]  # by choices from 0
