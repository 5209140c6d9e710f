"""Priorities that agents give their steps, and what a replay makes of them."""

import math

import pytest
import torch

import bodies_dqn
import bodies_off_policy
from batches import algorithm_of
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.errors import PriorityError, RoleError
from gmi_drl.roles.evaluators.first_priorities import FirstPriorities
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import Limiter, PrioritizedSampler, ReplayBuffer, Storage

CPU = torch.device("cpu")
GAMMA = 0.9


def dqn(**settings):
    settings = {"sampler": "prioritized", "gamma": GAMMA, **settings}
    its = bodies_dqn.SETTINGS.model_copy(update=settings)
    return algorithm_of(bodies_dqn.network(), its)


def generator():
    return torch.Generator().manual_seed(5)


def experience(seed):
    """A batch whose steps follow each other within episodes."""
    batch = bodies_dqn.experience(torch.Generator().manual_seed(seed), steps=9)
    goes_on = batch["done"][:-1, :, None] == 0
    after = batch["next_observation"][:-1]
    after.copy_(torch.where(goes_on, batch["raw_observation"][1:], after))
    return batch


@pytest.mark.parametrize("n_step", [1, 3])
def test_they_are_errors_of_the_values_of_the_policy_that_acted(n_step):
    made = dqn(n_step=n_step)
    first = FirstPriorities.wanted(made, experience(0), generator())
    network = made.policy.network
    for seed in (1, 2):  # nothing is left of the batch before
        batch = experience(seed)
        found = first.of(batch)
        steps, num_env = batch["reward"].shape
        for env in range(num_env):
            for step in range(steps):
                total = 0.0
                for last in range(step, min(step + n_step, steps)):
                    total += GAMMA ** (last - step) * float(batch["reward"][last, env])
                    if batch["done"][last, env]:
                        break
                with torch.no_grad():
                    after = network(batch["next_observation"][last, env][None]).max()
                    taken = network(batch["raw_observation"][step, env][None])
                if not batch["terminated"][last, env]:
                    total += GAMMA ** (last - step + 1) * float(after)
                error = abs(total - float(taken[0, int(batch["action"][step, env, 0])]))
                assert float(found[step, env]) == pytest.approx(error, abs=1e-5)


def test_those_of_stacks_are_those_of_whole_observations():
    made = dqn(n_step=3)
    batch = experience(3)
    # Four numbers as two frames of two: the newest come back as the older ones.
    for t in range(1, len(batch["reward"])):
        goes_on = (batch["done"][t - 1] == 0)[:, None]
        shown = batch["raw_observation"]
        shown[t, :, :2] = torch.where(goes_on, shown[t - 1, :, 2:], shown[t, :, 2:])
    after = batch["next_observation"]
    after[:-1] = torch.where(batch["done"][:-1, :, None] == 0, shown[1:], after[:-1])
    after[..., :2] = shown[..., 2:]
    whole = FirstPriorities.wanted(made, batch, generator())
    frames = FirstPriorities.wanted(made, batch, generator(), Stacking(2, 2))
    assert torch.equal(whole.of(batch), frames.of(batch))


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_critics_give_theirs_by_what_the_agent_acts_by_now(kind):
    made = bodies_off_policy.algorithm(kind, sampler="prioritized")
    rows = bodies_off_policy.rows_of(made)
    given = made.first_priorities(rows)
    for mine, trained in zip(*made._followers, strict=True):
        assert torch.equal(mine, trained)
    assert torch.equal(given, made.losses(rows).extras["priorities"])


def test_who_gives_none():
    batch = bodies_dqn.experience(generator())
    assert FirstPriorities.wanted(dqn(sampler="uniform"), batch, generator()) is None
    assert FirstPriorities.wanted(dqn(hindsight=0.8), batch, generator()) is None

    class Own(DQN):
        first_priorities = DQN.__mro__[1].first_priorities

    made = dqn()
    own = Own(made.settings, made.policy, made.normalizers)
    assert FirstPriorities.wanted(own, batch, generator()) is None


def test_a_loss_that_gives_none_is_told():
    made = dqn()
    losses = made.loss_function

    def without(*arguments):
        given = losses(*arguments)
        return type(given)(given.total, given.stats)

    made.loss_function = without
    batch = bodies_dqn.experience(generator())
    first = FirstPriorities.wanted(made, batch, generator())
    with pytest.raises(RoleError, match="the algorithm's losses give no priorities"):
        first.of(batch)


# In a replay --------------------------------------------------------------------------------------


def replay_of(capacity):
    like = Batch({"number": torch.zeros(1, 2)})
    storage = Storage(like, ["number"], capacity, CPU)
    sampler = PrioritizedSampler(storage.places, CPU, alpha=0.5, eps=0.25)
    return ReplayBuffer(storage, sampler, Limiter(0, 1.0), 4, generator())


@pytest.mark.parametrize("capacity", [6, 16, 200])
def test_rows_enter_a_replay_with_the_priorities_that_they_came_with(capacity):
    replay, count = replay_of(capacity), 0
    wanted = {}
    for steps in (3, 9, 2, 5):
        numbers = torch.arange(count, count + 2 * steps).float().view(steps, 2)
        priorities = torch.rand(steps, 2, generator=generator()) + numbers
        replay.put(Batch({"number": numbers, "priority": priorities}))
        wanted |= dict(zip(numbers.flatten().tolist(), priorities.flatten().tolist(), strict=True))
        count += 2 * steps
        storage, rows = replay._storage, replay._storage.rows
        places = torch.tensor([row % storage.places for row in rows])
        kept = storage.gather(places)["number"].tolist()
        tree = replay._sampler._tree.priorities[places].tolist()
        assert tree == pytest.approx([math.sqrt(wanted[number] + 0.25) for number in kept])
    replay.put(Batch({"number": torch.zeros(1, 2)}))  # of an agent that gives none
    at = [row % storage.places for row in storage.rows[-2:]]
    greatest = math.sqrt(max(wanted.values()) + 0.25)
    assert replay._sampler._tree.priorities[at].tolist() == pytest.approx([greatest] * 2)


def test_what_is_no_priority_is_told():
    replay = replay_of(8)
    numbers = torch.zeros(2, 2)
    replay.put(Batch({"number": numbers, "priority": torch.tensor([[1.0, 2.0], [math.nan, 1.0]])}))
    with pytest.raises(PriorityError, match="to step 1 of environment 0 in the replay"):
        replay.check()
