"""Environments that other packages bring: found by their ids, made, and listed."""

import importlib.util
import re

import gymnasium
import numpy as np
import pytest
import torch

from gmi_drl.cli.main import main
from gmi_drl.roles.envs import adapters, check_env, listing, make_env
from gmi_drl.roles.envs.listing import known_envs

SHAPES = {
    "MinAtar/Breakout-v1": (10, 10, 4),
    "popgym-RepeatPreviousEasy-v0": (4,),
    "ALE/Pong-v5": (210, 160, 3),
    "LunarLander-v3": (8,),
}


@pytest.mark.parametrize("env_id", SHAPES)
def test_an_id_is_enough(env_id):
    assert check_env(env_id) == []
    env = make_env(env_id, 2)
    its = env.structured_space
    assert (its.shape or (its.n,)) == SHAPES[env_id]
    first = env.reset()
    assert first.shape == (2, np.prod(SHAPES[env_id]))
    for _ in range(5):
        step = env.step(torch.zeros(2, dtype=torch.int64))
    assert torch.isfinite(step.observation.float()).all()
    env.close()


def test_atari_is_preprocessed_and_stacked_as_usual():
    preprocessing = {"gymnasium.wrappers:AtariPreprocessing": {"frame_skip": 4}}
    env = make_env(
        "ALE/Pong-v5", 2, options={"frameskip": 1},
        wrappers=[preprocessing, {"frame_stack": {"count": 4}}, "clip_reward"],
    )  # fmt: skip
    assert env.reset().shape == (2, 84 * 84 * 4)
    assert env.structured_space.shape == (84, 84, 4)
    assert env.observation_space.dtype == np.uint8
    env.close()


@pytest.mark.parametrize(
    ("env_id", "extra"),
    [("MinAtar/Breakout-v1", "minatar"), ("ALE/Pong-v5", "atari"), ("popgym-X-v0", "popgym")],
)
def test_a_package_that_is_not_there_is_named(env_id, extra, monkeypatch):
    monkeypatch.setattr(adapters, "absent", lambda packages: [*packages])
    monkeypatch.setattr(adapters, "registry", {})
    gymnasiums = adapters.ADAPTERS["gymnasium"]._replace(ids=())
    monkeypatch.setattr(adapters, "ADAPTERS", {**adapters.ADAPTERS, "gymnasium": gymnasiums})
    (fault,) = check_env(env_id)
    assert f"[{extra}]" in fault


def test_an_id_that_a_family_does_not_have_is_told_where_its_ids_are():
    (fault,) = check_env("MinAtar/NoSuchGame-v1")
    assert fault.endswith("`gmi-drl envs MinAtar/` lists those of this machine.")


def test_box2d_that_is_not_there_is_named(monkeypatch):
    def absent(entry):
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setattr(adapters, "load_env_creator", absent)
    (fault,) = check_env("LunarLander-v3")
    assert "needs Box2D, which is not installed" in fault
    assert "[box2d]" in fault


@pytest.mark.slow
def test_they_are_listed_with_adapters_and_spaces(capsys):
    found = {one.env_id: one for one in known_envs("pole")}
    assert found["CartPole-v1"].adapters[:2] == ("torch", "gymnasium")
    assert (found["CartPole-v1"].observation, found["CartPole-v1"].action) == (
        "Box 4",
        "Discrete 2",
    )
    assert "CartPole-v0" not in found
    assert main(["envs", "MinAtar"]) == 0
    told = capsys.readouterr().out
    assert "MinAtar/Breakout-v1" in told
    assert "Box 10 x 10 x 4 bool" in told
    assert main(["envs", "no such thing"]) == 1


def test_one_that_fails_without_a_word_is_listed_by_its_error(monkeypatch):
    def refuse(*_, **__):
        raise MemoryError

    monkeypatch.setattr(listing, "make_env", refuse)
    found = {one.env_id: one for one in known_envs("CartPole-v1")}
    assert found["CartPole-v1"].fault == "MemoryError"


@pytest.mark.slow
def test_all_of_them_are_listed_and_none_is_made(capsys, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("hundreds of environments would be made")

    monkeypatch.setattr(listing, "make_env", refuse)
    monkeypatch.setattr(gymnasium, "make", refuse)
    assert main(["envs"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"CartPole-v1 +torch, gymnasium\n", told)
    assert "LunarLander-v3" in told
    assert "`gmi-drl envs TEXT` shows what is seen and done" in told
    assert "GymV26Environment-v0" not in told


needs_envpool = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed: 0.7 GB"
)


def test_without_envpool_it_is_named(monkeypatch):
    monkeypatch.setattr(adapters, "absent", lambda packages: [*packages.values()])
    (fault,) = check_env("Pong-v5", "envpool")
    assert "[envpool]" in fault


@needs_envpool
def test_what_envpool_does_not_have_is_told():
    assert "Close: LunarLander-v3" in check_env("LunarLandr-v3", "envpool")[0]
    (fault,) = check_env("CartPole-v1", "envpool", {"num_thread": 2})
    assert "unknown option 'num_thread'" in fault


@needs_envpool
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_envpools_environments_do_what_gymnasiums_do(env_id):
    """The same dynamics from the same states, and episodes that begin in the step they end in."""
    env = make_env(env_id, 3, adapter="envpool", seed=5, max_episode_steps=30)
    limit = env.max_episode_steps
    assert limit == 30
    reference = gymnasium.make(env_id, max_episode_steps=limit).unwrapped
    reference.reset()
    shown, generator, ended = env.reset().clone(), torch.Generator().manual_seed(0), 0
    for _ in range(90):
        if env_id == "CartPole-v1":
            action = torch.randint(0, 2, (3,), generator=generator)
            reference.state = shown[1].numpy().astype(np.float64)
        else:
            action = torch.rand(3, 1, generator=generator) * 2 - 1
            cos, sin, speed = shown[1].tolist()
            reference.state = np.array([np.arctan2(sin, cos), speed])
        step = env.step(action)
        expected, reward, terminated, *_ = reference.step(action[1].numpy())
        reference.steps_beyond_terminated = None
        np.testing.assert_allclose(step.final_observation[1], expected, atol=2e-4)
        assert step.reward[1].item() == pytest.approx(float(reward), abs=2e-3)
        assert bool(step.terminated[1]) == terminated
        done = step.terminated | step.truncated
        ended += int(done.sum())
        if done[1]:
            assert not torch.equal(step.observation[1], step.final_observation[1])
        shown = step.observation.clone()
    assert ended >= 6
    env.close()
