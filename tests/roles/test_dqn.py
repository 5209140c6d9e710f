"""DQN: its loss, its schedule, its target network, and the replay that it learns from."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import bodies_dqn as bodies
from gmi_drl.comm import solo_group
from gmi_drl.placement import ConfigError, Topology, check, load_config
from gmi_drl.placement.config.algorithms import DQNConfig
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.errors import NotFiniteError, PolicyError
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.q_network import QPolicy
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from ranks import run_ranks
from toy_env import ToyEnv


def dqn(**settings):
    settings = DQNConfig(network=[16], **settings)
    algorithm = DQN(settings, QPolicy(bodies.network()), Normalizers(None, None))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.normal_(generator=generator)
    return algorithm


def minibatch(algorithm):
    whole, its = bodies.experience(torch.Generator().manual_seed(2), 6, 7), algorithm.settings
    over = whole["terminated"] if its.bootstrap_time_limit else whole["done"].bool()
    whole["discount"].fill_(its.gamma).masked_fill_(over, 0.0)
    flat = Batch({name: column.flatten(0, 1) for name, column in whole.columns.items()})
    return flat.transitions(None)


# The loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_the_loss_is_the_one_that_is_written_out(double, bootstrap):
    algorithm = dqn(double=double, bootstrap_time_limit=bootstrap, gamma=0.9)
    batch = minibatch(algorithm)
    given = algorithm.losses(batch)
    network, target = algorithm.policy.network, algorithm.target
    wanted, errors = 0.0, []
    for row in range(len(batch["reward"])):
        at = {name: column[row] for name, column in batch.columns.items()}
        with torch.no_grad():
            following = target(at["next_observation"])
            chooser = network(at["next_observation"]) if double else following
            over = bool(at["terminated"]) if bootstrap else bool(at["done"])
            goal = at["reward"] + (0.0 if over else 0.9 * following[chooser.argmax()])
        error = network(at["observation"])[int(at["action"][0])] - goal
        errors.append(abs(float(error.detach())))
        wanted = wanted + (0.5 * error**2 if errors[-1] < 1 else error.abs() - 0.5)
    wanted = wanted / len(errors)
    assert min(errors) < 1 < max(errors)
    assert given.total.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert given.extras["priorities"].tolist() == pytest.approx(errors, rel=1e-4, abs=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(given.total, list(network.parameters())),
        torch.autograd.grad(wanted, list(network.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_each_row_counts_by_its_weight():
    algorithm = dqn()
    batch = minibatch(algorithm)
    batch.columns["weight"] = torch.ones(len(batch["reward"]))
    alike = float(algorithm.losses(batch).total.detach())
    rows = []
    for row in range(len(batch["reward"])):
        batch["weight"].zero_()[row] = 1.0
        rows.append(float(algorithm.losses(batch).total.detach()))
    del batch.columns["weight"]
    assert alike == pytest.approx(float(algorithm.losses(batch).total.detach()))
    assert sum(rows) == pytest.approx(alike, rel=1e-5)
    assert len({round(loss, 6) for loss in rows}) > len(rows) // 2


def test_noise_is_drawn_by_the_learner_s_generator_for_each_update():
    trains, drawn = bodies.trains_of(7), []
    trains.learner.connect(solo_group())

    def draw_noise(batch, generator):
        drawn.append(torch.rand(len(batch["reward"]), generator=generator))

    trains.learner.algorithm.draw_noise = draw_noise
    for _ in range(3):
        trains.update(bodies.experience(torch.Generator().manual_seed(1)))
    assert len(drawn) == trains.learner.updates > 1
    assert not torch.equal(drawn[0], drawn[1])


def test_what_was_cut_goes_on_and_what_has_ended_does_not():
    algorithm = dqn()
    batch = minibatch(algorithm)
    before = algorithm.losses(batch).extras["priorities"]
    with torch.no_grad():
        algorithm.target.head.bias.add_(100.0)
    moved = (algorithm.losses(batch).extras["priorities"] - before).abs() > 1
    assert torch.equal(moved, ~batch["terminated"])
    assert (batch["done"].bool() & ~batch["terminated"]).any()


# Acting -------------------------------------------------------------------------------------------


def test_epsilon_falls_with_the_steps_of_all_and_stays():
    algorithm = dqn(epsilon=0.1, epsilon_steps=1000)
    found = []
    for steps in (0, 500, 1000, 5000):
        algorithm.before_sampling(steps)
        found.append(float(algorithm.policy.epsilon))
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_environments_explore_as_actors_of_ape_x_do():
    algorithm = dqn(epsilon=0.4, epsilon_alpha=7.0, epsilon_steps=1000)
    algorithm.explore_as(range(2, 5), 6)
    for steps, left in ((0, 1.0), (500, 0.5), (1000, 0.0)):
        algorithm.before_sampling(steps)
        last = [0.4 ** (1 + 7 * i / 5) for i in (2, 3, 4)]
        wanted = [its + (1 - its) * left for its in last]
        assert algorithm.policy.epsilon.tolist() == pytest.approx(wanted)
    alone = dqn(epsilon=0.4, epsilon_alpha=7.0)
    alone.explore_as(range(1), 1)
    alone.before_sampling(10**9)
    assert alone.policy.epsilon.tolist() == pytest.approx([0.4])


def test_each_environment_has_a_share_of_its_own():
    policy, rows = QPolicy(bodies.network()), 4_000
    policy.epsilon = torch.tensor([0.0, 0.9]).repeat_interleave(rows)
    observation = torch.randn(1, bodies.WIDTH).expand(2 * rows, -1)
    noise = torch.rand(2 * rows, 2, generator=torch.Generator().manual_seed(0))
    step = {"observation": observation, "noise": noise, "action": torch.zeros(2 * rows, 1)}
    with torch.no_grad():
        policy.act(step)
        greedy = policy.mode(observation)
    alike = (step["action"] == greedy).float().view(2, rows).mean(1)
    assert alike.tolist() == pytest.approx([1.0, 0.1 + 0.9 / bodies.ACTIONS], abs=0.03)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_share_of_the_actions_is_drawn_among_all(epsilon):
    policy, rows = QPolicy(bodies.network()), 30_000
    policy.epsilon.fill_(epsilon)
    observation = torch.randn(1, bodies.WIDTH).expand(rows, -1)
    noise = torch.rand(rows, 2, generator=torch.Generator().manual_seed(0))
    step = {"observation": observation, "noise": noise, "action": torch.zeros(rows, 1)}
    with torch.no_grad():
        policy.act(step)
        greedy = int(policy.mode(observation)[0])
    shares = torch.bincount(step["action"][:, 0].long(), minlength=3) / rows
    wanted = torch.full((3,), epsilon / 3)
    wanted[greedy] += 1 - epsilon
    torch.testing.assert_close(shares, wanted, rtol=0, atol=0.01)


@pytest.mark.parametrize("static", [False, True])
def test_what_a_step_led_to_is_recorded_and_rewards_are_left_as_they_are(static):
    env, policy = ToyEnv(2, 3), QPolicy(nn.Linear(2, 2))
    env.action_space = spaces.Discrete(2)
    batch = Batch.allocate(
        4, 2, 2, policy, env.device, recorded=DQN.recorded, bootstrap=DQN.bootstrap
    )  # fmt: skip
    algorithm = DQN(DQNConfig(gamma=0.9), policy, Normalizers(None, None))
    Collector(env, algorithm, batch, torch.Generator(), static=static).collect(0)
    assert batch["reward"][:, 0].tolist() == [1, 2, 3, 1]
    assert batch["next_observation"][:, 0, 1].tolist() == [1, 2, 3, 1]
    assert batch["raw_observation"][:, 0, 1].tolist() == [0, 1, 2, 0]
    assert batch["done"][:, 0].tolist() == [0, 0, 1, 0]
    assert not batch["terminated"].any()


@pytest.mark.parametrize("static", [False, True])
def test_nan_that_an_episode_was_cut_at_is_not_kept(static):
    env, policy = ToyEnv(2, 3, nan_at=(2, 1), nan_in="final"), QPolicy(nn.Linear(2, 2))
    env.action_space = spaces.Discrete(2)
    batch = Batch.allocate(
        4, 2, 2, policy, env.device, recorded=DQN.recorded, bootstrap=DQN.bootstrap
    )
    algorithm = DQN(DQNConfig(gamma=0.9), policy, Normalizers(None, None))
    collector = Collector(env, algorithm, batch, torch.Generator(), static=static)

    def collect():
        collector.collect(0)
        collector.read()

    with pytest.raises(NotFiniteError, match=r"final observation of environment 1 .* step 2"):
        collect()


def test_what_was_seen_where_an_episode_ended_counts_for_nothing():
    algorithm = dqn()
    batch = minibatch(algorithm)
    wanted = float(algorithm.losses(batch).total.detach())
    batch["next_observation"][batch["terminated"]] = torch.nan
    assert batch["terminated"].any()
    assert float(algorithm.losses(batch).total.detach()) == pytest.approx(wanted)


def test_only_choices_and_networks_of_their_size_are_taken():
    env = ToyEnv(1, 3)
    with pytest.raises(EnvSpecError, match="dqn takes Discrete"):
        DQN.make_network(DQNConfig(), env, None)
    env.action_space = spaces.Discrete(2)
    DQN.check_network(nn.Linear(2, 2), "mine", 2, env, DQNConfig())
    for network, why in (
        (nn.Linear(2, 3), "the value of each action"),
        (nn.Linear(3, 2), "raised RuntimeError"),
        (nn.Linear(2, 2).double(), "float32"),
        (5, "no torch.nn.Module"),
    ):
        with pytest.raises(PolicyError, match=why):
            DQN.check_network(network, "mine", 2, env, DQNConfig())


# The target network -------------------------------------------------------------------------------


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_the_target_is_the_network_of_every_so_many_updates():
    trains = bodies.trains_of(0, start=0, updates_per_row=0.05)  # one update in each round
    trains.learner.connect(solo_group())
    algorithm, generator = trains.learner.algorithm, torch.Generator().manual_seed(1)
    before = weights(algorithm.target)
    for update in range(1, 7):
        trains.update(bodies.experience(generator))
        now, target = weights(algorithm.policy.network), weights(algorithm.target)
        if update % 3 == 0:
            before = now
        assert torch.equal(target, before)
        assert update % 3 == 0 or not torch.equal(now, target)


def test_a_checkpoint_keeps_the_target():
    one, other = dqn(), DQN(DQNConfig(), QPolicy(bodies.network()), Normalizers(None, None))
    other.load_state_dict(one.state_dict())
    assert torch.equal(weights(one.target), weights(other.target))


# Together -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_gmis_with_a_shard_each_hold_the_same_bits(sampler):
    one, other = run_ranks(bodies.rounds, 2, 4, sampler)
    for name in ("parameters", "target", "mean"):
        assert np.array_equal(one[name], other[name])
    assert one["stats"] == other["stats"]
    assert one["metrics"] == {"updates": 12, "replay_rows": 50}
    assert not np.array_equal(
        one["parameters"], bodies.rounds(solo_group(), 4, sampler)["parameters"]
    )


def test_a_round_without_an_update_has_no_losses_and_no_nan():
    found = bodies.rounds(solo_group(), 1)
    assert found["stats"] == {
        "q_loss": None, "q_mean": None, "td_error": None, "learning_rate": pytest.approx(1e-2),
        "noise_scale": None,
    }  # fmt: skip
    assert found["metrics"] == {"updates": 0, "replay_rows": 20}


def test_rounds_that_are_gone_on_with_give_the_same_bits():
    def trained(trains, generator, count):
        for _ in range(count):
            trains.update(bodies.experience(generator))
        return trains.learner.parameters.data.detach().clone()

    data, whole = torch.Generator().manual_seed(9), bodies.trains_of(0)
    whole.learner.connect(solo_group())
    trained(whole, data, 3)
    resumed = bodies.trains_of(5)
    resumed.learner.connect(solo_group())
    resumed.learner.load_state_dict(whole.learner.state_dict())
    resumed.load_state_dict(whole.state_dict())
    resumed.load_own_state(whole.own_state())
    resumed.learner.generator.set_state(whole.learner.generator.get_state())
    again = torch.Generator()
    again.set_state(data.get_state())
    assert torch.equal(trained(whole, data, 3), trained(resumed, again, 3))


# Its settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"clip": 0.1}, "clip"),
        ({"minibatches": 4}, "minibatches"),
        ({"optimizer": "all_reduce"}, "runs under replay"),
    ],
)
def test_what_it_cannot_be_told_is_said(algorithm, message):
    section = {"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"} | algorithm}
    with pytest.raises(ConfigError, match=message):
        load_config(section)


def test_steps_may_be_written_as_people_write_a_million():
    section = {"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"}}
    its = load_config(section, ["algorithm.epsilon_steps=1e6", "algorithm.target_every=1e3"])
    assert (its.algorithm.epsilon_steps, its.algorithm.target_every) == (1_000_000, 1_000)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"replay_start": 500, "replay_capacity": 100}, "must be below replay_capacity=100"),
        (
            {"n_step": 200, "replay_capacity": 1_500},
            "must hold n_step=200 steps of 64 environments",
        ),
        (
            {"batch_size": 9_000},
            "must be at most 1024, the rows that are there at the first update",
        ),
    ],
)
def test_what_could_never_be_is_a_fault(settings, rule):
    section = {"version": 1, "env": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"} | settings}
    (fault,) = check(load_config(section), Topology.from_cores(range(2)))
    assert rule in str(fault)
