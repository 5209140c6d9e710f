"""The replay: what is kept, what is made of it, and how rows are drawn."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bodies_off_policy import algorithm, connected
from gmi_drl.comm import solo_group
from gmi_drl.placement.config.algorithms import DQNConfig
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.errors import CheckpointError, PriorityError, RoleError
from gmi_drl.roles.optimizers.replay import on_replay
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import (
    Limiter,
    PrioritizedSampler,
    ReplayBuffer,
    Storage,
    UniformSampler,
)
from gmi_drl.roles.samples.replay.sum_tree import SumTree
from replay_world import GAMMA, World

CPU = torch.device("cpu")


def storage_of(world, capacity, **how):
    how = {"gamma": GAMMA} | how
    return Storage(World(world.num_env).batch(3), DQN.replayed, capacity, CPU, **how)


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize("capacity", [3, 17, 64, 1000])
def test_rows_are_what_environments_brought(capacity, n_step, static, bootstrap):
    world = World(3)
    storage = storage_of(
        world, capacity, n_step=n_step, static=static, bootstrap_time_limit=bootstrap
    )
    for steps in (4, 1, 7, 4, 4, 30, 2, 5):
        if steps == 2:
            world.make_anew()
        assert storage.put(world.batch(steps)) == steps * world.num_env
        rows = storage.rows
        assert len(storage) == len(rows) == 3 * min(len(world.steps), capacity // 3)
        places = torch.tensor([row % storage.places for row in rows])
        found = storage.gather(places)
        for i, place in enumerate(places.tolist()):
            env, step = storage.whose(place)
            assert step == rows[i] // 3
            its = world.steps[step]
            reward, discount, after = world.transition(env, step, n_step, bootstrap)
            assert float(found["reward"][i]) == pytest.approx(reward, rel=1e-5)
            assert float(found["discount"][i]) == pytest.approx(discount)
            assert torch.equal(found["next_observation"][i], after)
            for name in ("raw_observation", "action"):
                assert torch.equal(found[name][i], its[name][env])


def test_an_observation_is_kept_once():
    world = World(4)
    kept = {name: 4 * world.batch(1)[name][0, 0].numel() for name in ("raw_observation", "action")}
    nbytes = storage_of(world, 100_000).nbytes / 100_000
    assert nbytes < sum(kept.values()) + 4 + 8 + 2  # reward, what follows, ends of episodes


def test_bytes_are_kept_as_bytes_and_drawn_as_numbers():
    numbers = torch.arange(256, dtype=torch.uint8).view(64, 4)
    replay = of_numbers(300, 8, numbers)
    replay.put(Batch({"number": numbers}))
    state = replay.state_dict()["storage"]
    assert state["columns"]["number"].dtype == torch.uint8
    drawn, keys = replay.next()
    assert torch.equal(drawn["number"], keys.float())


def test_more_than_there_is_memory_for_is_refused():
    with pytest.raises(RoleError, match=r"replay_capacity=10{14}; the replay needs .* Use \d"):
        storage_of(World(2), 10**14)


def test_ends_of_episodes_that_outgrow_the_memory_are_told(monkeypatch):
    world = World(3)
    storage = storage_of(world, 30_000)
    memory = SimpleNamespace(free_bytes=100, whose="the machine")
    monkeypatch.setattr("gmi_drl.gmi.usage.processes.host_memory", lambda: memory)

    def put_many():
        for _ in range(200):
            storage.put(world.batch(20))

    with pytest.raises(RoleError, match=r"bytes more .* the machine has 100 free"):
        put_many()


def test_a_step_of_all_environments_is_the_least():
    with pytest.raises(RoleError, match="replay_capacity=3; must hold a step of all 4"):
        storage_of(World(4), 3)


def test_what_transitions_are_made_of_has_to_be_there():
    batch = World(2).batch(2)
    del batch.columns["terminated"]
    with pytest.raises(RoleError, match="the batch has no terminated"):
        Storage(batch, DQN.replayed, 10, CPU)


# Rows of a number, one environment ----------------------------------------------------------------


def numbered(first, count):
    return Batch({"number": torch.arange(first, first + count).float().view(-1, 1)})


def of_numbers(capacity, batch_size, like=None, limiter=None, seed=0, sampler=UniformSampler):
    batch = Batch({"number": torch.zeros(1, 1) if like is None else like})
    storage = Storage(batch, ["number"], capacity, CPU)
    generator = torch.Generator().manual_seed(seed)
    return ReplayBuffer(
        storage, sampler(storage.places, CPU), limiter or Limiter(0, 1.0), batch_size, generator
    )


def kept_by(replay):
    rows = replay._storage.rows
    places = torch.tensor([row % replay._storage.places for row in rows], dtype=torch.int64)
    return replay._storage.gather(places)["number"].tolist()


SAMPLERS = pytest.mark.parametrize("sampler", [UniformSampler, PrioritizedSampler])


@pytest.mark.parametrize(
    ("sampler", "gathers"), [(UniformSampler, [15, 21]), (PrioritizedSampler, [3] * 6)]
)
def test_minibatches_that_are_due_are_gathered_at_once_where_that_is_what_each_would_be(
    monkeypatch, sampler, gathers
):
    """Five are due, of which two are drawn; then seven rows come, and seven are due."""
    replay = of_numbers(64, 3, sampler=sampler, limiter=Limiter(0, 0.5))
    gather, sizes = replay._storage.gather, []
    monkeypatch.setattr(
        replay._storage,
        "gather",
        lambda places, *on: sizes.append(len(places)) or gather(places, *on),
    )
    replay.put(numbered(0, 10))
    drawn = [replay.next() for _ in range(2)]
    replay.put(numbered(10, 7))
    drawn += [replay.next() for _ in range(4)]
    assert [len(minibatch["number"]) for minibatch, _ in drawn] == [3] * 6
    for minibatch, keys in drawn:
        assert minibatch["number"].flatten().tolist() == [float(key) for key in keys]
    assert all(max(keys.tolist()) < 10 for _, keys in drawn[:2])  # before the others came
    assert max(int(keys.max()) for _, keys in drawn[2:]) >= 10
    assert replay.limiter.drawn == 6
    assert sizes == gathers


@SAMPLERS
@pytest.mark.parametrize("capacity", [1, 7, 10, 64])
@pytest.mark.parametrize("size", [1, 3, 10, 23])
def test_the_newest_rows_are_kept_and_no_others(capacity, size, sampler):
    replay, there = of_numbers(capacity, 500, sampler=sampler), 0
    for _ in range(8):
        replay.put(numbered(there, size))
        there += size
        newest = list(range(max(0, there - capacity), there))
        assert len(replay) == len(newest)
        assert kept_by(replay) == newest
        assert set(replay.next()[0]["number"].tolist()) <= set(newest)


@SAMPLERS
@pytest.mark.parametrize("capacity", [7, 20, 64])
def test_rows_of_a_round_that_was_given_up_are_not_counted_twice(capacity, sampler):
    replay = of_numbers(capacity, 300, sampler=sampler)
    for first in (0, 5, 10):
        replay.put(numbered(first, 5))
    left = [0, 1, 2, 3, 4][max(15 - capacity, 0) :]
    replay.take_back(10)
    assert kept_by(replay) == left
    if left:
        assert set(replay.next()[0]["number"].tolist()) <= set(left)
    for first in (20, 25):
        replay.put(numbered(first, 5))
    newest = [*left, *range(20, 30)][-capacity:]
    assert kept_by(replay) == newest
    assert set(replay.next()[0]["number"].tolist()) <= set(newest)


@pytest.mark.parametrize(("start", "ratio"), [(0, 1.0), (10, 0.25), (7, 3.0), (100, 1.0)])
def test_so_many_minibatches_are_due_for_each_row_after_the_start(start, ratio):
    replay = of_numbers(5, 1, limiter=Limiter(start, ratio))
    assert not replay.ready()
    for _ in range(9):
        replay.put(numbered(0, 4))
        while replay.ready():
            replay.next()
        due = max(replay.limiter.rows - start, 0) * ratio
        assert due <= replay.limiter.drawn < due + 1


def test_ratios_that_are_no_binary_numbers_add_up():
    limiter = Limiter(100, 0.1)
    for rows in range(32, 20_000, 32):
        limiter.add(32)
        while limiter.ready():
            limiter.drawn += 1
        assert limiter.drawn == -(-max(rows - 100, 0) // 10)


def test_what_was_due_stays_so_under_settings_that_are_changed():
    before, after = Limiter(10, 0.5), Limiter(0, 4.0)
    before.add(1_010)
    before.drawn = 500
    after.load_state_dict(before.state_dict())
    assert not after.ready()
    after.add(1)
    for _ in range(4):
        assert after.ready()
        after.drawn += 1
    assert not after.ready()


def test_a_replay_that_begins_anew_waits_for_the_first_rows_again():
    replay = of_numbers(50, 4, limiter=Limiter(10, 1.0))
    replay.put(numbered(0, 20))
    while replay.ready():
        replay.next()
    replay.take_back(20)  # none is left
    replay.limiter.begin_anew()
    replay.put(numbered(20, 10))
    assert len(replay) == 10
    assert not replay.ready()
    replay.put(numbered(30, 3))
    assert replay.ready()
    assert replay.limiter.drawn == 10


# How rows are drawn -------------------------------------------------------------------------------


def assert_drawn_by(counts, shares):
    """A chi-square test of counts against shares, at a chance of one in ten thousand."""
    expected = counts.sum() * shares
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    # Wilson and Hilferty's approximation of the distribution's quantile.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def test_uniform_rows_are_drawn_alike_also_behind_the_rings_end():
    replay = of_numbers(20, 60_000)
    for first in (0, 20, 27):
        replay.put(numbered(first, 20 if first == 0 else 7))
    drawn, _ = replay.next()
    counts = torch.bincount(drawn["number"].long() - 14, minlength=20).double()
    assert_drawn_by(counts, torch.full((20,), 0.05))


def prioritized(places=40, **how):
    return PrioritizedSampler(places, CPU, **({"alpha": 0.7, "beta": 0.5, "eps": 0.01} | how))


def test_rows_are_drawn_by_their_priorities():
    sampler, generator = prioritized(), torch.Generator().manual_seed(1)
    sampler.put(range(5, 35))
    priorities = torch.rand(30, generator=generator) ** 3
    priorities[4] = 0.0
    sampler.update(torch.arange(5, 35), priorities)
    shares = (priorities.double() + 0.01) ** 0.7
    shares /= shares.sum()
    found = [sampler.draw(1_000, range(5, 35), generator) for _ in range(60)]
    places = torch.cat([its for its, _ in found])
    assert_drawn_by(torch.bincount(places - 5, minlength=30).double(), shares)
    for its, weights in found[:3]:
        wanted = (30 * shares[its - 5]) ** -0.5
        torch.testing.assert_close(weights, (wanted / wanted.max()).float())


def test_the_greatest_weight_may_be_that_of_all_rows():
    sampler, generator = prioritized(weights_by="buffer"), torch.Generator().manual_seed(1)
    sampler.put(range(40))
    sampler.update(torch.arange(40), torch.linspace(0, 5, 40))
    shares = (torch.linspace(0, 5, 40, dtype=torch.float64) + 0.01) ** 0.7
    places, weights = sampler.draw(8, range(40), generator)
    wanted = (shares / shares.min())[places] ** -0.5
    torch.testing.assert_close(weights, wanted.float())


def test_alpha_0_draws_alike_and_beta_0_weighs_alike():
    generator = torch.Generator().manual_seed(2)
    for how in ({"alpha": 0.0}, {"beta": 0.0}):
        sampler = prioritized(**how)
        sampler.put(range(40))
        sampler.update(torch.arange(40), torch.linspace(0, 5, 40))
        places, weights = sampler.draw(40_000, range(40), generator)
        assert torch.equal(weights, torch.ones(40_000))
        if "alpha" in how:
            assert_drawn_by(
                torch.bincount(places, minlength=40).double(), torch.full((40,), 1 / 40)
            )


def test_beta_rises_to_1():
    sampler = prioritized()
    for progress, beta in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0), (1.5, 1.0)):
        sampler.anneal(progress)
        assert sampler.beta == pytest.approx(beta)


def test_a_row_that_was_not_drawn_yet_has_the_greatest_priority():
    sampler = prioritized(alpha=1.0, eps=0.5)
    sampler.put(range(10))
    sampler.update(torch.arange(10), torch.arange(10.0))
    sampler.put(range(10, 12))
    tree = sampler._tree.priorities
    assert tree[:10].tolist() == [n + 0.5 for n in range(10)]
    assert tree[10:12].tolist() == [9.5, 9.5]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("bad", [math.nan, -0.1, math.inf])
def test_what_is_no_priority_is_told_with_its_environment_and_step(bad, static):
    world = World(3)
    storage = storage_of(world, 30)
    sampler = prioritized(storage.places, static=static)
    replay = ReplayBuffer(storage, sampler, Limiter(0, 1.0), 4, torch.Generator())
    for _ in range(3):
        replay.put(world.batch(5))
    place = next(p for p in range(storage.places) if storage.whose(p) == (1, 12))
    with pytest.raises(PriorityError, match="to step 12 of environment 1 in the replay") as told:
        replay.feedback(torch.tensor([7, place]), torch.tensor([1.0, bad]))
    assert told.value.priority == pytest.approx(bad, nan_ok=True)
    assert bool(sampler._tree.total.isfinite())


def test_priorities_of_another_shape_are_told_and_gradients_are_left_behind():
    sampler = prioritized()
    sampler.put(range(5))
    with pytest.raises(RoleError, match=r"of shape \[2, 1\]; must be one number .* \[2\]"):
        sampler.update(torch.arange(2), torch.ones(2, 1))
    sampler.update(torch.arange(2), torch.ones(2, requires_grad=True))
    assert not sampler._tree.priorities.requires_grad


def test_a_loss_without_priorities_is_told():
    sampler = prioritized()
    sampler.put(range(5))
    with pytest.raises(RoleError, match=r"Losses.extras\['priorities'\] \[B\], or set sampler"):
        sampler.update(torch.arange(2), None)


# The tree -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4_096, 40_000, (1 << 20) + 16, 2_200_000])
def test_the_tree_finds_what_a_running_sum_finds(size):
    generator = torch.Generator().manual_seed(size)
    tree = SumTree(size, CPU, has_least=True)
    priorities = torch.rand(size, generator=generator, dtype=torch.float64)
    priorities[torch.rand(size, generator=generator) < 0.3] = 0.0
    priorities[size // 2] = 0.5  # not all are 0
    tree.fill(0, size, priorities)
    for _ in range(3):
        shares = torch.rand(1_000, generator=generator, dtype=torch.float64)
        running = np.cumsum(priorities.numpy())
        target = shares.numpy() * running[-1]
        found = tree.find(shares).numpy()
        assert (priorities.numpy()[found] > 0).all()
        # Where sums are rounded otherwise a neighbour may be found.
        below = running[found] - priorities.numpy()[found]
        assert (below <= target + 1e-9 * size).all()
        assert (running[found] >= target - 1e-9 * size).all()
        places = torch.randint(size, (50,), generator=generator)
        new = torch.rand(50, generator=generator, dtype=torch.float64)
        tree.set(places, new)
        for place in set(places.tolist()):
            priorities[place] = new[places == place].max()
        assert torch.equal(tree.priorities, priorities)
        assert float(tree.total) == pytest.approx(float(priorities.sum()))
        assert float(tree.least()) == float(priorities[priorities > 0].min())


def test_a_ring_of_a_million_rows_and_a_step_more_has_two_levels():
    assert len(SumTree((1 << 20) + 64, CPU)._levels) == 2


@given(st.lists(st.tuples(st.integers(0, 129), st.integers(0, 129), st.floats(0, 9)), max_size=20))
def test_sums_follow_all_that_is_filled(fills):
    tree, plain = SumTree(130, CPU), np.zeros(130)
    for first, until, priority in fills:
        first, until = sorted((first, until))
        tree.fill(first, until, priority)
        plain[first:until] = priority
    assert tree.priorities.tolist() == plain.tolist()
    assert float(tree.total) == pytest.approx(plain.sum())


# Checkpoints --------------------------------------------------------------------------------------


def replay_of(settings, world, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return ReplayBuffer.of(settings, World(world.num_env).batch(2), DQN.replayed, generator)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("steps", [0, 6, 33])
def test_a_replay_that_was_saved_draws_what_it_would_have_drawn(steps, sampler):
    settings = DQNConfig(
        sampler=sampler, replay_capacity=45, replay_start=0, batch_size=9, n_step=2, gamma=GAMMA
    )
    world = World(3)
    one, other = replay_of(settings, world), replay_of(settings, world)
    if steps:
        one.put(world.batch(steps))
        if sampler == "prioritized":
            _, keys = one.next()
            one.feedback(keys, torch.rand(9))
            one._generator.manual_seed(3)
    other.load_state_dict(one.state_dict())
    batch = world.batch(5)
    for replay in (one, other):
        replay.put(batch)
    for _ in range(3):
        (mine, keys), (its, others) = one.next(), other.next()
        assert torch.equal(keys, others)
        assert mine.columns.keys() == its.columns.keys()
        assert all(torch.equal(mine[name], its[name]) for name in mine.columns)
        assert ("weight" in mine.columns) == (sampler == "prioritized")


@SAMPLERS
def test_a_replay_of_another_size_takes_the_newest_rows(sampler):
    saved = of_numbers(20, 9, sampler=sampler)
    saved.put(numbered(0, 33))
    for capacity in (5, 50):
        replay = of_numbers(capacity, 900, sampler=sampler)
        replay.load_state_dict(saved.state_dict())
        newest = list(range(33 - min(capacity, 20), 33))
        assert kept_by(replay) == newest
        assert set(replay.next()[0]["number"].tolist()) == set(newest)


def test_priorities_go_on_from_a_replay_that_had_none():
    saved, replay = of_numbers(20, 9), of_numbers(20, 900, sampler=PrioritizedSampler)
    saved.put(numbered(0, 12))
    replay.load_state_dict(saved.state_dict())
    assert set(replay.next()[0]["number"].tolist()) == set(range(12))


def test_the_version_that_put_in_the_oldest_row_is_told_after_rounds_of_other_sizes():
    """As where a run was resized, and each GMI takes fewer steps in a round, or more."""
    world, versions = World(4), []  # of each row

    def begun():
        made = algorithm("td3", replay_capacity=40, replay_start=1_000)
        return on_replay(connected(made, solo_group()), World(4).batch(1), None, lambda: None)

    def train(replay, *rounds):
        for steps in rounds:
            version = max(versions, default=0) + 1
            replay.update(world.batch(steps))
            versions.extend([version] * (4 * steps))
            told = replay.kept(version)
            assert told.rows == min(len(versions), 40)
            assert told.oldest == versions[-told.rows]

    before, after = begun(), begun()
    train(before, 2, 2, 2, 2, 2, 2, 2)
    after.load_state_dict(before.state_dict())
    after.load_own_state(before.own_state())
    train(after, *[1] * 14, *[3] * 6)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_priorities_go_on_under_another_alpha(alpha):
    saved, other = prioritized(), prioritized(alpha=alpha)
    for sampler in (saved, other):
        sampler.put(range(30))
        sampler.update(torch.arange(30), torch.linspace(0, 5, 30))
    resumed = prioritized(alpha=alpha)
    resumed.load_state_dict(saved.state_dict(range(30)), range(30))
    for sampler in (other, resumed):
        sampler.put(range(30, 33))
    torch.testing.assert_close(resumed._tree.priorities, other._tree.priorities, rtol=1e-5, atol=0)


def test_a_replay_is_saved_without_the_places_that_are_empty():
    replay = of_numbers(100_000, 8)
    replay.put(numbered(0, 7))
    column = replay.state_dict()["storage"]["columns"]["number"]
    assert column.untyped_storage().nbytes() == 4 * 8  # and where the newest one led to


def test_a_replay_of_other_columns_or_environments_is_refused():
    saved = of_numbers(20, 9)
    saved.put(numbered(0, 3))
    with pytest.raises(CheckpointError, match=r"keeps number \[\] of float32; this run keeps"):
        storage_of(World(1), 20).load_state_dict(saved.state_dict()["storage"])
    two = Storage(Batch({"number": torch.zeros(1, 2)}), ["number"], 20, CPU)
    with pytest.raises(CheckpointError, match="of 1 environments; this run has 2"):
        two.load_state_dict(saved.state_dict()["storage"])
