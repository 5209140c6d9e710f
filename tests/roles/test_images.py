"""Observations of bytes: kept once, stacks as their frames, and floats in minibatches alone."""

import numpy as np
import pytest
import torch

from batches import algorithm_of, batch_for, collector_of, learner_of
from gmi_drl.comm import solo_group
from gmi_drl.placement import IMPALAConfig, PPOConfig
from gmi_drl.placement.config.algorithms import A2CConfig, DQNConfig
from gmi_drl.roles.envs.batch_wrappers import EnvWrapper
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.errors import NotFiniteError
from gmi_drl.roles.policies.networks import actor_critic_of
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.codec import BatchCodec, complete, received, sent_columns
from gmi_drl.roles.samples.frames import Observed
from gmi_drl.roles.samples.minibatch import Minibatch, joined
from picture_env import PictureEnv, stacked

IMAGES = {"normalize_observation": False, "normalize_value": False}
PPO = PPOConfig(network=[8], minibatches=3, epochs=2, **IMAGES)
NO_NORMALIZERS = Normalizers(None, None)


def cases(count, seed=0):
    """Random shapes of pictures, frames of a stack, steps and environments."""
    draw, made = np.random.default_rng(seed), []
    for case in range(count):
        shape = tuple(int(n) for n in draw.integers(1, 5, draw.integers(1, 4)))
        k, steps, num_env = (int(draw.integers(1, most)) for most in (6, 9, 5))
        name = f"{shape}x{k}-{steps}x{num_env}"
        made.append(pytest.param(shape, k, steps, num_env, case, id=name))
    return made


def collecting(env, settings, steps, seed=0, **how):
    network = actor_critic_of(settings, env, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    return collector_of(
        env, network, settings, NO_NORMALIZERS, horizon=steps, generator=generator, **how
    )


@pytest.mark.parametrize(("shape", "k", "steps", "num_env", "seed"), cases(12))
@pytest.mark.parametrize("static", [False, True])
def test_minibatches_have_what_the_environments_showed(shape, k, steps, num_env, seed, static):
    """Over several horizons, with episodes that end inside and between them."""
    env = stacked(num_env, shape, k, seed)
    collector = collecting(env, PPO, steps, static=static)
    batch, pieces = collector.batch, steps * num_env
    frame = int(np.prod(shape))
    assert batch.frames.kept.shape == (steps + k - 1, num_env, frame)
    assert batch.frames.kept.dtype == batch["raw_observation"].dtype == torch.uint8
    assert "observation" not in batch.columns
    generator = torch.Generator().manual_seed(seed)
    size = max(1, pieces // 2)
    minibatch = Minibatch(batch, pieces // size)
    for horizon in range(4):
        collector.collect(horizon)
        shown = torch.stack(env.shown[horizon * steps : (horizon + 1) * steps])
        assert torch.equal(joined(batch)["observation"], shown.flatten(0, 1).float())
        picked = torch.randperm(pieces, generator=generator)[: minibatch.size]
        minibatch.fill(picked)
        assert torch.equal(minibatch.batch["observation"], shown.flatten(0, 1)[picked].float())
        for name in ("action", "parameters", "value", "log_prob", "head"):
            assert torch.equal(minibatch.batch[name], batch.flat()[name][picked])
        segments = batch.segments(None, ("action", "done"))
        some = torch.randperm(num_env, generator=generator)[: max(1, num_env // 2)]
        last = collector.observation
        for mine, its in ((segments, slice(None)), (segments.environments(some), some)):
            observations = mine.with_observations()["observations"]
            assert torch.equal(observations[:-1], shown[:, its].float())
            assert torch.equal(observations[-1], last[its].float())


@pytest.mark.parametrize(("shape", "k", "steps", "num_env", "seed"), cases(6, seed=1))
def test_batches_of_agents_arrive_whole(shape, k, steps, num_env, seed):
    """By the codec of tdg_ex, and as segments that lie side by side."""
    envs = [stacked(n, shape, k, seed + n) for n in (num_env, 2)]
    collectors = [collecting(env, PPO, steps) for env in envs]
    algorithm = collectors[0]._policy
    width = envs[0].observation_space.shape[0]
    frames = collectors[0].batch.frames
    observed = Observed(width, of_bytes=True, stacking=frames.stacking)
    network, first = actor_critic_of(PPO, envs[0]), 0
    whole = batch_for(network, PPO, steps, num_env + 2, observed)
    for horizon in range(2):
        first = 0
        for env, collector in zip(envs, collectors, strict=True):
            collector.collect(horizon)
            mine = batch_for(network, PPO, steps, 1, observed)
            codec = BatchCodec(mine, env.num_env, sent_columns(algorithm, ()), stats=0)
            memory = torch.zeros(codec.nbytes, dtype=torch.uint8)
            codec.pack(memory, collector.batch, ())
            codec.unpack(memory, whole, first)
            first += env.num_env
    complete(whole, algorithm, None)
    shown = torch.cat([torch.stack(env.shown[steps : 2 * steps]) for env in envs], 1)
    assert torch.equal(joined(whole)["observation"], shown.flatten(0, 1).float())

    alike = [collecting(stacked(2, shape, k, seed + n), PPO, steps) for n in range(3)]
    for collector in alike:
        collector.collect(0)
        collector.collect(1)
    batches = [collector.batch for collector in alike]
    columns = {name: torch.cat([b[name] for b in batches], 1) for name in ("done", "reward")}
    columns["observation"] = torch.cat([b["raw_observation"] for b in batches], 1)
    once = {"last_observation": torch.stack([c.observation for c in alike])}
    if k > 1:
        once["older_frames"] = torch.stack([b.frames.older for b in batches])
    segments = received(columns, once, ("done", "reward"), frames.stacking)
    seen = segments.segments(None, ("reward",)).with_observations()["observations"]
    its = torch.cat([joined(b)["observation"].view(steps, 2, -1) for b in batches], 1)
    assert torch.equal(seen[:-1], its)
    assert torch.equal(seen[-1], torch.cat([c.observation for c in alike]).float())


def test_who_was_late_goes_on_with_the_stacks_it_was_shown():
    """Also who was so from the start of a horizon on, and has taken no step of it."""
    env = stacked(3, (4,), 3, seed=2)
    collector = collecting(env, PPO, 6)
    for taken in (0, 4, 2):
        late = iter([False] * taken + [True])
        assert collector.collect(0, lambda late=late: next(late)) == taken
        (simulate_s, _), seen = collector.read()
        assert (simulate_s > 0, seen.episodes > 0) == (taken > 0, taken > 0)
    collector.collect(0)
    shown = torch.stack(env.shown[6:12]).flatten(0, 1)
    assert torch.equal(joined(collector.batch)["observation"], shown.float())


def as_floats(batch):
    """The same experience in a batch that keeps observations as floats, in packed rows."""
    rows = joined(batch)
    packed = rows.rows.clone().view(*batch["reward"].shape, -1)
    columns = {name: column.clone() for name, column in batch.columns.items()}
    columns |= rows.row_layout.views(packed)
    columns["raw_observation"] = columns["observation"].clone()
    bootstrap = {name: last.float() for name, last in batch.bootstrap.items()}
    return Batch(columns, bootstrap, batch.row_constants, packed, rows.row_layout, batch.sequences)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        PPOConfig(network="impala", minibatches=2, epochs=2, **IMAGES),
        PPOConfig(network=[8], minibatches=2, recurrent={"cell": "lstm", "size": 4}, **IMAGES),
        A2CConfig(network=[8, 8], **IMAGES),
        IMPALAConfig(network="impala", minibatches=2, **IMAGES),
        IMPALAConfig(network=[8], minibatches=1, **IMAGES),
    ],
    ids=["ppo", "lstm", "a2c", "impala", "one"],
)
def test_what_is_learned_is_what_floats_would_teach(settings):
    env = stacked(4, (8, 8), 3)
    collector = collecting(env, settings, 6)
    learned = []
    for kept in (lambda batch: batch, as_floats):
        network = actor_critic_of(settings, env, torch.Generator().manual_seed(1))
        collector = collecting(stacked(4, (8, 8), 3), settings, 6)
        for horizon in range(2):
            collector.collect(horizon)
        batch = kept(collector.batch)
        learner = learner_of(network, settings, batch)
        learner.connect(solo_group())
        learner.update(batch)
        learned.append([learner.parameters.data.detach().clone(), learner.stats()])
    assert torch.equal(learned[0][0], learned[1][0])
    assert learned[0][1] == learned[1][1]


def test_who_normalises_or_keeps_transitions_has_whole_stacks():
    env = stacked(2, (5,), 3)

    def observed(settings, env=env):
        normalizers = Normalizers.of(settings, 15)
        network = type("Bare", (), {"parameters": lambda self: iter([torch.zeros(1)])})()
        if settings.name != "dqn":
            network = actor_critic_of(settings, env)
        return Observed.of(env, 15, algorithm_of(network, settings, normalizers))

    assert observed(PPO).stacking == Stacking(3, 5)
    moments = observed(PPOConfig(network=[8]))
    assert (moments.of_bytes, moments.stacking) == (True, None)
    assert observed(DQNConfig(network=[8], normalize_observation=False)).stacking == (
        Stacking(1, 15)
    )
    # What a wrapper shows may be no stack any more, whatever it wraps.
    assert observed(PPO, EnvWrapper(env)).stacking == Stacking(1, 15)
    floats = PictureEnv(2, (15,), 0)
    floats.observation_space = type(floats.observation_space)(0, 1, (15,), np.float32)
    assert observed(PPO, floats) == Observed(15)


@pytest.mark.parametrize("static", [False, True])
def test_a_bad_reward_is_told_where_observations_are_bytes(static):
    env = stacked(3, (4,), 2, nan_at=(4, 1))
    collector = collecting(env, PPO, 6, static=static)

    def collect():
        collector.collect(0)
        collector.read()

    with pytest.raises(NotFiniteError) as error:
        collect()
    assert (error.value.what, error.value.step, error.value.env_index) == ("reward", 4, 1)
