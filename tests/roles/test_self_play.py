"""A policy against snapshots of itself: who acts, who learns, how it is rated, what is kept."""

import pytest
import torch

from batches import algorithm_of
from device_only import RecordedPool
from gmi_drl.comm import solo_group
from gmi_drl.placement import PPOConfig, SelfPlayConfig
from gmi_drl.roles.algorithms import algorithm_class
from gmi_drl.roles.algorithms.self_play import against_itself, league_faults
from gmi_drl.roles.envs import EnvSpecError, make_env
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector

SETTINGS = PPOConfig(network=[8], horizon=8, minibatches=2, epochs=2, schedule="constant")


def made(num_env=8, snapshots=2, every=1, seed=0, what="Countdown", horizon=8, **options):
    """Two who take turns, one policy, a league; and the collector of their games."""
    width = 3 if what == "Meadow" else 1
    env = make_env(f"bodies_agents:{what}", num_env, adapter="pettingzoo", options=options)
    generator = torch.Generator().manual_seed(seed)
    network = algorithm_class(SETTINGS).make_network(SETTINGS, env, generator)
    algorithm = algorithm_of(network, SETTINGS, Normalizers.of(SETTINGS, width))
    league = against_itself(algorithm, env, SelfPlayConfig(snapshots=snapshots, every=every))
    batch = Batch.allocate(
        horizon, env.num_env, width, league.policy, torch.device("cpu"),
        filled=league.filled, recorded=league.recorded, bootstrap=league.bootstrap,
        come_and_go=True,
    )  # fmt: skip
    return league, batch, Collector(env, league, batch, torch.Generator().manual_seed(1))


def spoil(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(7))


def test_seats_and_snapshots_go_round():
    policy = made(num_env=6)[0].policy
    assert policy.learns(12, torch.device("cpu")).view(2, 6).tolist() == [
        [True, False] * 3, [False, True] * 3
    ]  # fmt: skip
    assert policy.opponent(12, torch.device("cpu")).tolist() == [0, 0, 1, 1, 0, 0]


def test_snapshots_act_for_the_others_as_they_were():
    league, batch, _ = made()
    policy, before = league.policy, torch.randn(16, 1, generator=torch.Generator().manual_seed(0))
    wanted = policy.network(before).detach().clone()
    spoil(policy.network)
    step = batch.steps()[0]
    step["observation"].copy_(before)
    step["raw_observation"].copy_(before)
    with torch.no_grad():
        policy.act(step)
    mine = policy.learns(16, torch.device("cpu"))
    assert torch.allclose(step["head"][~mine], wanted[~mine])
    assert torch.allclose(step["head"][mine], policy.network(before)[mine])
    assert not torch.allclose(step["head"][mine], wanted[mine])


def test_only_what_it_did_itself_is_learned_from():
    league, batch, collector = made()
    learner = Learner(league, torch.Generator().manual_seed(2), batch)
    learner.connect(solo_group())
    league.before_sampling(0)
    collector.collect(1)
    acted = batch["present"].clone()
    learner.update(batch)
    mine = league.policy.learns(16, torch.device("cpu"))
    assert acted[:, ~mine].any()
    assert torch.equal(batch["present"], acted & mine)
    assert learner.state_dict()["observation_normalizer"]["moments"][0] == (acted & mine).sum()


def play(league, batch, paid, over=1.0):
    """One step of games in which the first agents were paid `paid`, and the second the opposite."""
    batch["paid"].zero_()
    batch["done"].zero_()
    batch["present"].fill_(True)
    batch["paid"][0] = torch.cat([paid, -paid])
    batch["done"][0] = over
    moments = torch.zeros(1, league.num_batch_moments, dtype=torch.float64)
    league.measure(batch, moments[0])
    league.learn_batch_moments(moments)
    return moments[0, -4:].tolist()


def test_games_are_scored_by_who_was_paid_more_and_ratings_follow():
    league, batch, _ = made(num_env=4)
    # It sits first in environments 0 and 2, of which snapshot 0 has 0 and 1: it wins one game
    # against that and draws one; it loses one against the other, and wins one.
    games = play(league, batch, torch.tensor([1.0, 0.0, -1.0, -1.0]))
    assert games == [2, 2, 1.5, 1.0]
    assert float(league._rating) == pytest.approx(32 * (2.5 - 2) / 4)
    assert float(league._score) == 2.5 / 4
    # Of a game that goes on nothing is said, and what was paid counts when it is over.
    wins = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert play(league, batch, wins, over=0.0) == [0, 0, 0, 0]
    assert float(league._score) == 2.5 / 4
    assert play(league, batch, torch.zeros(4)) == [2, 2, 2, 2]
    assert float(league._rating) > 4


def test_games_of_agents_who_never_come_are_over_when_the_others_have_left():
    league, batch, _ = made(num_env=3, snapshots=1, what="Matching", count=3)
    batch["paid"].zero_()
    batch["done"].zero_()
    there = batch["present"].fill_(True).view(8, 3, 3)  # [steps, agents, environments]
    there[:, 2] = False
    batch["paid"].view(8, 3, 3)[:, :, 0] = torch.tensor([-1.0, -2.0, 0.0])
    # Two games of three steps, and two of a third one; all that the policy plays in is the first
    # agent of environment 0, the second one of 1, and the one who never comes in 2.
    batch["done"].view(8, 3, 3)[[2, 5], :2] = 1.0
    moments = torch.zeros(1, league.num_batch_moments, dtype=torch.float64)
    league.measure(batch, moments[0])
    # It was paid less than nothing, which who is not there had, and more than who is; and a draw.
    assert moments[0, -2:].tolist() == [4, 3]


def test_what_a_game_is_worth_that_is_cut_is_nobodys_pay():
    league, batch, collector = made(num_env=4, what="Level", horizon=10)
    collector.collect(1)
    assert batch["ended"][9].all()  # all games end with the horizon, and all agents are paid alike
    rewards = batch["reward"].sum(0)
    assert not torch.isclose(rewards, rewards[0]).all()
    moments = torch.zeros(league.num_batch_moments, dtype=torch.float64)
    league.measure(batch, moments)
    assert moments[-4:].tolist() == [2, 2, 1, 1]  # of two games against each snapshot, half


def test_snapshots_explore_as_they_did():
    league, batch, collector = made(num_env=8, what="Meadow", sheep=0, wolves=2)
    with torch.no_grad():
        league.policy.network.log_std.fill_(-20.0)
    collector.collect(1)
    noise, mine = batch["noise"], league.policy.learns(16, torch.device("cpu"))
    assert noise[:, mine].abs().max() < 1e-6
    assert noise[:, ~mine].std() == pytest.approx(1.0, abs=0.2)


def test_the_oldest_snapshot_makes_room_and_has_the_rating_of_its_time():
    league, batch, _ = made(num_env=4, every=2)
    seen = torch.ones(1, 1)
    heads = [snapshot.head(seen).clone() for snapshot in league.policy.snapshots]
    play(league, batch, torch.tensor([1.0, -1.0, 1.0, -1.0]))
    rating = float(league._rating)
    spoil(league.policy.network)
    for _ in range(3):  # after two rounds
        league.before_sampling(0)
    now = league.policy.network(seen)
    first, second = league.policy.snapshots
    assert torch.allclose(first.head(seen), now)
    assert torch.equal(second.head(seen), heads[1])
    assert league._ratings.tolist() == [rating, 0.0]


def test_a_league_goes_on_from_a_checkpoint(tmp_path):
    league, batch, _ = made(num_env=4)
    play(league, batch, torch.tensor([1.0, -1.0, 1.0, -1.0]))  # it wins them all
    spoil(league.policy.network)
    for _ in range(2):
        league.before_sampling(0)
    torch.save(league.state_dict(), tmp_path / "state.pt")
    other, _, _ = made(num_env=4, seed=5)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    seen = torch.ones(1, 1)
    for mine, its in zip(other.policy.snapshots, league.policy.snapshots, strict=True):
        assert torch.equal(mine.head(seen), its.head(seen))
    assert (other._rating, other._rounds, other._taken) == (league._rating, 2, 1)
    assert torch.equal(other._ratings, league._ratings)
    assert float(other._score) == float(league._score) != 0.5  # until games end again


def measured(league, batch, collector, iteration, is_late=lambda: False):
    """The games and scores against each snapshot, of a horizon."""
    collector.collect(iteration, is_late)
    moments = torch.zeros(league.num_batch_moments, dtype=torch.float64)
    league.measure(batch, moments)
    return moments[-4:].tolist()


def long_games():
    """A league whose games last longer than a horizon."""
    return made(num_env=4, what="Meadow", sheep=0, wolves=2, length=7, horizon=5)


@pytest.mark.parametrize("given_up", [1, 2])
def test_games_go_on_as_they_stand_when_another_gmi_dies(given_up):
    outcomes = []
    for dies in (False, True):
        league, batch, collector = long_games()
        kept = league.state_dict()
        outcomes.append([])
        for iteration in (1, 2, 3, 4):
            outcomes[-1].append(measured(league, batch, collector, iteration))
            if dies and iteration == given_up:
                league.load_state_dict(kept)  # and environments go on
    assert outcomes[0] == outcomes[1]


def test_of_a_horizon_that_was_cut_the_steps_that_were_taken_count():
    league, batch, collector = long_games()
    measured(league, batch, collector, 1)
    paid = batch["paid"].sum(0)
    late = iter([False, True])
    assert measured(league, batch, collector, 2, lambda: next(late)) == [0, 0, 0, 0]
    paid += batch["paid"][0]
    assert torch.allclose(league._paid.flatten(), paid)
    assert measured(league, batch, collector, 3)[:2] == [2, 2]


def test_captured_work_counts_what_was_paid_once():
    paid = []
    for pool in (None, RecordedPool()):
        league, batch, collector = long_games()
        learner = Learner(league, torch.Generator().manual_seed(2), batch, pool=pool, static=True)
        learner.connect(solo_group())
        collector.collect(1)
        learner.update(batch)
        learner.close()
        paid.append(league._paid)
    assert paid[0].any()
    assert torch.equal(*paid)


def test_one_who_is_alone_has_nobody_to_play_against():
    env = make_env("bodies_agents:Matching", 1, adapter="pettingzoo", options={"count": 1})
    with pytest.raises(EnvSpecError, match=r"has 1 agent; .* Leave it out"):
        against_itself(None, env, SelfPlayConfig())


def test_each_snapshot_must_play_in_each_seat():
    (fault,) = league_faults(SelfPlayConfig(snapshots=4), 2, 7)
    assert "snapshots=4; env.num_env=7 must be at least 8, so that each snapshot plays" in fault
    assert not league_faults(SelfPlayConfig(snapshots=4), 2, 8)
