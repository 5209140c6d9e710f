"""Updates from a replay as graphs: the same numbers as by launches, and no Python in them."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bodies_dqn import experience, trains_of
from bodies_off_policy import KINDS, algorithm, rows_of
from device_only import RecordedPool
from gmi_drl.comm import solo_group
from gmi_drl.placement import RecurrentConfig
from gmi_drl.placement.config.algorithms import DQNConfig
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.policies import recurrent_steps


class Two:
    """A group as of two ranks, of which the other brings nothing and takes the same steps."""

    size, rank = 2, 1

    def bucket(self, *args):
        reducer = solo_group().bucket(*args)
        reducer.size = 2
        return reducer

    def exchange(self, value):
        return [value, value]


def updates(kind, count, pool=None, group=None, **settings):
    """Parameters, targets, stats and priorities after updates on other rows each time."""
    made = algorithm(kind, **settings)
    learner = Learner(made, torch.Generator().manual_seed(0), pool=pool, static=True)
    learner.connect(group or solo_group())
    priorities = [
        learner.repeat(rows_of(made, 10 + number))["priorities"].clone() for number in range(count)
    ]
    target = torch.cat([one.flatten() for one in made.target.parameters()])
    found = learner.parameters.data.detach().clone(), target.clone(), torch.stack(priorities)
    stats = learner.stats()
    state = learner.state_dict()
    learner.close()
    return *found, stats, state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [solo_group, Two], ids=["alone", "with another"])
def test_captured_updates_give_the_same_numbers(kind, group):
    parameters, target, priorities, stats, _ = updates(kind, 6, group=group())
    pool = RecordedPool()
    captured = updates(kind, 6, pool, group())
    assert pool.graphs
    torch.testing.assert_close(captured[0], parameters)
    torch.testing.assert_close(captured[1], target)
    torch.testing.assert_close(captured[2], priorities)
    assert captured[3] == pytest.approx(stats, nan_ok=True)
    assert len(set(map(float, priorities[:, 0]))) > 1  # of other rows each time


def test_a_delayed_actor_has_a_graph_of_its_own(monkeypatch):
    pool = RecordedPool()
    updates("td3", 7, pool, policy_delay=3)
    assert len(pool.graphs) == 2
    parameters, *_ = updates("td3", 7, policy_delay=3)
    again, *_ = updates("td3", 7, RecordedPool(), policy_delay=3)
    torch.testing.assert_close(again, parameters)


def test_a_state_of_captured_updates_goes_on_in_another_learner():
    whole, *_ = updates("td3", 8, RecordedPool())
    *_, state = updates("td3", 5, RecordedPool())
    made = algorithm("td3")
    learner = Learner(made, torch.Generator().manual_seed(0), pool=RecordedPool(), static=True)
    learner.connect(solo_group())
    learner.load_state_dict(state)
    for number in range(5, 8):
        learner.repeat(rows_of(made, 10 + number))
    torch.testing.assert_close(learner.parameters.data.detach(), whole)
    learner.close()


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"double": True, "dueling": True}, {"noisy": True},
        {"distributional": "c51", "value_range": (-3.0, 3.0), "atoms": 11},
        {"distributional": "qr", "quantiles": 7},
        {"recurrent": RecurrentConfig(size=6), "n_step": 3, "horizon": 4},
        {"recurrent": RecurrentConfig(cell="gru", size=6), "horizon": 4, "burn_in": False},
    ],
    ids=["plain", "dueling", "noisy", "c51", "qr", "lstm", "gru"],
)  # fmt: skip
def test_q_networks_are_trained_from_a_replay_by_graphs(options, sampler, monkeypatch):
    monkeypatch.setattr(recurrent_steps, "static_on", lambda device: True)

    def parameters(pool):
        settings = DQNConfig(network=[16], target_every=3, learning_rate=1e-2, **options)
        trains = trains_of(3, pool=pool, its=settings, sampler=sampler)
        trains.learner.connect(solo_group())
        generator = torch.Generator().manual_seed(5)
        for _ in range(4):
            state_columns = trains.learner.algorithm.policy.state_columns
            trains.update(experience(generator, state_columns=state_columns))
        trained = trains.learner.parameters.data.detach().clone()
        updates = trains.learner.updates
        trains.learner.close()
        return trained, updates

    pool = RecordedPool()
    captured, updates = parameters(pool)
    wanted, as_many = parameters(None)
    assert updates == as_many > 4
    assert len(pool.graphs) == 1
    torch.testing.assert_close(captured, wanted)


class Counted(TorchDispatchMode):
    """Counts the operations within, as each is a kernel on a GPU, but for views and bare memory."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        bare = name.startswith(("empty", "new_empty", "detach", "unbind", "profiler"))
        self.count += not (function.is_view or bare)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "most"), [("sac", 108), ("sac_fixed", 111), ("sac_choices", 101), ("td3", 101)]
)
def test_an_update_is_no_more_operations_than_it_was(kind, most):
    made = algorithm(kind)
    learner = Learner(made, torch.Generator().manual_seed(0), static=True)
    learner.connect(solo_group())
    counts = []
    for number in range(2):  # of an actor that is delayed every second one
        rows = rows_of(made, number)
        with Counted() as counted:
            learner.repeat(rows)
        counts.append(counted.count)
    assert 50 < max(counts) <= most
