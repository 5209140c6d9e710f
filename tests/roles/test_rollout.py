"""Collecting experience: what is stored, what is paid at a time limit, what stops a run."""

import copy
import pickle

import pytest
import torch
from gymnasium import spaces

from batches import collector_of
from gmi_drl.placement import PPOConfig
from gmi_drl.roles.errors import NotFiniteError
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer, batch_moments
from gmi_drl.roles.samples.batch import RowLayout, env_action
from gmi_drl.roles.samples.episodes import Seen
from toy_env import ToyEnv


def collector(env, **changes):
    policy = ActorCritic(2, Normal(1), [8], generator=torch.Generator().manual_seed(0))
    how = {"horizon": 6, "generator": torch.Generator().manual_seed(0)} | changes
    normalizers = Normalizers(how.pop("normalizer", None), how.pop("value_normalizer", None))
    return collector_of(env, policy, PPOConfig(), normalizers, **how), policy


def value_of(policy, i, count):
    with torch.no_grad():
        return policy(torch.tensor([[float(i), float(count)]]))[0, -1].item()


def test_rows_hold_what_the_policy_saw_did_and_expected():
    env = ToyEnv(3, limit=100)
    c, policy = collector(env)
    c.collect(0)
    r = c.batch
    assert r["observation"][4, 2].tolist() == [2.0, 4.0]
    head = policy(r["observation"].flatten(0, 1))
    assert torch.allclose(r["parameters"].flatten(0, 1), head[:, :-1], atol=1e-6)
    assert torch.allclose(r["value"].flatten(), head[:, -1], atol=1e-6)
    log_prob = torch.distributions.Normal(r["parameters"], 1.0).log_prob(r["action"]).sum(-1)
    assert torch.allclose(r["log_prob"], log_prob, atol=1e-6)
    assert torch.equal(torch.stack(env.actions), r["action"].clamp(-1, 1))
    assert r.bootstrap["value"][1].item() == pytest.approx(value_of(policy, 1, 6), abs=1e-6)


def test_a_cut_episode_is_paid_the_value_of_the_state_it_was_cut_in():
    c, policy = collector(ToyEnv(2, limit=3), reward_scale=0.1)
    c.collect(0)
    wanted = 0.1 * 3 + 0.9 * value_of(policy, 1, 3)  # of the final observation, count 3
    assert c.batch["reward"][2, 1].item() == pytest.approx(wanted, abs=1e-6)
    assert c.batch["reward"][1, 1].item() == pytest.approx(0.1 * 2)
    assert c.batch["done"][:, 0].tolist() == [0, 0, 1, 0, 0, 1]


def test_an_episode_that_ended_is_paid_nothing_more():
    c, _ = collector(ToyEnv(2, limit=3, terminates=True))
    c.collect(0)
    assert c.batch["reward"][2, 1].item() == 3.0


def test_bootstrapping_can_be_turned_off():
    c, _ = collector(ToyEnv(2, limit=3), bootstrap_time_limit=False)
    c.collect(0)
    assert c.batch["reward"][2, 1].item() == 3.0


def test_rollouts_follow_one_another_without_a_gap():
    c, _ = collector(ToyEnv(1, limit=100), horizon=4)
    c.collect(0)
    c.collect(1)
    assert c.batch["raw_observation"][:, 0, 1].tolist() == [4, 5, 6, 7]


def test_episodes_report_unscaled_undiscounted_returns():
    c, _ = collector(ToyEnv(2, limit=3), reward_scale=0.01)
    c.collect(0)
    assert c.read()[1] == Seen(4, 24.0, 12.0)
    assert c.episodes.take() == Seen(0, 0.0, 0.0)


def test_observations_and_values_are_in_the_normalizers_units():
    normalizer, value = RunningNormalizer(2, clip=10.0), RunningNormalizer(1, clip=10.0)
    some = torch.randn(50, 2) * 4 + 3
    normalizer.update(batch_moments(some, torch.zeros(5, dtype=torch.float64)))
    value.update(batch_moments(some[:, :1], torch.zeros(3, dtype=torch.float64)))
    c, policy = collector(ToyEnv(2, limit=100), normalizer=normalizer, value_normalizer=value)
    c.collect(0)
    seen = normalizer.normalize(c.batch["raw_observation"].flatten(0, 1))
    assert torch.allclose(c.batch["observation"].flatten(0, 1), seen)
    raw = policy(seen)[:, -1]
    assert torch.allclose(c.batch["value"].flatten(), value.denormalize(raw), atol=1e-5)


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_nan_names_the_environment_and_the_step(what):
    c, _ = collector(ToyEnv(3, limit=100, nan_at=(3, 1), nan_in=what))
    with pytest.raises(NotFiniteError, match=f"{what} of environment 1 .* iteration 8") as error:
        c.collect(8)
    assert (error.value.env_index, error.value.step) == (1, 3)


def test_nan_in_the_last_observation_of_a_rollout_is_not_trained_on():
    c, _ = collector(ToyEnv(3, limit=100, nan_at=(5, 2), nan_in="observation"))
    with pytest.raises(NotFiniteError) as error:
        c.collect(0)
    assert (error.value.what, error.value.env_index, error.value.step) == ("observation", 2, 5)


def test_nan_in_the_observation_an_episode_was_cut_at_is_named():
    c, _ = collector(ToyEnv(3, limit=3, nan_at=(2, 1), nan_in="final"))
    with pytest.raises(NotFiniteError, match=r"final observation of environment 1 .* step 2"):
        c.collect(0)


def test_actions_reach_any_box():
    space = spaces.Box(torch.tensor([0.0, -2.0]).numpy(), torch.tensor([1.0, 2.0]).numpy())
    actions = env_action(space, torch.device("cpu"))(torch.tensor([[-1.0, 0.5], [9.0, -9.0]]))
    assert torch.allclose(actions, torch.tensor([[0.0, 1.0], [1.0, -2.0]]))


def test_discrete_actions_count_from_0_wherever_the_space_starts():
    actions = env_action(spaces.Discrete(3, start=5), torch.device("cpu"))(torch.tensor([[2.0]]))
    assert actions.tolist() == [2]  # the environment's adapter adds 5
    assert actions.dtype == torch.int64


def test_the_places_of_a_row_can_be_copied_and_sent():
    layout = RowLayout({"observation": 3, "value": 0}, {"both": ("observation", "value")})
    for again in (copy.copy(layout), copy.deepcopy(layout), pickle.loads(pickle.dumps(layout))):
        assert (again.both, again.value, again.width) == (slice(0, 4), 3, 8)
    with pytest.raises(AttributeError, match="rows have no 'ret'; they have observation, value"):
        _ = layout.ret
