"""What serving repeats: a GPU's way gives what the host's gives, does not wait, and replays."""

import pytest
import torch

from device_only import DeviceOnly, RecordedPool
from gmi_drl.placement import RecurrentConfig
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.policies.actor_critic import (
    ActorCritic,
    ActorCriticPolicy,
    distribution_for,
    observation_width,
)
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import RunningNormalizer, batch_moments
from gmi_drl.roles.policies.policy import CapturedActor, GreedyActor
from gmi_drl.roles.policies.recurrent import RecurrentActorCritic, RecurrentPolicy
from gmi_drl.roles.serving.serving import Simulation, Turns
from gmi_drl.roles.telemetry.clock import Leash

IDS = ["BallBalance-v0", "CartPole-v1", "Pendulum-v1"]


def environments(env_id, static, num_env=4, device="cpu"):
    env = make_env(env_id, num_env, adapter="torch", device=device, seed=2, max_episode_steps=4)
    if static and device == "cpu":
        env._on_host = False
    return env


def parts(env, device="cpu"):
    width = observation_width(env.observation_space)
    generator = torch.Generator().manual_seed(0)
    policy = ActorCritic(width, distribution_for(env.action_space), [8], generator=generator)
    normalizer = RunningNormalizer(width, clip=10.0, device=device)
    some = torch.randn(50, width, generator=generator) * 2
    normalizer.update(batch_moments(some, torch.zeros(1 + 2 * width, dtype=torch.float64)))
    return ActorCriticPolicy(policy.to(device)), normalizer


def served(env, static=None, pool=None, turns=9, device="cpu"):
    """Actions and observations of each turn, and the episodes until then."""
    simulation = Simulation(env, pool, static)
    one = Turns(simulation, GreedyActor(*parts(env, device)), pool)
    found = []

    def turn():
        one.infer()
        found.append(one.action.clone())
        simulation.step(one.action)
        found.append(simulation.observation.clone())

    for i in range(turns):
        if simulation.static and device == "cpu" and i != 2:  # then it captures
            with DeviceOnly():
                turn()
        else:
            turn()
    simulation.settle()
    simulation.settle()
    seen = simulation.episodes.take()
    one.close()
    env.close()
    return [part.cpu() for part in found], seen


def assert_alike(one, other, **tolerance):
    assert one[1] == pytest.approx(other[1], rel=1e-5)
    assert one[1].episodes >= 8
    for mine, theirs in zip(one[0], other[0], strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)


@pytest.mark.parametrize("env_id", IDS)
def test_a_gpus_turns_do_not_wait_and_give_what_the_hosts_give(env_id):
    pool = RecordedPool()
    expected = served(environments(env_id, False), static=False)
    assert_alike(served(environments(env_id, True), static=True), expected)
    assert_alike(served(environments(env_id, True), static=True, pool=pool), expected)
    assert [graph.replays for graph in pool.graphs] == [9, 7]  # the environments', and the turns'


def test_actions_of_a_captured_actor_are_an_actors():
    policy, normalizer = parts(environments("Pendulum-v1", False))
    plain = GreedyActor(policy, normalizer)
    captured = CapturedActor(policy, normalizer, RecordedPool())
    generator, began = torch.Generator().manual_seed(1), torch.zeros(5, dtype=torch.bool)
    for _ in range(4):
        observation = torch.randn(5, 3, generator=generator)
        policy.network.head.weight.data.mul_(1.1)
        assert torch.equal(captured.act(observation, began), plain.act(observation, began))


def test_a_captured_actor_remembers_what_an_actor_does():
    recurrent = RecurrentConfig(cell="gru", size=6)
    generator = torch.Generator().manual_seed(0)
    network = RecurrentActorCritic(3, Normal(1), [8], recurrent=recurrent, generator=generator)
    policy = RecurrentPolicy(network)
    plain, captured = GreedyActor(policy, None), CapturedActor(policy, None, RecordedPool())
    for step in range(6):
        observation = torch.randn(5, 3, generator=generator)
        began = torch.rand(5, generator=generator) < (0.3 if step else 1.0)
        actions = captured.act(observation, began), plain.act(observation, began)
        assert torch.equal(*actions)


@pytest.mark.gpu
@pytest.mark.parametrize("env_id", IDS)
def test_captured_turns_equal_eager_ones_on_a_gpu(env_id):
    from gmi_drl.roles.graphs import Pool

    device = torch.device("cuda", torch.cuda.current_device())
    found = [
        served(environments(env_id, True, 64, device), pool=pool, device=device)
        for pool in (None, Pool(device))
    ]
    assert_alike(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
def test_a_leash_lets_the_host_only_so_far_ahead():
    device = torch.device("cuda", torch.cuda.current_device())
    leash, big = Leash(device, rounds=2), torch.rand(4096, 4096, device=device)
    ends = []
    for i in range(6):
        for _ in range(10):
            big @ big
        ends.append(torch.cuda.Event())
        ends[-1].record()
        leash.end_round()
        assert i < 2 or ends[i - 2].query()
    torch.cuda.synchronize()
