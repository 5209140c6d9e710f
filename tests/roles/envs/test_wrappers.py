"""Wrappers of a batch and of one environment, by config and by hand."""

import contextlib

import gymnasium
import numpy as np
import pytest
import torch

from gmi_drl.placement import A2CConfig, ConfigError, load_config
from gmi_drl.roles.envs import EnvError, EnvRaised, EnvSpecError, check_env, make_env
from gmi_drl.roles.envs.batch_wrappers import ClipReward, FrameStack, KeepNumbers, unwrapped
from gmi_drl.roles.envs.protocol import Step, VecEnv
from gmi_drl.roles.policies.networks import actor_critic_of
from toy_env import ToyEnv


def test_a_stack_has_the_last_observations_and_begins_anew_with_an_episode():
    env = FrameStack(ToyEnv(2, limit=3), 3)
    assert isinstance(env, VecEnv)
    assert env.reset().tolist() == [[0, 0] * 3, [1, 0] * 3]
    shown = [env.step(torch.zeros(2, 1)) for _ in range(4)]
    assert [step.observation[1].tolist() for step in shown] == [
        [1, 0, 1, 0, 1, 1], [1, 0, 1, 1, 1, 2], [1, 0] * 3, [1, 0, 1, 0, 1, 1]
    ]  # fmt: skip
    assert shown[2].final_observation[1].tolist() == [1, 1, 1, 2, 1, 3]
    assert env.observation_space.shape == (6,)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3)])
def test_images_are_stacked_along_their_channels(shape):
    inner = ToyEnv(2, limit=2)
    width = int(np.prod(shape))
    inner.observation_space = gymnasium.spaces.Box(0, 255, (width,), np.uint8)
    inner.structured_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    inner._observation = lambda: (
        torch.arange(width).repeat(2, 1) + 100 * inner._count[:, None]
    ).to(torch.uint8)
    env = FrameStack(inner, 2)
    env.reset()
    shown = env.step(torch.zeros(2, 1)).observation
    assert env.structured_space.shape == (4, 5, 2 * (shape[2] if shape[2:] else 1))
    image = shown[0].view(env.structured_space.shape)
    before = torch.arange(width, dtype=torch.uint8).view(4, 5, -1)
    assert torch.equal(image, torch.cat([before, before + 100], -1))
    ended = env.step(torch.zeros(2, 1))  # nothing is left of the episode before
    image, final = (one[0].view(image.shape) for one in (ended.observation, ended[-1]))
    assert torch.equal(image, torch.cat([before, before], -1))
    assert torch.equal(final[..., : before.shape[2]], before + 100)


def test_a_stack_goes_on_from_its_state():
    env = FrameStack(ToyEnv(2, limit=5), 2)
    env.reset()
    env.step(torch.zeros(2, 1))
    other = FrameStack(ToyEnv(2, limit=5), 2)
    other.load_state_dict(env.state_dict())
    for _ in range(6):
        one, two = (e.step(torch.zeros(2, 1)) for e in (env, other))
        assert all(map(torch.equal, one, two))


class Elsewhere(ToyEnv):
    """Has its tensors on another device than checkpoints, which are read on the CPU."""

    def __init__(self):
        super().__init__(2, limit=5)
        self.device = torch.device("meta")

    def step(self, action):
        return Step(*(part.to(self.device) for part in super().step(action)))


def test_a_stack_goes_on_where_its_environments_are():
    saved, env = FrameStack(ToyEnv(2, limit=5), 2), FrameStack(Elsewhere(), 2)
    saved.reset()
    env.load_state_dict(saved.state_dict())
    assert env.step(torch.zeros(2, 1)).observation.device == env.device


def test_rewards_are_clipped_and_numbers_hidden():
    env = KeepNumbers(ClipReward(ToyEnv(2, limit=9), 0.0, 1.5), [1])
    assert env.reset().tolist() == [[0], [0]]
    steps = [env.step(torch.zeros(2, 1)) for _ in range(3)]
    assert [step.reward[0].item() for step in steps] == [1.0, 1.5, 1.5]
    assert steps[2].observation.tolist() == [[3], [3]]
    assert env.observation_space.shape == (1,)
    assert isinstance(unwrapped(env), ToyEnv)


def test_numbers_that_change_their_places_are_not_those_of_the_structure_below():
    inner = ToyEnv(2, limit=9)
    number = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    inner.structured_space = gymnasium.spaces.Dict({"number": number, "count": number})
    env = KeepNumbers(inner, [1, 0])
    assert env.structured_space == env.observation_space == inner.observation_space


def test_wrappers_are_put_on_in_their_order():
    words = ["keep_numbers", {"bodies_wrappers:Doubled": {"factor": 3.0}}, {"frame_stack": None}]
    words[0] = {"keep_numbers": {"places": [0, 2]}}
    env = make_env("CartPole-v1", 2, seed=1, wrappers=words)
    plain = make_env("CartPole-v1", 2, seed=1)
    assert torch.equal(env.reset(), (plain.reset()[:, [0, 2]] * 3).repeat(1, 4))
    assert env.observation_space.shape == (8,)
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0"])
def test_networks_are_for_what_the_outermost_wrapper_shows(env_id):
    words = ["bodies_wrappers:WithOnes", {"frame_stack": {"count": 2}}, "bodies_wrappers:WithOnes"]
    for i in range(len(words)):
        env = make_env(env_id, 2, wrappers=words[: i + 1])
        network = actor_critic_of(A2CConfig(network=[8]), env)
        assert network(env.reset()).shape[0] == 2
        env.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_gymnasiums_own_wrap_each_environment(vectorization):
    env = make_env(
        "CartPole-v1", 2, adapter="gymnasium", options={"vectorization": vectorization},
        wrappers=["gymnasium.wrappers:TimeAwareObservation", "clip_reward"],
    )  # fmt: skip
    assert env.reset().shape == (2, 5)
    assert env.step(torch.tensor([0, 1])).observation[:, 4].tolist() == pytest.approx([1, 1])
    env.close()


@pytest.mark.parametrize(
    ("wrappers", "said"),
    [
        (["frame_stak"], "env.wrappers: frame_stak; known: clip_reward, frame_stack, keep_numbers. "
            "Did you mean frame_stack?"),
        ([{"frame_stack": {"cont": 3}}], "unknown option 'cont'. Did you mean count?"),
        (["nowhere:Thing"], "nowhere:Thing does not import (ModuleNotFoundError"),
        (["math:pi"], "env.wrappers: math:pi is a float; must be a class that wraps environments."),
        (["gymnasium.wrappers:ClipReward"], "adapter torch has a batch of its own. Use adapter"),
        ([{"frame_stack": 4}], "has {'frame_stack': 4}, which is no wrapper. Write a name, or one"),
        ([{"frame_stack": {"count": 4}, "clip_reward": {}}], "which is no wrapper"),
        ([3], "env.wrappers=[3]; has 3, which is no wrapper"),
        ("frame_stack", "env.wrappers='frame_stack'; must be a list"),
    ],
)  # fmt: skip
def test_what_is_no_wrapper_is_told(wrappers, said):
    (fault,) = check_env("CartPole-v1", wrappers=wrappers)
    assert said in fault


def test_one_of_a_batch_is_not_below_one_of_an_environment():
    words = ["clip_reward", "gymnasium.wrappers:TimeAwareObservation"]
    (fault,) = check_env("CartPole-v1", "gymnasium", wrappers=words)
    assert "comes behind clip_reward, which wraps the batch" in fault


def test_one_that_raises_is_named_and_the_environments_are_closed():
    with pytest.raises(EnvRaised, match="in bodies_wrappers:Raises: its wrapper raised KeyError"):
        make_env("CartPole-v1", 2, wrappers=["bodies_wrappers:Raises"])
    for word, said in (
        ({"keep_numbers": {"places": [4]}}, "must be one or more of 0 to 3"),
        ({"frame_stack": {"count": 1}}, "must be 2 or more of a Box"),
        ({"clip_reward": {"low": 1.0, "high": 0.0}}, "low must be less"),
    ):
        with pytest.raises(EnvSpecError, match=said):
            make_env("CartPole-v1", 2, wrappers=[word])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"its step raised KeyError: 'no such thing' \(.*bodies_wrappers.py, line"),
        ("shows less", r"step gave observations of shape \[2, 2\]; must be of shape \[2, 4\]"),
    ],
)
def test_one_that_fails_in_the_middle_is_named(how, said):
    env = make_env("CartPole-v1", 2, wrappers=[{"bodies_wrappers:FailsLate": {"how": how}}])
    with contextlib.closing(env):
        env.reset(0)
        env.step(torch.zeros(2))
        env.step(torch.zeros(2))
        with pytest.raises(EnvError, match=f"CartPole-v1 in bodies_wrappers:FailsLate: {said}"):
            env.step(torch.zeros(2))


@pytest.mark.parametrize("entry", [3, {}, {"a": {}, "b": {}}, {"frame_stack": 4}])
def test_an_entry_is_a_name_or_has_one(entry):
    with pytest.raises(ConfigError, match="is no wrapper"):
        load_config({"version": 1, "env": {"id": "CartPole-v1", "wrappers": [entry]}})
