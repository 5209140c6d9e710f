"""Sequences from a replay, and a recurrent DQN on them, against what is written out by steps."""

import pytest
import torch

from device_only import DeviceOnly
from gmi_drl import rl
from gmi_drl.placement import DQNConfig, Topology, check, load_config
from gmi_drl.roles.algorithms.dqn import DQN, dqn_loss
from gmi_drl.roles.errors import CheckpointError, PriorityError
from gmi_drl.roles.policies.q_network import QNetwork
from gmi_drl.roles.samples.batch import Sequences
from gmi_drl.roles.samples.replay import Limiter, PrioritizedSampler, ReplayBuffer, SequenceStorage
from replay_world import GAMMA, World

CPU = torch.device("cpu")
STEPS, NUM_ENV, STATES = 4, 3, 2
N_STEP = pytest.mark.parametrize("n_step", [1, 3])
SETTINGS = {"name": "dqn", "network": [8], "recurrent": {"size": 6}, "gamma": GAMMA}


class Remembering(World):
    """A world whose policy had a state before each horizon: zero where an episode began there."""

    def horizon(self, steps=STEPS):
        began = not self.steps or len(self.steps) in self.anew
        state = torch.randn(self.num_env, STATES, generator=self.generator)
        over = torch.ones(self.num_env) if began else self.steps[-1]["done"]
        state.masked_fill_(over.bool()[:, None], 0.0)
        batch = super().batch(steps)
        for step in self.steps[-steps:]:
            step["state"] = state
        batch.sequences = Sequences(state, batch["done"])
        return batch

    def goes_on(self, env, step):
        """Whether an episode goes on behind a step that something followed."""
        return not self.steps[step]["done"][env] and step + 1 not in self.anew


def storage_of(world, capacity, n_step=1, **how):
    like = Remembering(world.num_env).horizon()
    how = {"gamma": GAMMA, "burn_in": True, **how}
    return SequenceStorage(like, DQN.replayed, capacity, CPU, n_step=n_step, **how)


def check_sequences(world, storage, n_step):
    """All that may be drawn is what environments brought, and nothing else is drawn."""
    rows, last = storage.rows, len(world.steps)
    first = -(-max(last - storage._capacity, 0) // STEPS)
    assert rows == range(first * NUM_ENV, last // STEPS * NUM_ENV)
    found = storage.gather(torch.tensor([row % storage.places for row in rows]))
    behind = STEPS + n_step - 1
    for i, row in enumerate(rows):
        horizon, env = divmod(row, NUM_ENV)
        begin = horizon * STEPS
        assert storage.whose(row % storage.places) == (env, begin)
        assert torch.equal(found["state"][i], world.steps[begin]["state"][env])
        there = horizon > first and world.goes_on(env, begin - 1)
        assert bool(found["burns_in"][i]) == there
        if there:
            assert torch.equal(found["burn_in_state"][i], world.steps[begin - 1]["state"][env])
        for t in range(-STEPS if there else 0, behind):
            if begin + t >= last:
                break
            its, at = world.steps[begin + t], STEPS + t
            assert torch.equal(found["raw_observation"][at, i], its["raw_observation"][env])
            assert bool(found["ended"][at, i]) != (
                begin + t + 1 < last and world.goes_on(env, begin + t)
            )
        for t in range(STEPS):
            reward, discount, after = world.transition(env, begin + t, n_step, True)
            assert float(found["reward"][t, i]) == pytest.approx(reward, rel=1e-5)
            assert float(found["discount"][t, i]) == pytest.approx(discount)
            assert torch.equal(found["next_observation"][t, i], after)
            assert torch.equal(found["action"][t, i], world.steps[begin + t]["action"][env])
            if discount:
                assert GAMMA ** (int(found["ahead"][t, i]) + 1) == pytest.approx(discount)


@N_STEP
@pytest.mark.parametrize("capacity", [12, 27, 1000])
def test_sequences_are_what_environments_brought(capacity, n_step):
    world = Remembering(NUM_ENV)
    storage = storage_of(world, capacity, n_step)
    for number in range(12):
        if number == 5:
            world.make_anew()
        assert storage.put(world.horizon()) == STEPS * NUM_ENV
        check_sequences(world, storage, n_step)
    storage.take_back(STEPS * NUM_ENV)
    del world.steps[-STEPS:]
    if capacity == 1000:  # else what they were written over is gone
        check_sequences(world, storage, n_step)


@pytest.mark.parametrize("capacity", [1000, 60])
def test_a_checkpoint_has_the_sequences(capacity):
    world = Remembering(NUM_ENV)
    storage, other = storage_of(world, 100), storage_of(world, capacity)
    for _ in range(12):
        storage.put(world.horizon())
    other.load_state_dict(storage.state_dict())
    for row in other.rows:
        its = [one.gather(torch.tensor([row % one.places])) for one in (storage, other)]
        for name in its[0].columns:
            if not name.startswith("burn") or other.rows.index(row) >= NUM_ENV:
                assert torch.equal(its[0][name][-STEPS:], its[1][name][-STEPS:])
    if capacity > 60:
        assert len(other.rows) == len(storage.rows)
    else:
        check_sequences(world, other, 1)
    longer = SequenceStorage(world.horizon(8), DQN.replayed, 100, CPU, burn_in=True)
    with pytest.raises(CheckpointError, match=r"sequences of 4 steps; this run has .*horizon=8"):
        longer.load_state_dict(storage.state_dict())


def test_horizons_of_several_agents_do_not_go_on_from_each_other():
    world = Remembering(NUM_ENV)
    storage = storage_of(world, 100, in_turn=False)
    storage.put(world.horizon())
    storage.put(world.horizon())
    found = storage.gather(torch.arange(2 * NUM_ENV))
    assert not found["burns_in"].any()
    assert found["ended"][STEPS + STEPS - 1].all()


def test_on_a_gpu_nothing_waits_for_it():
    world = Remembering(NUM_ENV)
    storage = storage_of(world, 100, n_step=3, static=True)
    sampler = PrioritizedSampler(storage.places, CPU, static=True)
    replay = ReplayBuffer(storage, sampler, Limiter(0, 1.0), 4, torch.Generator())
    batches = [world.horizon() for _ in range(3)]  # more ends would have room made for them
    with DeviceOnly():
        for batch in batches:
            replay.put(batch)
            _, keys = replay.next()
            sampler.update(keys, torch.ones(len(keys)))
    check_sequences(world, storage, 3)


def test_a_bad_priority_of_a_sequence_says_whose_it_is():
    world = Remembering(NUM_ENV)
    storage = storage_of(world, 100)
    sampler = PrioritizedSampler(storage.places, CPU)
    replay = ReplayBuffer(storage, sampler, Limiter(0, 1.0), 4, torch.Generator())
    replay.put(world.horizon())
    replay.put(world.horizon())
    _, keys = replay.next()
    assert keys.max() < 2 * NUM_ENV
    with pytest.raises(PriorityError, match="step 4 of environment 1"):
        replay.feedback(torch.tensor([NUM_ENV + 1]), torch.tensor([-1.0]))


def networks(**settings):
    its = DQNConfig(**{**SETTINGS, **settings})
    made = [QNetwork(2, 2, its, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    with torch.no_grad():
        for network in made:
            for parameter in network.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return its, *made


@N_STEP
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("burn_in", [True, False])
def test_the_loss_is_that_of_episodes_played_step_by_step(cell, burn_in, n_step):
    torch.manual_seed(0)
    its, network, target = networks(recurrent={"cell": cell, "size": 6}, n_step=n_step)
    world = Remembering(NUM_ENV, seed=3)
    width = network.state_columns
    like = world.horizon()
    like.sequences = Sequences(torch.zeros(NUM_ENV, width), like["done"])
    storage = SequenceStorage(
        like, DQN.replayed, 200, CPU, n_step=n_step, gamma=GAMMA, burn_in=burn_in
    )  # fmt: skip
    world.steps.clear()
    states = []
    for _ in range(6):
        batch = world.horizon()
        state = torch.randn(NUM_ENV, width) * batch.sequences.state.any(1)[:, None]
        batch["action"].round_()
        batch.sequences = Sequences(state, batch["done"])
        states.append(state)
        storage.put(batch)

    def outputs(one, env, begin, state, until):
        """Of each step of a sequence, and the state behind it: `one` plays from `state` on."""
        found = []
        for step in range(begin, until):
            made, state = one.step(world.steps[step]["raw_observation"][env][None], state)
            found.append((made[0], state))
            if not world.goes_on(env, step):
                state = torch.zeros_like(state)
        return found

    def state_of(one, env, horizon):
        its = states[horizon][env][None]
        begin = horizon * STEPS
        if burn_in and horizon and world.goes_on(env, begin - 1):
            its = outputs(one, env, begin - STEPS, states[horizon - 1][env][None], begin)[-1][1]
        return its.detach()

    rows = list(storage.rows)
    drawn = storage.gather(torch.tensor(rows)).transitions(None)
    drawn.columns["weight"] = torch.rand(len(rows))
    losses = dqn_loss(network, target, drawn, its)
    total, priorities = torch.zeros(()), []
    for i, row in enumerate(rows):
        horizon, env = divmod(row, NUM_ENV)
        begin, errors = horizon * STEPS, []
        until = min(begin + STEPS + n_step - 1, len(world.steps))
        mine, theirs = (
            outputs(one, env, begin, state_of(one, env, horizon), until)
            for one in (network, target)
        )
        for t in range(STEPS):
            reward, discount, after = world.transition(env, begin + t, n_step, True)
            last = t
            while last + 1 < min(t + n_step, until - begin) and world.goes_on(env, begin + last):
                last += 1
            choice = network.step(after[None], mine[last][1])[0].argmax()
            value = target.step(after[None], theirs[last][1])[0][0, choice].detach()
            action = int(world.steps[begin + t]["action"][env].round())
            error = mine[t][0][action] - (reward + discount * value)
            weight = drawn["weight"][i]
            total = total + weight * torch.nn.functional.huber_loss(error, torch.zeros(()))
            errors.append(abs(error.item()))
        priorities.append(0.9 * max(errors) + 0.1 * sum(errors) / STEPS)
    total = total / (len(rows) * STEPS)
    assert losses.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert losses.extras["priorities"].tolist() == pytest.approx(priorities, rel=1e-4)
    (given,) = torch.autograd.grad(losses.total, network.cell.weight_hh)
    (wanted,) = torch.autograd.grad(total, network.cell.weight_hh)
    assert torch.allclose(given, wanted, atol=1e-6)
    assert given.abs().max() > 1e-4


@pytest.mark.parametrize(
    "more",
    [
        {"distributional": "qr", "quantiles": 5, "dueling": True},
        {"distributional": "c51", "value_range": [-5, 5], "sampler": "prioritized"},
        {"noisy": True, "n_step": 3, "burn_in": False},
    ],
)
@pytest.mark.parametrize("make", [rl.Replay, rl.Apex])
def test_it_has_the_parts_of_rainbow(make, more, tmp_path):
    keys = {
        "network": [8], "recurrent": {"size": 6}, "horizon": 4, "replay_start": 64,
        "batch_size": 8, "replay_capacity": 500, "updates_per_row": 0.1, **more,
    }  # fmt: skip
    both = [
        make(rl.DQN, [rl.Evaluator("CartPole-v1", rl.DQN, num_env=4, settings=keys)])
        for _ in range(2)
    ]
    for _ in range(10):
        told = both[0].step()
    assert told["updates"] == 10
    both[0].save(tmp_path / "state.pt")
    both[1].load(tmp_path / "state.pt")
    (mine, at), (theirs, there) = (one._replay._replay.next() for one in both)
    assert torch.equal(at, there)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine.columns)


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [
        ({"horizon": 1}, "must be 2 or more where algorithm.recurrent is given"),
        ({"hindsight": 0.5}, "what a network remembers of an episode"),
        ({"replay_capacity": 1_100, "horizon": 300}, "must hold horizon=300 steps of 4 env"),
        ({"batch_size": 65}, "must be at most 64, the sequences that are there"),
    ],
)
def test_what_could_never_be_is_a_fault(algorithm, rule):
    keys = {**SETTINGS, "horizon": 16, "batch_size": 8, **algorithm}
    section = {"version": 1, "env": {"id": "CartPole-v1", "num_env": 4}, "algorithm": keys}
    (fault,) = check(load_config(section), Topology.from_cores(range(2)))
    assert rule in str(fault)


@pytest.mark.slow
def test_only_a_network_that_remembers_repeats_what_it_saw():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keys = {
        "network": [32], "activation": "relu", "horizon": 8, "batch_size": 16, "gamma": 0.5,
        "updates_per_row": 0.0625, "learning_rate": 3e-3, "epsilon_steps": 4_000,
        "epsilon": 0.02, "target_every": 50, "sampler": "prioritized",
    }  # fmt: skip
    try:
        returns = []
        for more in ({"recurrent": {"size": 32}}, {"batch_size": 128}):
            its = {**keys, **more}
            one = rl.Evaluator("bodies_memory:Repeat-v0", rl.DQN, num_env=16, settings=its)
            optimizer = rl.Replay(rl.DQN, [one])
            while optimizer.steps < 9_000:
                optimizer.step()
            returns.append(optimizer.evaluate()["eval_return"])
    finally:
        torch.set_num_threads(threads)
    assert returns[0] >= 13.5  # of 14
    assert returns[1] <= 8
