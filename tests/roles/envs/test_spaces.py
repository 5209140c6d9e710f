"""Which spaces a policy is trained on: one verdict everywhere, and remedies that work."""

import gymnasium
import pytest
import torch
from gymnasium.wrappers import FlattenObservation

import bodies_spaces
from batches import collector_of
from gmi_drl.launcher.plan import user_code
from gmi_drl.placement import PPOConfig, load_config
from gmi_drl.roles.envs import EnvError, EnvRaised, make_env
from gmi_drl.roles.envs.spaces import action_fault, observation_fault
from gmi_drl.roles.policies.actor_critic import ActorCritic, distribution_for, observation_width
from gmi_drl.roles.samples.batch import env_action

OBSERVATIONS = [(f"Shows{kind}", *its) for kind, its in bodies_spaces.OBSERVATIONS.items()]
ACTIONS = [(f"Takes{kind}", *its) for kind, its in bodies_spaces.ACTIONS.items()]


def checked(name):
    """What `gmi-drl check` finds wrong with an environment, without its child process."""
    config = load_config({"version": 1, "env": {"id": f"bodies_spaces:{name}-v0"}})
    return user_code.try_here(config.model_dump_json(), "")["faults"]


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
        ("ResetShape", "reset gave an observation of shape [5], and the observation space has [2]"),
        ("StepShape", "step gave an observation of shape [5], and the observation space has [2]"),
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


def test_actions_stay_within_the_bounds_that_are_finite():
    to_env = env_action(bodies_spaces.HALF_OPEN, torch.device("cpu"))
    action = torch.tensor([[-3.0, -3.0], [7.0, 7.0]])
    assert to_env(action).tolist() == [[0.0, -1.0], [7.0, 1.0]]
