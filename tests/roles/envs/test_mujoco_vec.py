"""What the MuJoCo batch adds to Gymnasium's environments: saved state, threads, blow-ups."""

import gc
import io
import logging
import threading

import mujoco
import numpy as np
import pytest
import torch

from gmi_drl.roles.envs import EnvActionError, EnvSpecError, UnstableSimulation, make_env
from gmi_drl.roles.envs.errors import EnvStateError
from gmi_drl.roles.envs.mujoco.pool import PhysicsPool


def actions(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, env.num_env, *env.action_space.shape)
    return torch.rand(shape, generator=generator) * 2 - 1


def follow(env, acts):
    return [[t.clone() for t in env.step(a)] for a in acts]


def through_disk(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("env_id", ["Ant-v5", "Humanoid-v5", "InvertedDoublePendulum-v5"])
def test_saved_state_goes_on_bit_for_bit_through_resets(env_id):
    first = make_env(env_id, 3, seed=1, max_episode_steps=20)
    acts = actions(first, 60)
    first.reset()
    follow(first, acts[:27])
    saved = through_disk(first.state_dict())
    expected = follow(first, acts[27:])
    second = make_env(env_id, 3, seed=99, max_episode_steps=20)
    second.load_state_dict(saved)
    for mine, theirs in zip(follow(second, acts[27:]), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_saved_state_of_others_is_refused():
    ant, two = make_env("Ant-v5", 1), make_env("Ant-v5", 2)
    ant.reset()
    state = ant.state_dict()
    with pytest.raises(EnvStateError, match="num_env=1"):
        two.load_state_dict(state)
    with pytest.raises(EnvStateError, match="HalfCheetah-v5"):
        make_env("HalfCheetah-v5", 1).load_state_dict(state)


def test_two_batches_of_half_the_size_are_one_batch():
    whole = make_env("Hopper-v5", 4, seed=10)
    halves = [make_env("Hopper-v5", 2, seed=10), make_env("Hopper-v5", 2, seed=12)]
    assert torch.equal(whole.reset(), torch.cat([h.reset() for h in halves]))
    ended = False
    for action in actions(whole, 80):
        step = whole.step(action)
        ended |= bool(step.terminated.any())
        parts = [h.step(a) for h, a in zip(halves, action.split(2), strict=True)]
        for one, two in zip(step, zip(*parts, strict=True), strict=True):
            assert torch.equal(one, torch.cat(two))
    assert ended


def test_threads_change_nothing_and_are_gone_after_close():
    before = set(threading.enumerate())
    one, four = make_env("HalfCheetah-v5", 6), make_env("HalfCheetah-v5", 6, threads=4)
    assert len(set(threading.enumerate()) - before) == 3  # the caller is the fourth
    one.reset(), four.reset()
    for action in actions(one, 20):
        assert torch.equal(one.step(action).observation, four.step(action).observation)
    four.close()
    four.close()
    assert set(threading.enumerate()) == before


def test_forgotten_environments_take_their_threads_along():
    before = threading.active_count()
    make_env("Reacher-v5", 4, threads=3)
    gc.collect()
    assert threading.active_count() == before


def test_one_thread_starts_none():
    before = threading.active_count()
    make_env("Reacher-v5", 4, threads=1)
    make_env("Reacher-v5", 1, threads=8)
    assert threading.active_count() == before


def test_an_error_in_a_physics_thread_reaches_the_caller():
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    pool = PhysicsPool(model, ["not MjData"] * 2, 1, False, threads=2)
    try:
        with pytest.raises(TypeError):
            pool.step()
    finally:
        pool.close()


def test_reset_with_a_seed_repeats_and_without_goes_on():
    env = make_env("Ant-v5", 2, seed=5)
    first = env.reset().clone()
    second = env.reset().clone()
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(seed=5), first)
    assert torch.equal(env.reset(), second)


def test_time_limit_is_truncation_alone_and_keeps_the_final_observation():
    env = make_env("HalfCheetah-v5", 2, max_episode_steps=3)
    env.reset()
    steps = follow(env, actions(env, 4))
    assert [s[3].tolist() for s in steps] == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert not any(s[2].any() for s in steps)
    observation, final = steps[2][0], steps[2][4]
    assert not torch.equal(observation, final)


def blow_up(env, index):
    """Set a velocity that MuJoCo finds too large at its next step."""
    env._datas[index].qvel[0] = 1e11


def test_blow_up_ends_the_episode_pays_nothing_and_is_told(caplog):
    env = make_env("HalfCheetah-v5", 3)
    last = env.reset().clone()
    blow_up(env, 1)
    with caplog.at_level(logging.WARNING):
        step = env.step(torch.zeros(3, 6))
    assert step.terminated.tolist() == [False, True, False]
    assert step.reward[1] == 0
    assert torch.equal(step.final_observation[1], last[1])
    assert torch.isfinite(step.observation).all()
    assert env.unstable_steps == 1
    assert "environment 1 became unstable at step 1" in caplog.text
    assert not env.step(torch.zeros(3, 6)).terminated.any()


def test_blow_up_raises_when_asked_and_names_the_environment():
    env = make_env("HalfCheetah-v5", 3, options={"on_unstable": "raise"}, threads=2)
    env.reset()
    env.step(torch.zeros(3, 6))
    blow_up(env, 2)
    with pytest.raises(UnstableSimulation, match=r"environment 2 .* step 2 .*bad qvel") as caught:
        env.step(torch.zeros(3, 6))
    assert (caught.value.env_index, caught.value.step) == (2, 2)
    env.close()


def test_blow_up_leaves_no_log_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make_env("HalfCheetah-v5", 1)
    env.reset()
    blow_up(env, 0)
    env.step(torch.zeros(1, 6))
    assert not list(tmp_path.iterdir())


def test_actions_that_are_nan_or_misshaped_are_refused_with_their_environment():
    env = make_env("HalfCheetah-v5", 3)
    env.reset()
    with pytest.raises(EnvActionError, match=r"\[3, 5\].*\[3, 6\]"):
        env.step(torch.zeros(3, 5))
    action = torch.zeros(3, 6)
    action[2, 4] = float("nan")
    with pytest.raises(EnvActionError, match="environment 2"):
        env.step(action)


def test_integrator_is_other_physics_and_named():
    usual, fast = (
        make_env("Ant-v5", 1),
        make_env("Ant-v5", 1, options={"integrator": "implicitfast"}),
    )
    assert torch.equal(usual.reset(), fast.reset())
    action = torch.full((1, 8), 0.5)
    assert not torch.equal(usual.step(action).observation, fast.step(action).observation)
    with pytest.raises(EnvSpecError, match=r"integrator='magic'; known: euler, rk4"):
        make_env("Ant-v5", 1, options={"integrator": "magic"})


def test_a_missing_model_is_named():
    with pytest.raises(EnvSpecError, match=r"no file /nowhere/ant\.xml"):
        make_env("Ant-v5", 1, options={"xml_file": "/nowhere/ant.xml"})


def test_first_states_have_gymnasiums_spread():
    env = make_env("HalfCheetah-v5", 400, dtype=torch.float64)
    observation = env.reset().numpy()
    assert np.abs(observation[:, 1:8]).max() <= 0.1  # uniform positions
    assert observation[:, 8:].std() == pytest.approx(0.1, rel=0.1)  # normal velocities
