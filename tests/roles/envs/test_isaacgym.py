"""The Isaac Gym adapter against a package with VecTask's interface, and VecTask over ours."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import isaacgym_stub
from gmi_drl.roles.envs import EnvSpecError, check_env, make_env
from gmi_drl.roles.envs.protocol import VecEnv

FAKE = Path(__file__).parents[2] / "fake_isaacgym"


@pytest.fixture
def fake_package(monkeypatch):
    monkeypatch.syspath_prepend(str(FAKE))
    yield
    for name in ("isaacgym", "isaacgymenvs"):
        sys.modules.pop(name, None)


def test_missing_packages_are_named_with_where_they_come_from():
    faults = check_env("Ant", "isaacgym")
    assert len(faults) == 2
    assert "isaacgymenvs, which is not installed" in faults[1]
    with pytest.raises(EnvSpecError, match="NVIDIA"):
        make_env("Ant", 2, adapter="isaacgym")


@pytest.mark.usefixtures("fake_package")
def test_time_limits_are_truncation_and_falls_termination():
    env = make_env("Ant", 2, adapter="isaacgym", seed=3, options={"cfg": None})
    assert isinstance(env, VecEnv)
    assert (env._task.seed, env._task.task, env._task.headless) == (3, "Ant", True)
    assert env.observation_space.shape == (3,)
    assert env.max_episode_steps == 6
    assert env.reset().shape == (2, 3)
    action = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    steps = [env.step(action) for _ in range(8)]
    assert [s.truncated.tolist() for s in steps].index([True, False]) == 5
    assert [s.terminated.tolist() for s in steps].index([False, True]) == 3
    assert not any((s.truncated & s.terminated).any() for s in steps)
    ended = steps[3]
    assert ended.final_observation[1, 2] > 5  # the finished episode's own
    assert steps[4].observation[1, 1] == 0  # the next step began another
    assert env.state_dict() is None
    env.close()


@pytest.mark.usefixtures("fake_package")
def test_time_limit_is_passed_on():
    assert make_env("Ant", 2, adapter="isaacgym", max_episode_steps=3)._task.max_episode_length == 3


@pytest.mark.usefixtures("fake_package")
def test_torch_imported_first_is_explained(monkeypatch):
    monkeypatch.setenv("FAKE_ISAACGYM_TORCH_FIRST", "1")
    with pytest.raises(EnvSpecError, match="before torch"):
        make_env("Ant", 2, adapter="isaacgym")


@pytest.mark.parametrize(
    ("task", "num_obs", "num_acts"),
    [("Ant", 105, 8), ("Anymal", 48, 12), ("BallBalance", 24, 3), ("ShadowHand", 211, 20)],
)
def test_code_written_for_vectask_runs(task, num_obs, num_acts):
    env = isaacgym_stub.make(seed=0, task=task, num_envs=4, sim_device="cpu", rl_device="cpu")
    assert (env.num_envs, env.num_obs, env.num_acts) == (4, num_obs, num_acts)
    assert env.observation_space.shape == (num_obs,)
    assert env.action_space.low.tolist() == [-1.0] * num_acts
    observations = env.reset()
    assert observations["obs"].shape == (4, num_obs)
    total = torch.zeros(4)
    for _ in range(5):
        observations, reward, reset, extras = env.step(torch.zeros(env.num_envs, env.num_acts))
        total += reward
    assert observations["obs"].shape == (4, num_obs)
    assert reset.dtype == torch.long
    assert extras["time_outs"].shape == (4,)
    env.close()


def test_vectask_counts_progress_and_tells_time_limits_from_falls():
    env = isaacgym_stub.VecTask(make_env("Hopper-v5", 3, max_episode_steps=15))
    seen = []
    for _ in range(60):
        *_, reset, extras = env.step(torch.rand(3, 3) * 2 - 1)
        seen.append((reset.bool(), extras["time_outs"]))
        assert torch.equal(env.progress_buf == 0, reset.bool())
        assert not (extras["time_outs"] & ~reset.bool()).any()
    assert any(t.any() for _, t in seen)


def test_vectask_scales_actions_to_the_environments_bounds():
    base = make_env("Humanoid-v5", 1, dtype=torch.float64)  # bounds +-0.4
    env = isaacgym_stub.VecTask(base, clip_actions=1.0)
    env.step(torch.full((1, 17), 3.0))
    np.testing.assert_allclose(base._ctrl[0], base.action_space.high, rtol=1e-6)


def test_vectask_state_goes_on():
    env = isaacgym_stub.make(seed=0, task="Ant", num_envs=2)
    env.step(torch.zeros(2, 8))
    state = env.get_env_state()
    expected = env.step(torch.ones(2, 8))[0]["obs"].clone()
    other = isaacgym_stub.make(seed=5, task="Ant", num_envs=2)
    other.set_env_state(state)
    assert torch.equal(other.reset()["obs"], state["observation"])
    assert torch.equal(other.step(torch.ones(2, 8))[0]["obs"], expected)


def test_vectask_refuses_discrete_actions():
    with pytest.raises(EnvSpecError, match=r"Discrete\(2\); VecTask acts"):
        isaacgym_stub.make(seed=0, task="CartPole-v1", num_envs=2)
