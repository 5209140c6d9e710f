"""What Barkour and ShadowHand keep beside physics, on warp's CPU device: commands and goals."""

import io

import pytest
import torch

import warp_cache  # noqa: F401
from gmi_drl.roles.envs import make_env

# Nine goals of ten are reached at once; one time step of physics between them.
OFTEN = {"success_tolerance": 3.0, "frame_skip": 1}
GOAL, COMMAND = slice(88, 92), slice(9, 12)  # in the observation
pytestmark = pytest.mark.timeout(300)  # a fresh cache compiles kernels first


def make(num_env, seed, env_id="ShadowHand-v0", options=OFTEN, limit=4):
    return make_env(
        env_id, num_env, adapter="warp", seed=seed, options=options, max_episode_steps=limit
    )


def follow(env, steps):
    """[steps, N, everything that a step gives]"""
    rows = []
    for k in range(steps):
        step = env.step(torch.full((env.num_env, *env.action_space.shape), 0.1 * (k % 3)))
        rows.append(torch.cat([t.float().view(env.num_env, -1) for t in step], 1))
    return torch.stack(rows)


def test_a_goal_that_is_reached_is_paid_and_drawn_anew_alike_wherever_the_environment_is():
    env, part = make(4, seed=5), make(2, seed=7)
    goals = [env.reset()[:, GOAL].clone()]
    reached = torch.zeros(4, dtype=torch.int64)
    for _ in range(3):
        step = env.step(torch.zeros(4, 20))
        paid = step.reward > 200
        changed = (step.observation[:, GOAL] != goals[-1]).any(1)
        assert torch.equal(paid, changed)
        reached += paid
        goals.append(step.observation[:, GOAL].clone())
    assert reached.sum() >= 8
    lengths = torch.stack(goals).square().sum(-1)
    assert torch.allclose(lengths, torch.ones(4, 4))
    env.reset(seed=5), part.reset()
    assert torch.equal(follow(env, 6)[:, 2:], follow(part, 6))


def test_saved_state_goes_on_bit_for_bit_with_goals():
    first, second, file = make(2, seed=1), make(2, seed=99), io.BytesIO()
    first.reset()
    follow(first, 2)
    torch.save(first.state_dict(), file)
    expected = follow(first, 6)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(follow(second, 6), expected)


def test_a_command_is_kept_for_an_episode_and_its_spread_is_the_options():
    env = make(512, 3, "Barkour-v0", {"frame_skip": 1}, limit=2)
    first = env.reset()[:, COMMAND].clone()
    step = env.step(torch.zeros(512, 12))
    assert torch.equal(step.observation[:, COMMAND], first)
    step = env.step(torch.zeros(512, 12))
    assert torch.equal(step.final_observation[:, COMMAND], first)
    assert not (step.observation[:, COMMAND] == first).any()
    x, y, yaw = (torch.cat([first, step.observation[:, COMMAND]]) / torch.tensor([2, 2, 0.25])).T
    for seen, most in ((x, 1), (y, 0.5), (yaw, 1)):
        assert seen.abs().max() <= most
        assert float(seen.std()) == pytest.approx(2 * most / 12**0.5, rel=0.06)
        assert float(seen.mean()) == pytest.approx(0, abs=0.08)
