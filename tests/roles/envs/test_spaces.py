"""Which spaces a policy is trained on: one verdict everywhere, and remedies that work."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatten
from gymnasium.wrappers import FlattenObservation

import bodies_spaces
from batches import collector_of
from gmi_drl.launcher.plan import user_code
from gmi_drl.placement import PPOConfig, load_config
from gmi_drl.roles.envs import EnvError, EnvRaised, EnvSpecError, make_env
from gmi_drl.roles.envs.flatten import unflattened_action
from gmi_drl.roles.envs.spaces import action_fault, observation_fault
from gmi_drl.roles.policies import structured_space, unflatten
from gmi_drl.roles.policies.actor_critic import ActorCritic, distribution_for, observation_width
from gmi_drl.roles.samples.batch import env_action

OBSERVATIONS = [(f"Shows{kind}", *its) for kind, its in bodies_spaces.OBSERVATIONS.items()]
ACTIONS = [(f"Takes{kind}", *its) for kind, its in bodies_spaces.ACTIONS.items()]


def checked(name):
    """What `gmi-drl check` finds wrong with an environment, without its child process."""
    config = load_config({"version": 1, "env": {"id": f"bodies_spaces:{name}-v0"}})
    return user_code.try_here(config.model_dump(mode="json"), "")["faults"]


def collected(name):
    """A horizon of it, as a GMI collects one; returns nothing."""
    env = make_env(f"bodies_spaces:{name}-v0", 2)
    distribution = distribution_for(env.action_space)
    policy = ActorCritic(observation_width(env.observation_space), distribution, [8])
    collector = collector_of(env, policy, PPOConfig(), horizon=8, generator=torch.Generator())
    collector.collect(0)
    env.close()


@pytest.mark.parametrize(("name", "fits", "space"), [*OBSERVATIONS, *ACTIONS])
def test_check_passes_what_a_gmi_can_collect_and_nothing_else(name, fits, space):
    faults = checked(name)
    if fits:
        assert not faults
        collected(name)
        return
    (fault,) = faults
    with pytest.raises(EnvError) as refused:
        collected(name)
    assert str(refused.value) in fault  # and in the same words


@pytest.mark.parametrize(("name", "fits", "space"), [*OBSERVATIONS, *ACTIONS])
def test_a_fault_names_a_wrapper_that_there_is(name, fits, space):
    fault = (observation_fault if name.startswith("Shows") else action_fault)(space)
    assert bool(fault) != fits
    if not fits:
        _, _, wrapper = fault.partition("gymnasium.wrappers.")
        assert hasattr(gymnasium.wrappers, wrapper.split(",")[0])
        assert "one-dimensional Box" in fault


@pytest.mark.parametrize(("name", "fits", "space"), OBSERVATIONS)
def test_the_wrapper_that_flattens_is_named_where_it_helps(name, fits, space):
    env = bodies_spaces.Sampled()
    env.observation_space = space
    named = "FlattenObservation" in observation_fault(space)
    try:
        helps = not observation_fault(FlattenObservation(env).observation_space)
    except ValueError:  # an empty Dict
        helps = False
    assert named == (helps and not fits)
    if named:
        observation, _ = FlattenObservation(env).reset(seed=0)
        assert f"a Box of {len(observation)} number" in observation_fault(space)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("InConstructor", "its constructor raised RuntimeError: no licence file ("),
        ("InReset", "its reset raised RuntimeError: no licence file ("),
        ("InStep", "its step raised RuntimeError: no licence file ("),
        ("ResetShape", "its reset gave an observation of shape [5]; must be of shape [2]"),
        ("StepShape", "its step gave an observation of shape [5]; must be of shape [2]"),
        ("FourParts", "step returns observation, reward, terminated, truncated and info"),
        ("NanReset", "reset gave an observation that is not finite"),
        ("NanStep", "step gave an observation that is not finite"),
        ("NanReward", "step gave a reward that is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_check_tells_what_an_environment_does_wrong(name, said):
    (fault,) = checked(f"Broken{name}")
    assert f"env bodies_spaces:Broken{name}-v0: " in fault
    assert said in fault


def test_what_an_environment_raised_names_the_line_and_keeps_the_error():
    with pytest.raises(EnvRaised, match=r"bodies_spaces\.py, line \d+\)\. Look there") as caught:
        make_env("bodies_spaces:BrokenInConstructor-v0", 1)
    assert isinstance(caught.value.__cause__, RuntimeError)
    env = make_env("bodies_spaces:RewardRaises-v0", 1)
    with pytest.raises(EnvRaised, match=r"its compute_reward raised RuntimeError: no licence file"):
        env.compute_reward(np.zeros(1), np.zeros(1))


@pytest.mark.filterwarnings("ignore:.*RGB-array rendering")  # Gymnasium's own, and no reason
def test_what_draws_no_picture_is_told():
    drawn = {"options": {"render_mode": "rgb_array"}}
    env = make_env("bodies_spaces:DrawsNothing-v0", 1, **drawn)
    env.reset()
    with pytest.raises(EnvSpecError, match=r"its render gave None; must be a picture, an array \["):
        env.render()
    env = make_env("bodies_spaces:DrawRaises-v0", 1, **drawn)
    env.reset()
    with pytest.raises(EnvRaised, match=r"its render raised RuntimeError: no licence .*Look"):
        env.render()


@pytest.mark.parametrize(
    ("name", "space"), [(name, space) for name, fits, space in OBSERVATIONS if fits]
)
def test_observations_become_what_gymnasium_flattens_them_to(name, space):
    env = make_env(f"bodies_spaces:{name}-v0", 3)
    flat = env.reset(seed=5)
    for i in range(3):
        space.seed(5 + i)
        wanted = flatten(space, space.sample())
        assert flat[i].tolist() == pytest.approx(wanted.tolist(), rel=1e-6)
    assert env.observation_space.shape == (flat.shape[1],)
    assert (flat.dtype == torch.uint8) == (name in ("ShowsBytes", "ShowsImage"))
    assert torch.cat([flat, flat > 0], 1).shape == (3, 2 * flat.shape[1])  # torch reckons with it
    assert env.observation_space.contains(flat[0].numpy().astype(env.observation_space.dtype))
    env.close()


def test_the_observation_that_an_episode_ended_with_is_flattened_too():
    env = make_env("bodies_spaces:ShowsNested-v0", 2)
    env.reset(seed=0)
    action = torch.zeros(2, dtype=torch.int64)
    for _ in range(4):
        assert not env.step(action).terminated.any()
    step = env.step(action)
    assert step.terminated.all()
    assert step.final_observation.shape == (2, 4)
    assert (step.final_observation != step.observation).any(1).all()
    assert (step.final_observation.abs() <= 1).all()
    env.close()


def test_a_network_may_have_the_structure_back():
    env = make_env("bodies_spaces:ShowsShifted-v0", 2)
    flat, space = env.reset(seed=1), structured_space(env)
    parts = unflatten(flat, space)
    assert space == bodies_spaces.OBSERVATIONS["Shifted"][1]
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"a": (2, 3), "b": (2, 11)}
    assert parts["a"].sum(1).tolist() == [1.0, 1.0]
    assert parts["b"].sum(1).tolist() == [4.0, 4.0]
    env.close()
    image = bodies_spaces.OBSERVATIONS["Image"][1]
    assert unflatten(torch.zeros(5, 192), image).shape == (5, 8, 8, 3)


def test_actions_of_several_parts_are_taken_apart():
    space = bodies_spaces.ACTIONS["Mixed"][1]
    rows = env_action(space, torch.device("cpu"))(
        torch.tensor([[1.0, -1.0, 0.5, 0.0, 1.0, 1.0], [0.0, 5.0, 0.0, 1.0, 0.0, 0.0]])
    )
    choice, box, bits = unflattened_action(space, rows.numpy())
    assert choice.tolist() == [3, 2]  # from its start
    assert box.tolist() == [[0.0, 3.0], [4.0, 2.0]]  # from [-1, 1] to its bounds
    assert bits.tolist() == [[0, 1, 1], [1, 0, 0]]
    for i in range(2):
        assert space.contains((choice[i], box[i].astype("f4"), bits[i]))


def test_actions_stay_within_the_bounds_that_are_finite():
    to_env = env_action(bodies_spaces.HALF_OPEN, torch.device("cpu"))
    action = torch.tensor([[-3.0, -3.0], [7.0, 7.0]])
    assert to_env(action).tolist() == [[0.0, -1.0], [7.0, 1.0]]


def test_whole_actions_are_the_nearest():
    space = spaces.Box(-2, 2, (1,), np.int32)
    rows = env_action(space, torch.device("cpu"))(torch.linspace(-1.0, 1.0, 4001)[:, None])
    chosen, counts = np.unique(unflattened_action(space, rows.numpy()), return_counts=True)
    assert chosen.tolist() == [-2, -1, 0, 1, 2]
    assert counts / counts.sum() == pytest.approx([1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8], abs=1e-3)


def test_bounds_of_the_largest_numbers_are_none():
    largest = np.finfo(np.float32).max
    to_env = env_action(spaces.Box(-largest, largest, (2,)), torch.device("cpu"))
    action = torch.tensor([[-3.0, 7.0]])
    assert to_env(action).tolist() == [[-3.0, 7.0]]
