"""Any registered environment through Gymnasium's own vectors."""

import multiprocessing
import os

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from gmi_drl.roles.envs import EnvActionError, EnvSpecError, EnvStateError, make_env

PID_ENV = "bodies_gym:GmiPid-v0"


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_equals_gymnasiums_vector(vectorization):
    ours = make_env(
        "MountainCarContinuous-v0", 2, seed=3, max_episode_steps=4,
        options={"vectorization": vectorization, "goal_velocity": 0.1},
    )  # fmt: skip
    make = lambda: gymnasium.make(  # noqa: E731
        "MountainCarContinuous-v0", max_episode_steps=4, goal_velocity=0.1
    )
    ref = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    pids = [child.pid for child in multiprocessing.active_children()]
    assert len(pids) == (2 if vectorization == "async" else 0)
    try:
        assert ours.max_episode_steps == 4
        np.testing.assert_array_equal(ours.reset(), ref.reset(seed=3)[0])
        rng = np.random.default_rng(0)
        for t in range(1, 9):
            action = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
            step = ours.step(torch.from_numpy(action))
            observation, reward, _, truncated, info = ref.step(action)
            np.testing.assert_array_equal(step.observation, observation)
            np.testing.assert_array_equal(step.reward, reward.astype(np.float32))
            assert step.truncated.tolist() == truncated.tolist() == [t % 4 == 0] * 2
            last = np.stack(info["final_obs"]) if t % 4 == 0 else observation
            np.testing.assert_array_equal(step.final_observation, last)
    finally:
        ours.close()
        ours.close()
        ref.close()
    assert not multiprocessing.active_children()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_sync_lives_here_and_takes_options_and_shifted_discrete_actions():
    env = make_env(PID_ENV, 2, options={"shift": 0.5}, dtype=torch.float64)
    assert env.reset()[0].tolist() == [os.getpid(), 0.5]
    assert env.step(torch.tensor([0, 2])).reward.tolist() == [5.0, 7.0]
    env.step(torch.tensor([1, 1]))
    step = env.step(torch.tensor([1, 1]))
    assert step.terminated.all()
    assert step.observation[0, 1] == 0.5
    assert step.final_observation[0, 1] == 3.5
    env.close()


def test_a_discrete_observation_is_a_one_among_zeros():
    env = make_env("FrozenLake-v1", 2)
    assert env.reset().tolist() == [[1.0, *[0.0] * 15]] * 2
    seen = env.step(torch.tensor([1, 1])).observation
    assert seen.shape == (2, 16)
    assert seen.sum(1).tolist() == [1.0, 1.0]
    env.close()


def test_first_reset_uses_the_seed_and_later_ones_go_on():
    one, two = (make_env("Acrobot-v1", 2, seed=s) for s in (1, 2))
    first = one.reset().clone()
    assert torch.equal(first[1], two.reset()[0])
    assert not torch.equal(first, one.reset())
    assert torch.equal(first, one.reset(seed=1))
    one.close()
    two.close()


def test_spaces_of_no_fixed_width_are_refused_with_a_remedy():
    with pytest.raises(EnvSpecError, match="TransformObservation"):
        make_env("bodies_spaces:ShowsSequence-v0", 2)


def test_state_cannot_be_had_and_bad_actions_are_refused():
    env = make_env("MountainCarContinuous-v0", 2)
    env.reset()
    assert env.state_dict() is None
    with pytest.raises(EnvStateError, match="new episodes"):
        env.load_state_dict({})
    with pytest.raises(EnvActionError, match=r"shape \[2\]"):
        env.step(torch.zeros(2))
    with pytest.raises(EnvActionError, match="environment 1"):
        env.step(torch.tensor([[0.0], [float("nan")]]))
    env.close()
