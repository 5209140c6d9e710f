"""Environments of Gymnasium's are held to their spaces, at every reset and step."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from gmi_drl.roles.envs import EnvError, make_env
from gmi_drl.roles.envs.watched import WatchedEnv, difference

SPACE = Dict({"place": Box(-1, 1, (2,)), "pair": Tuple((Discrete(3), Box(0, 9, (1,), np.int64)))})


def seen(**changes):
    return {
        "place": np.zeros(2, np.float32), "pair": (1, np.zeros(1, np.int64)),
    } | changes  # fmt: skip


class Scripted(gymnasium.Env):
    """Gives what `given` says for the n-th reset or step, counted together."""

    action_space = Discrete(2)
    observation_space = SPACE

    def __init__(self, given=None):
        self._given, self._number = given or {}, -1

    def _next(self):
        self._number += 1
        found = self._given.get(self._number, {})
        if isinstance(found, Exception):
            raise found
        return found

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._next().get("observation", seen()), {}

    def step(self, action):
        found = self._next()
        ended, reward = found.get("ended", False), found.get("reward", 1.0)
        return found.get("observation", seen()), reward, ended, False, {}


def watched(**given):
    return WatchedEnv(Scripted({int(key[1:]): value for key, value in given.items()}), "Mine", 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"observation": seen(place=np.zeros(3, np.float32))}, "shape [3]; must be of shape [2]"),
        ({"observation": {"place": np.zeros(2)}}, "without 'pair'; must be one with 'pair'"),
        ({"observation": seen(pair=(1,))}, "without 1"),
        ({"observation": seen(place=np.zeros(2, np.complex64))}, "complex64; must be of float32"),
        ({"observation": seen(place=[[0.0], [1.0, 2.0]])}, "must be of Box"),
        ({"observation": 5}, "must be one with 'pair', 'place'"),
        ({"reward": [1.0, 2.0]}, "reward [1.0, 2.0]; must be one number"),
        ({"reward": "much"}, "reward 'much'; must be one number"),
        ({"reward": None}, "reward None; must be one number"),
        ({"ended": [True]}, "terminated [True]; must be one number"),
        (OSError("no wind"), "its step raised OSError: no wind"),
    ],
)  # fmt: skip
def test_what_breaks_the_spaces_is_told_with_environment_seed_episode_and_step(given, said):
    env = watched(_0={}, _1={}, _2=given)
    env.reset(seed=7)
    env.step(0)
    with pytest.raises(EnvError) as told:
        env.step(0)
    text = str(told.value)
    assert "env Mine: environment 3 (seed 7), episode 1, step 2: its step" in text
    assert said in text


def test_a_shape_that_changes_at_a_later_reset_is_told():
    env = watched(_2={"observation": seen(place=np.zeros(4, np.float32))})
    env.reset(seed=7)
    env.step(0)
    with pytest.raises(
        EnvError, match=r"\(seed 7\), episode 2: its reset gave observation\['place'\]"
    ):
        env.reset()


def test_what_fits_is_passed_on_as_it_is():
    reward = np.float32(2.5)
    env = watched(_1={"reward": reward, "ended": np.bool_(True)})
    assert env.reset(seed=1)[0]["pair"][0] == 1
    observation, paid, terminated, truncated, _ = env.step(1)
    assert observation["place"].shape == (2,)
    assert (paid, terminated, truncated) == (2.5, True, False)
    assert (type(paid), type(terminated)) == (float, bool)


@pytest.mark.parametrize(
    ("space", "given", "fits"),
    [
        (Box(-1, 1, (2,)), [0.0, 1.0], True),
        (Box(-1, 1, (2,)), np.zeros((2,), np.float64), True),
        (Box(0, 255, (2,), np.uint8), np.zeros(2, np.float32), False),
        (Discrete(3), np.int64(1), True),
        (Discrete(3), np.array([1]), False),
        (Discrete(3), 1.5, False),
    ],
)
def test_what_a_batch_takes_fits(space, given, fits):
    assert (difference(space, given) is None) == fits


def test_a_batch_tells_which_of_its_environments_it_was():
    gymnasium.register("Scripted-v0", entry_point=Scripted)
    try:
        env = make_env("Scripted-v0", 2, options={"given": {2: {"reward": [1.0, 0.0]}}}, seed=40)
        env.reset()
        env.step(torch.zeros(2, dtype=torch.int64))
        with pytest.raises(EnvError, match=r"environment 0 \(seed 40\), episode 1, step 2"):
            env.step(torch.zeros(2, dtype=torch.int64))
        env.close()
    finally:
        del gymnasium.registry["Scripted-v0"]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_choice_out_of_range_is_told_with_environment_seed_and_step(vectorization):
    env = make_env(
        "bodies_gym:GmiChoice-v0", 2, seed=40, options={"vectorization": vectorization}
    )  # fmt: skip
    try:
        env.reset()
        env.step(torch.zeros(2, dtype=torch.int64))
        with pytest.raises(EnvError) as told:
            env.step(torch.zeros(2, dtype=torch.int64))
        assert "environment 1 (seed 41), episode 1, step 2 gave an observation 7;" in str(
            told.value
        )
    finally:
        env.close()
