"""Hindsight: goals of steps are replaced by later ones of their episode, and their rewards too."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from gmi_drl.placement import Topology, check, load_config
from gmi_drl.roles.envs import EnvError, EnvSpecError
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.hindsight import Hindsight

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "her"
GOAL = 2  # numbers of a goal; an observation is what was achieved, the goal wished for, one more
ACHIEVED, DESIRED = slice(0, GOAL), slice(GOAL, 2 * GOAL)
SPACE = Dict(
    {
        "achieved_goal": Box(-np.inf, np.inf, (GOAL,)),
        "desired_goal": Box(-np.inf, np.inf, (GOAL,)),
        "observation": Box(-np.inf, np.inf, (1,)),
    }
)


def distance(achieved, desired):
    return -np.abs(achieved - desired).sum(-1)


def env_of(space=SPACE, reward=distance):
    env = SimpleNamespace(structured_space=space, observation_space=space)
    if reward is not None:
        env.compute_reward = reward
    return env


def batch_of(steps, num_env, ended):
    """A batch in which everything that was achieved is a number of its own."""
    total = steps * num_env * GOAL
    raw = torch.zeros(steps, num_env, 2 * GOAL + 1)
    following = raw.clone()
    following[..., ACHIEVED] = torch.arange(total).float().view(steps, num_env, GOAL)
    raw[..., DESIRED] = following[..., DESIRED] = -1.0
    return Batch(
        {
            "raw_observation": raw, "next_observation": following, "done": ended.float(),
            "reward": torch.full((steps, num_env), 7.0),
        }
    )  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_goals_are_those_of_later_steps_of_the_episode_and_rewards_follow(share):
    steps, num_env = 9, 40
    ended = torch.rand(steps, num_env, generator=torch.Generator().manual_seed(1)) < 0.25
    batch = batch_of(steps, num_env, ended)
    achieved = batch["next_observation"][..., ACHIEVED].clone()
    hindsight = Hindsight(env_of(), share, 0.5, torch.Generator().manual_seed(2))
    hindsight.relabel(batch)
    changed, when = 0, set()
    for t in range(steps):
        for n in range(num_env):
            last = next((s for s in range(t, steps) if ended[s, n]), steps - 1)
            goal = batch["raw_observation"][t, n, DESIRED]
            if bool((goal == -1.0).all()):
                assert float(batch["reward"][t, n]) == 7.0
                continue
            (at,) = [s for s in range(steps) if torch.equal(achieved[s, n], goal)]
            assert t <= at <= last
            when.add((at - t, last - t))
            wanted = 0.5 * distance(achieved[t, n].numpy(), goal.numpy())
            assert float(batch["reward"][t, n]) == pytest.approx(wanted)
            changed += 1
    assert changed / (steps * num_env) == pytest.approx(share, abs=0.08)
    if share == 1.0:  # the step itself, the last one, and what lies between
        assert {(0, 3), (1, 3), (2, 3), (3, 3)} <= when


def test_every_later_step_is_as_likely():
    batch = batch_of(4, 20_000, torch.zeros(4, 20_000, dtype=torch.bool))
    achieved = batch["next_observation"][..., ACHIEVED].clone()
    Hindsight(env_of(), 1.0, 1.0, torch.Generator().manual_seed(3)).relabel(batch)
    goals = batch["raw_observation"][0, :, DESIRED]
    shares = [(goals == achieved[at]).all(-1).float().mean() for at in range(4)]
    torch.testing.assert_close(torch.stack(shares), torch.full((4,), 0.25), rtol=0, atol=0.015)


def test_what_followed_a_step_has_the_goal_of_the_step():
    hindsight = Hindsight(env_of(), 1.0, 1.0, torch.Generator())
    drawn = Batch({"raw_observation": torch.rand(6, 5), "next_observation": torch.rand(6, 5)})
    seen, following = (drawn[name].clone() for name in ("raw_observation", "next_observation"))
    hindsight.carry(drawn)
    assert torch.equal(drawn["raw_observation"], seen)
    following[:, DESIRED] = seen[:, DESIRED]
    assert torch.equal(drawn["next_observation"], following)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (env_of(Box(-1, 1, (3,))), "lacks achieved_goal and desired_goal"),
        (env_of(Dict({"achieved_goal": Box(-1, 1, (2,))})), "lacks desired_goal"),
        (
            env_of(Dict({"achieved_goal": Discrete(2), "desired_goal": Discrete(2)})),
            "Boxes or MultiBinarys of one shape",
        ),
        (env_of(reward=None), "has none that can be called"),
    ],
)
def test_environments_without_goals_are_refused(env, message):
    with pytest.raises(EnvSpecError, match=message):
        Hindsight(env, 0.8, 1.0, torch.Generator())


def test_rewards_of_no_goals_are_not_asked_for():
    def one_by_one(achieved, desired):
        return np.stack([distance(*goals) for goals in zip(achieved, desired, strict=True)])

    hindsight = Hindsight(env_of(reward=one_by_one), 0.0, 1.0, torch.Generator())
    batch = batch_of(1, 1, torch.zeros(1, 1, dtype=torch.bool))
    hindsight.relabel(batch)
    assert float(batch["reward"]) == 7.0


def test_rewards_of_another_shape_are_refused():
    hindsight = Hindsight(env_of(reward=lambda *_: 0.0), 1.0, 1.0, torch.Generator())
    with pytest.raises(EnvError, match=r"shape \[\] for 6 goals; must be \[6\]"):
        hindsight.relabel(batch_of(2, 3, torch.zeros(2, 3, dtype=torch.bool)))


def test_a_reward_that_is_not_finite_is_told_where_it_comes_from():
    env = env_of(reward=lambda achieved, desired: distance(achieved, desired) / 0.0)
    relabelled = Hindsight(env, 1.0, 1.0, torch.Generator())
    with np.errstate(all="ignore"), pytest.raises(EnvError, match="NaN or infinite"):
        relabelled.relabel(batch_of(4, 2, torch.zeros(4, 2, dtype=torch.bool)))


def test_a_row_has_one_goal_and_so_one_step():
    section = {"version": 1, "env": {"id": "CartPole-v1"}}
    section["algorithm"] = {"name": "dqn", "hindsight": 0.8, "n_step": 3}
    (fault,) = check(load_config(section), Topology.from_cores(range(2)))
    assert "algorithm.hindsight=0.8; rewards of n_step steps would be of several goals" in str(
        fault
    )


@pytest.fixture
def bit_flip():
    """The example's environment, registered for a test."""
    gymnasium.registry.pop("BitFlip-v0", None)  # of a launch in this process
    spec = importlib.util.spec_from_file_location("bit_flip", EXAMPLES / "bit_flip.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bit_flip"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bit_flip"], gymnasium.registry["BitFlip-v0"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_fifteen_bits_are_learned_by_hindsight_and_not_without(tmp_path):
    import gmi_drl

    words = ["run.total_steps=20000", "run.eval_episodes=40", f"run.folder={tmp_path}"]
    learned = gmi_drl.launch(EXAMPLES / "her_bitflip.yaml", overrides=words, view="none")
    assert learned.eval_return > -8.5  # half of the bits differ: -6.5 is the best there is
    words += ["algorithm.hindsight=0", "run.total_steps=8000"]
    without = gmi_drl.launch(EXAMPLES / "her_bitflip.yaml", overrides=words, view="none")
    assert without.eval_return < -13.0


def test_the_examples_environment_is_made_by_the_adapter_and_says_what_goals_are_worth(bit_flip):
    from gmi_drl.roles.envs import make_env

    env = make_env("BitFlip-v0", 3, options={"n": 4})
    try:
        first = env.reset(seed=1)
        assert first.shape == (3, 12)
        assert torch.equal(first[:, :4], first[:, 8:])  # achieved is what is seen
        bits = np.eye(4)[:3]
        assert env.compute_reward(bits, bits).tolist() == [0.0] * 3
        assert env.compute_reward(bits, np.zeros_like(bits)).tolist() == [-1.0] * 3
        assert not hasattr(env, "something_else")
    finally:
        env.close()


@pytest.mark.usefixtures("bit_flip")
def test_what_goals_are_worth_is_clipped_as_rewards_are():
    from gmi_drl.roles.envs import make_env

    wrappers = [{"clip_reward": {"low": -0.25, "high": 1.0}}]
    env = make_env("BitFlip-v0", 3, options={"n": 4}, wrappers=wrappers)
    try:
        env.reset(seed=1)
        paid = env.step(torch.zeros(3)).reward
        bits = np.eye(4)[:3]
        assert paid.tolist() == [-0.25] * 3
        assert env.compute_reward(bits, np.zeros_like(bits)).tolist() == [-0.25] * 3
        assert env.compute_reward(bits, bits).tolist() == [0.0] * 3
        assert not hasattr(env, "something_else")
    finally:
        env.close()
