"""Several policies in one batch: each learns what it would alone, of those who are there."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import bodies_roles
import gmi_drl
from bodies_agents import Meadow
from gmi_drl.comm import solo_group
from gmi_drl.placement import (
    A2CConfig,
    IMPALAConfig,
    MAPPOConfig,
    MultiAgentConfig,
    PPOConfig,
    SelfPlayConfig,
    Topology,
    load_config,
    tcg_ex,
)
from gmi_drl.roles.algorithms import Losses, algorithm_class, with_settings
from gmi_drl.roles.algorithms.by_policy import by_policy
from gmi_drl.roles.algorithms.ppo import PPO
from gmi_drl.roles.algorithms.self_play import against_itself
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.envs.agents import AgentSpaces, grouped
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.optimizers.learner import AgentOrder, Learner
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.returns import gae, gae_of_turns
from gmi_drl.roles.role.manager import GMI_manager, GmiContext
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from ranks import run_ranks

TWO = MultiAgentConfig(policies=("dogs", "sheep"), mapping={"wolf_*": "dogs", "*": "sheep"})
CPU = torch.device("cpu")


def algorithm_of(spaces, settings, seed, kind=None):
    kind = kind or algorithm_class(settings)
    generator = torch.Generator().manual_seed(seed)
    network = kind.make_network(settings, spaces, generator)
    normalizers = Normalizers.of(settings, spaces.observation_space.shape[0])
    return kind(settings, kind.make_policy(network, settings), normalizers)


def settings_of(kind, **changes):
    base = {"network": [8], "horizon": 12, "schedule": "constant", "max_grad_norm": 0.5}
    one = {} if kind is A2CConfig else {"minibatches": 1, "epochs": 1}
    return kind(**(base | one | changes))


def batch_of(algorithm, steps, rows, width, come_and_go=True):
    return Batch.allocate(
        steps, rows, width, algorithm.policy, CPU, filled=algorithm.filled,
        bootstrap=algorithm.bootstrap, come_and_go=come_and_go,
    )  # fmt: skip


def gathered(settings, num_env=3, kind=None, **options):
    """An algorithm of two policies, and a horizon that it has sampled."""
    env = make_env(
        "bodies_agents:Meadow", num_env, adapter="pettingzoo", options=options, multi_agent=TWO
    )
    groups = env.groups
    each = {group.policy: algorithm_of(group, settings, n, kind) for n, group in enumerate(groups)}
    algorithm = by_policy(groups, each)
    batch = batch_of(algorithm, settings.horizon, env.num_env, 3)
    Collector(env, algorithm, batch, torch.Generator().manual_seed(1)).collect(1)
    return algorithm, batch, groups


def learned(algorithm, batch):
    learner = Learner(algorithm, torch.Generator().manual_seed(2), batch)
    learner.connect(solo_group())
    learner.update(batch)
    return learner


def test_advantages_of_turns_are_those_of_the_turns_alone():
    g = torch.Generator().manual_seed(0)
    steps, rows, gamma, lam = 40, 6, 0.9, 0.8
    present = torch.rand(steps, rows, generator=g) < 0.5
    reward = torch.randn(steps, rows, generator=g)
    value = torch.randn(steps, rows, generator=g)
    done = (torch.rand(steps, rows, generator=g) < 0.15).float()
    last = torch.randn(rows, generator=g)
    mine = gae_of_turns(reward, value, done, present, last, gamma, lam, torch.empty(steps, rows))
    assert not mine[~present].any()
    for row in range(rows):
        turns = present[:, row].nonzero().squeeze(-1).tolist()
        paid, ended = [], []
        for turn, following in zip(turns, [*turns[1:], steps], strict=True):
            total, over = 0.0, False
            for t in range(turn, following):
                total += 0.0 if over else float(reward[t, row])
                over = over or bool(done[t, row])
            paid.append(total)
            ended.append(float(over))
        alone = gae(
            torch.tensor(paid)[:, None], value[turns, row][:, None],
            torch.tensor(ended)[:, None], last[row : row + 1], gamma, lam,
            torch.empty(len(turns), 1),
        )  # fmt: skip
        assert torch.allclose(mine[turns, row], alone[:, 0], atol=1e-6)


def test_an_order_has_all_who_are_there_alike_and_nobody_else():
    g = torch.Generator().manual_seed(0)
    present = torch.rand(10, 9, generator=g) < 0.7
    groups, parts = [slice(0, 3), slice(3, 9)], 2
    order = torch.zeros(90, dtype=torch.int64)
    AgentOrder(present, groups, parts).draw(g, order)
    counts = torch.bincount(order, minlength=90).view(10, 9)
    assert not counts[~present].any()
    for group in groups:
        its = counts[:, group][present[:, group]]
        assert its.max() - its.min() <= 1
        assert its.min() >= 1
    for part in order.view(parts, -1):  # the rows of a group are in the same place in each
        assert (part[:15] % 9 < 3).all()
        assert (part[15:] % 9 >= 3).all()


def test_an_order_of_all_is_a_permutation_and_another_each_time():
    order, generator = torch.zeros(24, dtype=torch.int64), torch.Generator().manual_seed(0)
    agents = AgentOrder(torch.ones(4, 6, dtype=torch.bool), [slice(0, 6)], 3)
    drawn = []
    for _ in range(2):
        agents.draw(generator, order)
        drawn.append(order.tolist())
    assert sorted(drawn[0]) == sorted(drawn[1]) == list(range(24))
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("kind", [PPOConfig, A2CConfig])
def test_each_policy_learns_what_it_would_alone(kind):
    settings = settings_of(kind)
    # One sheep, which leaves after two of six steps; so all others are there as often as they are
    # drawn: a third of the rows, which the steps are a multiple of.
    algorithm, batch, groups = gathered(settings, sheep=1, num_env=3)
    expected = {}
    for number, (group, part) in enumerate(zip(groups, algorithm.policy.parts(batch), strict=True)):
        alone = algorithm_of(group, settings, number)
        mine = batch_of(alone, settings.horizon, 3, group.observation_space.shape[0])
        mine.columns["raw_observation"].copy_(
            part["raw_observation"][..., : group.observation_space.shape[0]]
        )
        for name in ("reward", "ended", "done", "present"):
            mine.columns[name].copy_(part[name])
        for name in ("observation", "action", "parameters", "value", "log_prob"):
            mine.columns[name].copy_(part[name])
        mine.bootstrap["value"].copy_(part.bootstrap["value"])
        learner = learned(alone, mine)
        its = learner.parameters.packed(learner.parameters.data.detach())
        expected[group.policy] = its, alone.normalizers
    learner = learned(algorithm, batch)
    state, flat = learner.state_dict(), algorithm.policy.network
    for name, (parameters, normalizers) in expected.items():
        got = torch.cat([p.detach().flatten() for _, p in sorted(flat[name].named_parameters())])
        assert torch.allclose(got, parameters, atol=1e-6)
        moments = normalizers.observations.state_dict()["moments"]
        assert torch.allclose(state["observation_normalizer"][name]["moments"], moments)


def test_what_is_written_of_who_is_not_there_changes_nothing():
    settings = settings_of(PPOConfig, minibatches=2, epochs=2)
    results = []
    for junk in (0.0, 1.0, -5.0):
        algorithm, batch, _ = gathered(settings)
        absent = ~batch["present"]
        assert absent.any()
        for name in ("raw_observation", "observation", "action", "value", "log_prob"):
            batch[name][absent] += junk
        learner = learned(algorithm, batch)
        results.append([learner.parameters.data.detach().clone(), learner.stats()["kl"]])
    for parameters, kl in results[1:]:
        assert torch.equal(parameters, results[0][0])
        assert kl == results[0][1]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("there", [(24, 0), (12, 4)])
def test_gmis_with_unlike_numbers_of_agents_are_one_gmi_with_all_of_them(there, static):
    alone = bodies_roles.update_of_two_policies(solo_group(), there)
    for gmi in run_ranks(bodies_roles.update_of_two_policies, 2, there, static):
        for name, expected in alone.items():
            assert np.allclose(gmi[name], expected, rtol=1e-4, atol=1e-6), name
    assert not np.allclose(alone["sheep's parameters"], alone["sheep's parameters before"])


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("there", [(24, 0), (12, 4)])
def test_gmis_count_by_the_agents_that_one_shared_policy_has_in_them(there, static):
    expected, kl = bodies_roles.update_of_one_policy(solo_group(), there)
    for parameters, its_kl in run_ranks(bodies_roles.update_of_one_policy, 2, there, static):
        assert np.allclose(parameters, expected, rtol=1e-4, atol=1e-6)
        assert its_kl == pytest.approx(kl, rel=1e-3)


@pytest.mark.parametrize("static", [False, True])
def test_a_policy_whose_agents_are_nowhere_takes_no_step(static):
    its = bodies_roles.update_of_two_policies(solo_group(), (0, 0), static)
    for name in ("parameters", "step", "exp_avg", "exp_avg_sq"):
        assert np.array_equal(its[f"sheep's {name}"], its[f"sheep's {name} before"]), name
    assert its["sheep/kl"] == 0.0
    assert its["dogs' step"] > its["sheep's step"]


def test_actions_and_values_are_those_of_each_policy():
    algorithm, batch, groups = gathered(settings_of(PPOConfig))
    policy, rows = algorithm.policy, batch["raw_observation"].shape[1]
    seen = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    dogs, sheep = (algorithm.algorithms[name].policy for name in ("dogs", "sheep"))
    mode, value = policy.mode(seen), policy.value(seen)
    assert torch.equal(mode[:3], dogs.mode(seen[:3]))
    assert torch.equal(mode[3:, :1], sheep.mode(seen[3:, :2]))
    assert not mode[3:, 1:].any()
    assert torch.equal(value, torch.cat([dogs.value(seen[:3]), sheep.value(seen[3:, :2])]))
    assert [len(group.agents) for group in groups] == [1, 2]


def test_turns_whose_outcome_is_not_known_are_left_out():
    env = make_env("bodies_agents:Countdown", 1, adapter="pettingzoo")
    settings = settings_of(PPOConfig, horizon=2)
    algorithm = algorithm_of(env, settings, 0)
    batch = batch_of(algorithm, 2, 2, 1)
    collector = Collector(env, algorithm, batch, torch.Generator().manual_seed(0))
    collector.collect(1)  # first and second have taken one or two each; it goes on
    assert batch["present"].tolist() == [[True, False], [False, False]]
    assert not batch["ended"].any()


def test_what_follows_the_turn_before_one_that_is_left_out_is_that_one():
    env = make_env("bodies_agents:Toll", 1, adapter="pettingzoo")
    settings = settings_of(PPOConfig, horizon=3)
    algorithm = algorithm_of(env, settings, 0)
    batch = batch_of(algorithm, 3, 2, 1)
    Collector(env, algorithm, batch, torch.Generator().manual_seed(0)).collect(1)
    # First, second, first: the outcome of the last turn is known when it is the first's again.
    assert batch["present"].tolist() == [[True, False], [False, True], [False, False]]
    value, moments = batch["value"], torch.zeros(algorithm.num_batch_moments, dtype=torch.float64)
    algorithm.measure(batch, moments)
    algorithm.settings = settings.model_copy(update={"normalize_advantage": False})
    algorithm.postprocess(batch, moments[None])
    following = value[2, 0]  # not that of somebody who is not there and sees nothing
    assert not torch.isclose(following, algorithm.policy.value(torch.zeros(1, 1))[0], atol=1e-3)
    expected = 1.0 + settings.gamma * following - value[0, 0]
    assert batch["advantage"][0, 0] == pytest.approx(expected.item(), abs=1e-5)


def test_a_policy_may_have_the_name_of_a_method():
    settings = settings_of(PPOConfig)
    spaces = {agent: AgentSpaces(Box(0, 1, (1,)), Discrete(2)) for agent in ("train", "car")}
    config = MultiAgentConfig(policies=("train", "car"), mapping={"train": "train", "*": "car"})
    groups, _ = grouped("traffic", spaces, config)
    each = {group.policy: algorithm_of(group, settings, 0) for group in groups}
    network = by_policy(groups, each).policy.network
    assert {name.partition(".")[0] for name, _ in network.named_parameters()} == {"train", "car"}
    assert network.train() is network
    network["train"].load_state_dict(network["car"].state_dict())


def test_agents_of_many_policies_are_in_the_order_of_these():
    meadow = Meadow(sheep=3)
    spaces = {
        agent: AgentSpaces(meadow.observation_space(agent), meadow.action_space(agent))
        for agent in meadow.possible_agents
    }
    mapping = {"sheep_1": "b", "sheep_*": "c", "wolf_0": "a"}
    policies = MultiAgentConfig(policies=("a", "b", "c"), mapping=mapping)
    groups, faults = grouped("Meadow", spaces, policies)
    assert not faults
    assert [(group.policy, group.agents) for group in groups] == [
        ("a", ("wolf_0",)), ("b", ("sheep_1",)), ("c", ("sheep_0", "sheep_2"))
    ]  # fmt: skip


def central(num_env=2, **changes):
    """MAPPO in an environment of three who are paid what the next one sees; and its collector."""
    settings = settings_of(MAPPOConfig, gamma=0.0, horizon=32, learning_rate=1e-2, **changes)
    env = make_env("bodies_agents:Envy", num_env, adapter="pettingzoo", options={"count": 3})
    algorithm = algorithm_of(env, settings, 0)
    batch = batch_of(algorithm, settings.horizon, env.num_env, 1)
    return algorithm, batch, Collector(env, algorithm, batch, torch.Generator().manual_seed(0))


def test_what_all_see_begins_with_what_the_agent_itself_sees():
    algorithm, _, _ = central()
    seen = torch.tensor([[1.0], [2.0], [10.0], [20.0], [100.0], [200.0]])  # of two environments
    joint = algorithm.policy.network.joint(seen)
    assert joint[:3].tolist() == [[1, 10, 100], [2, 20, 200], [10, 100, 1]]


def test_a_central_value_is_of_all_and_actions_are_of_what_each_sees():
    algorithm, batch, collector = central()
    collector.collect(1)
    policy, one = algorithm.policy, torch.zeros(6, 1)
    other = one.clone()
    other[2] = 5.0  # what agent 1 sees in environment 0
    changed = policy.value(other) != policy.value(one)
    assert changed.tolist() == [True, False, True, False, True, False]
    parameters = policy.network.parameters_of
    assert (parameters(other) != parameters(one)).any(1).tolist() == [i == 2 for i in range(6)]
    # A minibatch values its rows as they were when they were sampled.
    flat = batch.flat()
    head = policy.network_for(flat)(flat["observation"])
    values = algorithm.normalizers.values.denormalize(head[:, -1])
    assert torch.allclose(values, flat["value"], atol=1e-5)
    assert torch.allclose(head[:, :-1], flat["parameters"], atol=1e-6)


@pytest.mark.slow
def test_a_central_value_knows_what_an_agent_alone_cannot():
    algorithm, batch, collector = central(num_env=8, minibatches=2, epochs=4)
    learner = Learner(algorithm, torch.Generator().manual_seed(2), batch)
    learner.connect(solo_group())
    for iteration in range(1, 13):
        collector.collect(iteration)
        learner.update(batch)
        stats = learner.stats()
    # Half the variance of a fair coin, 0.5, is what a value of its own observation leaves.
    assert stats["value_loss"] < 0.05


@pytest.mark.parametrize("what", ["Meadow", "Countdown", "Envy"])
def test_the_way_of_a_gpu_gathers_the_same(what):
    gathered_by = []
    for static in (False, True):
        kind = MAPPOConfig if what == "Envy" else PPOConfig
        settings = settings_of(kind, horizon=9)
        policies = TWO if what == "Meadow" else None
        env = make_env(
            f"bodies_agents:{what}", 2, adapter="pettingzoo", seed=3, multi_agent=policies
        )
        if len(env.groups) > 1:
            each = {its.policy: algorithm_of(its, settings, n) for n, its in enumerate(env.groups)}
            algorithm = by_policy(env.groups, each)
        else:
            algorithm = algorithm_of(env, settings, 0)
        batch = batch_of(algorithm, 9, env.num_env, env.observation_space.shape[0])
        generator = torch.Generator().manual_seed(1)
        collector = Collector(env, algorithm, batch, generator, static=static)
        for iteration in (1, 2):
            collector.collect(iteration)
            _, seen = collector.read()
        gathered_by.append((batch, seen, collector.of_groups))
    (batch, seen, of_groups), (other, its_seen, its_groups) = gathered_by
    assert seen == its_seen
    assert of_groups == its_groups
    for name, column in batch.columns.items():
        assert torch.allclose(column, other[name], atol=1e-6), name
    assert torch.allclose(batch.bootstrap["value"], other.bootstrap["value"], atol=1e-6)


def test_a_policy_whose_agents_never_come_learns_nothing():
    algorithm, batch, _ = gathered(settings_of(PPOConfig, entropy_coef=0.1))
    dogs, _ = algorithm.policy.rows(batch["present"].shape[1])
    batch["present"][:, dogs] = False  # as where they come later than in this horizon
    before = {name: p.detach().clone() for name, p in algorithm.policy.network.named_parameters()}
    learned(algorithm, batch)
    changed = {
        name.partition(".")[0]
        for name, p in algorithm.policy.network.named_parameters()
        if not torch.equal(p, before[name])
    }
    assert changed == {"sheep"}
    # Whoever comes is learned from again.
    batch["present"].fill_(True)
    learned(algorithm, batch)
    dog = next(iter(algorithm.policy.network["dogs"].parameters()))
    assert not torch.equal(dog, before["dogs.trunk.0.weight"])


def test_algorithms_of_segments_learn_from_no_rows_of_agents_who_come_and_go():
    settings = IMPALAConfig(network=[8], horizon=4)
    env = make_env("bodies_agents:Meadow", 1, adapter="pettingzoo", multi_agent=TWO)
    each = {group.policy: algorithm_of(group, settings, 0) for group in env.groups}
    with pytest.raises(RoleError, match="IMPALA learns from whole segments, and 2 policies"):
        by_policy(env.groups, each)
    env = make_env("bodies_agents:Countdown", 2, adapter="pettingzoo")
    algorithm = algorithm_of(env, settings, 0)
    with pytest.raises(RoleError, match=r"self_play: IMPALA learns from no rows"):
        against_itself(algorithm, env, SelfPlayConfig(snapshots=1))
    batch = batch_of(algorithm, 4, env.num_env, 1)
    Collector(env, algorithm, batch, torch.Generator().manual_seed(0)).collect(1)
    with pytest.raises(RoleError, match=r"IMPALA .* or they take turns;.*algorithm\.name: ppo"):
        learned(algorithm, batch)


def test_a_horizon_in_which_no_turn_ends_is_told():
    env = make_env("bodies_agents:Countdown", 2, adapter="pettingzoo")
    algorithm = algorithm_of(env, settings_of(PPOConfig, horizon=1), 0)
    batch = batch_of(algorithm, 1, env.num_env, 1)
    collector = Collector(env, algorithm, batch, torch.Generator().manual_seed(0))
    with pytest.raises(RoleError, match=r"algorithm\.horizon=1: agents take turns, .* twice as"):
        collector.collect(1)


@pytest.fixture
def update_by():
    """Has a role of some class sample once, and learn of it; returns what it reports."""

    def update(role_class, **multi_agent):
        env = {"id": "bodies_agents:Meadow", "adapter": "pettingzoo", "num_env": 4}
        env["options"] = {} if "policies" in multi_agent else {"wolves": 2, "sheep": 0}
        algorithm = settings_of(PPOConfig).model_dump(include={"network", "horizon", "minibatches"})
        config = load_config(
            {"version": 1, "env": env, "algorithm": algorithm, "multi_agent": multi_agent}
        )
        layout = tcg_ex(Topology.from_cores(range(1)), 1, 4)
        GMI_manager.bind(GmiContext(0, layout, with_settings(config)))
        role = role_class(0, "simulator+agent+trainer", 0)
        env = role.make_env()
        role.build(env)
        batch = role.batch(env.num_env)
        role.collector(env, batch).collect(1)
        return learned(role.algorithm, batch).stats()

    yield update
    GMI_manager.bind(None)


class Calm(gmi_drl.Holistic):
    loss_stats = ("calm",)

    def loss(self, *args):
        losses = super().loss(*args)
        return dataclasses.replace(losses, stats={**losses.stats, "calm": losses.total.detach()})


class Bare(gmi_drl.Holistic):
    def loss(self, *args):
        return super().loss(*args).total


class Silent(gmi_drl.Holistic):
    def loss(self, *args):
        return Losses(super().loss(*args).total, {})


POLICIES = TWO.model_dump(exclude={"self_play"})
ITSELF = {"self_play": {"snapshots": 1}}


@pytest.mark.parametrize("multi_agent", [POLICIES, ITSELF])
def test_what_a_roles_loss_reports_is_reported_of_several_agents(update_by, multi_agent):
    stats = update_by(Calm, **multi_agent)
    assert stats["calm"]
    if "policies" in multi_agent:
        assert stats["calm"] == pytest.approx((stats["dogs/calm"] + stats["sheep/calm"]) / 2)


@pytest.mark.parametrize("multi_agent", [POLICIES, ITSELF])
def test_a_wrong_loss_of_a_role_is_told_by_its_name(update_by, multi_agent):
    with pytest.raises(RoleError, match=r"Bare\.loss gave a Tensor; must give .*Losses"):
        update_by(Bare, **multi_agent)
    with pytest.raises(RoleError, match=r"Silent\.loss gave stats none; kl, .* lack"):
        update_by(Silent, **multi_agent)


@pytest.mark.parametrize("together", ["several policies", "self-play"])
def test_who_explores_is_numbered_among_the_rows_of_its_policy(together):
    several = together == "several policies"
    env = make_env(
        "bodies_agents:Meadow", 3, adapter="pettingzoo", multi_agent=TWO if several else None,
        options={} if several else {"wolves": 2, "sheep": 0},
    )  # fmt: skip
    settings, told = settings_of(PPOConfig), []
    if several:  # one dog and two sheep in each environment
        each = {group.policy: algorithm_of(group, settings, 0) for group in env.groups}
        algorithm, members = by_policy(env.groups, each), list(each.values())
    else:
        members = [algorithm_of(env, settings, 0)]
        algorithm = against_itself(members[0], env, SelfPlayConfig(snapshots=1))
    for member in members:
        member.explore_as = lambda numbers, total: told.append((numbers, total))
    agents = 3 if several else 2  # this GMI has environments 5 to 7 of 10
    algorithm.explore_as(range(5 * agents, 8 * agents), 10 * agents)
    wanted = [(range(5, 8), 10), (range(10, 16), 20)]
    assert told == (wanted if several else wanted[1:])


class SlowTrunk(PPO):
    """Trains what its layers share at a tenth of the rate, and a policy of `frozen` not at all."""

    frozen = False

    @property
    def learning_rates(self):
        parts = dict(self.policy.network.named_children()) | dict(
            self.policy.network.named_parameters(recurse=False)
        )
        rate = self.settings.learning_rate
        return {name: rate / 10 if name == "trunk" else rate for name in parts}

    def losses(self, batch):
        losses = super().losses(batch)
        return dataclasses.replace(losses, groups=("trunk",)) if self.frozen else losses


@pytest.mark.parametrize("together", ["several policies", "self-play"])
def test_parameter_groups_of_an_algorithm_are_those_of_its_policy_among_others(together):
    settings = settings_of(PPOConfig, learning_rate=1e-3)
    if together == "several policies":
        algorithm, batch, _ = gathered(settings, kind=SlowTrunk)
        algorithm.algorithms["sheep"].frozen = True
        prefix = "dogs."
    else:
        env = make_env("bodies_agents:Countdown", 2, adapter="pettingzoo")
        algorithm, prefix = algorithm_of(env, settings, 0, SlowTrunk), ""
        algorithm = against_itself(algorithm, env, SelfPlayConfig(snapshots=1))
        batch = Batch.allocate(
            settings.horizon, env.num_env, 1, algorithm.policy, CPU, filled=algorithm.filled,
            recorded=algorithm.recorded, bootstrap=algorithm.bootstrap, come_and_go=True,
        )  # fmt: skip
        Collector(env, algorithm, batch, torch.Generator().manual_seed(1)).collect(1)
    before = {name: p.detach().clone() for name, p in algorithm.policy.network.named_parameters()}
    learned(algorithm, batch)
    moved = {
        name: (p.detach() - before[name]).abs().max().item()
        for name, p in algorithm.policy.network.named_parameters()
        if p.numel()
    }
    # The first step of Adam is as long as the learning rate.
    assert max(d for name, d in moved.items() if name.startswith(f"{prefix}trunk")) < 2e-4
    others = [d for name, d in moved.items() if not name.startswith(f"{prefix}trunk")]
    assert max(others) > 5e-4
    if prefix:
        assert moved["sheep.trunk.0.weight"] > 0
        rest = [n for n in moved if n.startswith("sheep.") and not n.startswith("sheep.trunk")]
        assert not any(moved[name] for name in rest)
