"""Learning from segments: k trainers are one, what is published acts alike, state is complete."""

import copy

import numpy as np
import pytest
import torch

import bodies_roles
from batches import collector_of, learner_of
from gmi_drl.comm import solo_group
from gmi_drl.placement import IMPALAConfig
from gmi_drl.roles.algorithms.impala import impala_loss
from gmi_drl.roles.errors import DivergedError
from gmi_drl.roles.optimizers.gradient_step import check_finite
from gmi_drl.roles.policies.flat_parameters import FlatParameters, PublishedPolicy
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.codec import received
from ranks import run_ranks
from toy_env import ToyEnv

ENVS, OBS = bodies_roles.ENVS, bodies_roles.OBS


def a_learner(loss=None, group=None, **changes):
    settings = IMPALAConfig(network=[16, 8], **changes)
    policy, normalizers = bodies_roles.make_policy(), Normalizers.of(settings, OBS)
    learner = learner_of(policy, settings, normalizers=normalizers, loss=loss)
    learner.connect(group or solo_group())
    return learner, policy, normalizers


def whole():
    return bodies_roles.segments_of(0, 1)


@pytest.mark.slow
def test_trainers_with_shares_take_the_steps_of_one_with_all_of_it():
    alone = bodies_roles.async_updates(solo_group(), "impala")
    for trainer in run_ranks(bodies_roles.async_updates, 3, "impala"):
        for part, value in trainer.items():
            assert np.allclose(value, alone[part], rtol=1e-4, atol=1e-5), part


@pytest.mark.slow
def test_all_trainers_hold_the_same_bits_whatever_minibatches_they_draw():
    first, second = run_ranks(bodies_roles.async_updates, 2, "impala", 3)
    for part, value in first.items():
        assert np.array_equal(value, second[part]), part


def test_minibatches_are_whole_segments_each_used_once_an_epoch():
    seen = []

    def loss(policy, batch, *rest):
        seen.append(batch["reward"].clone())
        return impala_loss(policy, batch, *rest)

    learner, _, _ = a_learner(loss, minibatches=4, epochs=2)
    learner.update(whole())
    columns = sorted(map(tuple, whole()["reward"].T.tolist()))
    for epoch in (seen[:4], seen[4:]):
        assert sorted(map(tuple, torch.cat(epoch, 1).T.tolist())) == columns
    assert not torch.equal(torch.cat(seen[:4], 1), torch.cat(seen[4:], 1))


def test_targets_are_made_anew_with_the_present_policy_for_each_minibatch():
    targets = []

    def loss(*args):
        targets.append(impala_loss(*args))
        return targets[-1]

    learner, _, _ = a_learner(loss, epochs=2, learning_rate=0.01)
    learner.update(whole())
    assert not torch.equal(targets[0].extras["targets"], targets[1].extras["targets"])


def test_what_is_published_acts_and_values_as_the_learner_does():
    learner, policy, normalizers = a_learner()
    learner.update(whole())
    publisher = PublishedPolicy(learner.parameters, normalizers)
    vector = torch.empty(publisher.numel)
    publisher.write(vector)

    _, other, its = a_learner()
    agent = PublishedPolicy(FlatParameters(other), its)
    agent.load(vector)
    seen = whole()["raw_observation"]
    for normalizer, its_own in (
        (normalizers.observations, its.observations), (normalizers.values, its.values),
    ):  # fmt: skip
        assert torch.equal(normalizer.mean, its_own.mean)
        assert torch.equal(normalizer.inv_std, its_own.inv_std)
    ours = policy(normalizers.observations.normalize(seen))
    assert torch.equal(other(its.observations.normalize(seen)), ours)
    with pytest.raises(ValueError, match="this policy has"):
        agent.load(vector[:-1])


def test_values_stay_what_they_were_when_their_scale_is_learned():
    learner, policy, normalizers = a_learner(learning_rate=1e-12)
    seen = torch.randn(9, OBS)
    before = normalizers.values.denormalize(policy(seen)[:, -1])
    learner.update(whole())
    assert normalizers.values.inv_std != 1.0
    after = normalizers.values.denormalize(policy(seen)[:, -1])
    assert torch.allclose(after, before, atol=1e-5)


def test_one_that_takes_over_the_state_goes_on_with_the_same_bits():
    first, _, _ = a_learner(learning_rate=1e-3)
    first.update(whole())
    state = copy.deepcopy(first.state_dict())
    second, _, _ = a_learner(learning_rate=1e-3)
    second.load_state_dict(state)
    assert second.updates == 1
    for learner in (first, second):
        learner.update(whole())
    assert torch.equal(first.parameters.data, second.parameters.data)
    assert first.updates == second.updates == 2


def test_a_loss_that_is_not_finite_stops_training():
    learner, _, _ = a_learner()
    segments = whole()
    segments["reward"][3, 2] = float("nan")
    learner.update(segments)
    assert "value_coef" not in str(DivergedError({"policy_loss": float("nan")}))
    with pytest.raises(DivergedError, match=r"value_loss nan.*, value_coef or reward_scale"):
        check_finite(learner.stats())


def test_minibatches_that_do_not_divide_the_environments_are_refused():
    learner, _, _ = a_learner(minibatches=5)
    with pytest.raises(ValueError, match="12 environments in a batch: 5 minibatches"):
        learner.update(whole())


def test_the_learning_rate_falls_linearly_only_if_it_shall():
    linear, _, _ = a_learner(schedule="linear", learning_rate=0.1)
    constant, _, _ = a_learner(schedule="constant", learning_rate=0.1)
    for progress, rate in ((0.0, 0.1), (0.75, 0.025), (1.2, 0.0)):
        linear.anneal(progress)
        constant.anneal(progress)
        assert linear.descent.learning_rate == pytest.approx(rate)
        assert constant.descent.learning_rate == 0.1


def test_a_collector_gives_segments_that_are_on_policy():
    settings = IMPALAConfig(network=[8])
    env = ToyEnv(3, limit=4)
    policy = bodies_roles.ActorCritic(2, bodies_roles.Normal(1), [8])
    normalizers = Normalizers.of(settings, 2)
    learner = learner_of(policy, settings, normalizers=normalizers)
    learner.connect(solo_group())
    collector = collector_of(
        env, policy, settings, normalizers, horizon=6, reward_scale=0.1,
        generator=torch.Generator(),
    )  # fmt: skip
    for iteration in range(3):
        collector.collect(iteration)
        learner.update(collector.batch)
        stats = learner.stats()
        assert stats["kl"] == pytest.approx(0.0, abs=1e-5)
        assert stats["rho"] == pytest.approx(1.0, abs=1e-5)
    assert collector.batch["reward"].shape == (6, 3)
    assert torch.equal(collector.batch.bootstrap["observation"], collector.observation)


def test_segments_from_several_agents_lie_side_by_side():
    one, two = bodies_roles.segments_of(0, 2), bodies_roles.segments_of(1, 2)
    names = ("action", "log_prob", "reward", "done")
    columns = {name: torch.cat([s[name] for s in (one, two)], 1) for name in names}
    columns["observation"] = torch.cat([s["raw_observation"] for s in (one, two)], 1)
    last = torch.stack([one.bootstrap["observation"], two.bootstrap["observation"]])
    joined = received(columns, {"last_observation": last}, names)
    for name, column in whole().columns.items():
        assert torch.equal(joined[name], column)
    assert torch.equal(joined.bootstrap["observation"], whole().bootstrap["observation"])
