"""Search against a plain one, what is learned of games, and GMIs that do it together."""

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
import torch

import bodies_games as bodies
from gmi_drl.comm import create_group, solo_group
from gmi_drl.placement import AlphaZeroConfig, ConfigError, Topology, check, load_config
from gmi_drl.roles.algorithms.alphazero import AlphaZero
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.searched_games import Positions, SearchedGames
from gmi_drl.roles.games import make_game
from gmi_drl.roles.games.tree import SearchTrees
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.search import GameNetwork, SearchPolicy
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay.games import GameReplay

CPU = torch.device("cpu")
SMALL = {
    "name": "alphazero", "network": [16], "blocks": 0, "games": 6, "simulations": 8,
    "play_simulations": 8, "batch_size": 8, "updates_per_row": 0.2, "gate_games": 4,
    "gate_every": 2,
}  # fmt: skip


def section(algorithm, env="TicTacToe-v0", num_env=3, **run):
    return {
        "version": 1,
        "run": {"seed": 5, "total_steps": 1_000_000, **run},
        "env": {"id": env, "num_env": num_env},
        "algorithm": algorithm,
    }


# Search ------------------------------------------------------------------------------------------


class Node:
    """A node of the plain search: one object each, and one leaf at a time."""

    def __init__(self, state):
        self.state, self.visits, self.children = state, 1, {}


def plain_search(game, state, evaluate, simulations, noise=None, weight=0.25):
    """PUCT as Silver et al. (2018) have it, for one game."""

    def expand(node):
        preferences, value = evaluate(game.observe(node.state[None]))
        legal = np.flatnonzero(game.legal(node.state[None])[0])
        odds = np.exp(preferences[0][legal].astype(float))
        for move, prior in zip(legal, odds / odds.sum(), strict=True):
            node.children[int(move)] = {"prior": prior, "n": 0, "w": 0.0, "node": None}
        return float(value[0])

    root = Node(state)
    expand(root)
    if noise is not None:
        total = sum(noise[move] for move in root.children)
        for move, edge in root.children.items():
            edge["prior"] = (1 - weight) * edge["prior"] + weight * noise[move] / total
    for _ in range(simulations):
        node, path = root, []
        while True:
            c = math.log((1 + node.visits + 19652) / 19652) + 1.25

            def score(item, c=c, n=node.visits):
                edge = item[1]
                q = edge["w"] / edge["n"] if edge["n"] else 0.0
                return q + c * edge["prior"] * math.sqrt(n) / (1 + edge["n"])

            move, edge = max(node.children.items(), key=score)
            path.append((node, edge))
            if edge["node"] is None:
                edge["node"] = Node(game.step(node.state[None], np.array([move]))[0])
            node = edge["node"]
            over, worth = game.terminal(node.state[None])
            if over[0]:
                value = float(worth[0])
                break
            if not node.children:
                value = expand(node)
                break
        for parent, edge in reversed(path):
            value = -value
            edge["n"], edge["w"], parent.visits = (
                edge["n"] + 1,
                edge["w"] + value,
                parent.visits + 1,
            )
    visits = np.zeros(game.actions)
    for move, edge in root.children.items():
        visits[move] = edge["n"]
    return visits


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("name", ["TicTacToe-v0", "ConnectFour-v0"])
def test_searching_many_games_gives_the_visits_of_a_plain_search(name, noisy):
    game, rng = make_game(name), np.random.default_rng(3)
    weights = rng.normal(size=(int(np.prod(game.shape)), game.actions + 1))

    def evaluate(seen):  # of which no bit depends on what else is in the batch
        out = np.round(seen.reshape(len(seen), -1).astype(float) @ weights, 3).astype(np.float32)
        return out[:, :-1], np.tanh(out[:, -1])

    states = game.initial(12)
    for moves in range(6):  # games of different lengths, none of which can be over
        legal = game.legal(states[2 * moves :])
        chosen = np.where(legal, rng.random(legal.shape), -1).argmax(1)
        after = game.step(states[2 * moves :], chosen)
        states[2 * moves :] = np.where(game.terminal(after)[0][:, None], states[2 * moves :], after)
    noise = rng.gamma(1.0, size=(12, game.actions)) if noisy else None
    trees = SearchTrees(game, 12, 150)
    mine = trees.search(states, evaluate, noise)
    for at, state in enumerate(states):
        its = None if noise is None else noise[at]
        assert mine[at].tolist() == plain_search(game, state, evaluate, 150, its).tolist()
    assert (mine.sum(1) == 150).all()
    # Others beside a game change nothing, nor does what was searched before.
    alone = trees.search(states[4:5], evaluate, None if noise is None else noise[4:5])
    assert (alone[0] == mine[4]).all()


def test_a_wave_values_one_leaf_of_every_game_in_one_call():
    game, sizes = make_game("ConnectFour-v0"), []

    def evaluate(seen):
        sizes.append(len(seen))
        return np.zeros((len(seen), 7), np.float32), np.zeros(len(seen), np.float32)

    trees = SearchTrees(game, 10, 20)
    trees.search(game.initial(10), evaluate)
    assert sizes == [10] * 21  # the roots, and then leaves
    assert trees.leaves == 200


def test_a_search_finds_the_move_that_wins_and_the_one_that_does_not_lose():
    game = make_game("ConnectFour-v0")
    states = game.initial(1)
    for move in (0, 6, 0, 6, 0):
        states = game.step(states, np.array([move]))

    def evaluate(seen):
        return np.zeros((len(seen), 7), np.float32), np.zeros(len(seen), np.float32)

    trees = SearchTrees(game, 1, 300)
    assert trees.search(states, evaluate).argmax() == 0  # or the other one has four there
    states = game.step(states, np.array([6]))
    assert trees.search(states, evaluate).argmax() == 0  # three are there already


# The parts ---------------------------------------------------------------------------------------


def test_positions_of_games_say_who_won_and_do_not_depend_on_places():
    game, settings = make_game("TicTacToe-v0"), AlphaZeroConfig(**SMALL)

    def evaluate(seen):
        flat = seen.reshape(len(seen), -1)
        return flat[:, :9] - flat[:, 9:], np.zeros(len(seen), np.float32)

    one = SearchedGames(game, 2, settings, seed=3).play(evaluate, 4, range(7))
    other = SearchedGames(game, 7, settings, seed=3).play(evaluate, 4, range(7))
    parts = [
        SearchedGames(game, 3, settings, seed=3).play(evaluate, 4, r)
        for r in (range(4), range(4, 7))
    ]
    both = [np.concatenate(column) for column in zip(*parts, strict=True)]
    for a, b, c in zip(one, other, both, strict=True):
        assert (a == b).all()
        assert (a == c).all()
    assert one.policy.sum(1) == pytest.approx(1.0)
    assert (one.policy[~game.legal(one.states)] == 0).all()
    begins = np.flatnonzero((one.states == 0).all(1))
    assert len(begins) == 7
    for begin, end in zip(begins, [*begins[1:], len(one.value)], strict=True):
        values = one.value[begin:end]
        assert (values[1:] == -values[:-1]).all()  # who moves has won, has not, has ...
        assert values[-1] in (0, 1)  # nobody makes a last move that loses
    assert len({one.value[begin] for begin in begins}) > 1


def test_a_draw_next_to_one_is_of_a_move_that_was_tried(monkeypatch):
    """Rounded to a float it is 1, which no sum of shares is above: it drew move 0, legal or not."""

    class Highest:
        def gamma(self, shape, size):
            return np.ones(size)

        def random(self):
            return np.nextafter(1.0, 0.0)

    monkeypatch.setattr(SearchedGames, "_generator", lambda self, number, its: Highest())
    game, settings = make_game("TicTacToe-v0"), AlphaZeroConfig(**SMALL)

    def evaluate(seen):
        return np.zeros((len(seen), 9), np.float32), np.zeros(len(seen), np.float32)

    played = SearchedGames(game, 2, settings, seed=3).play(evaluate, 4, range(2))
    last = 8 - (played.policy[:, ::-1] > 0).argmax(1)  # of the moves that were tried
    for before, after, move in zip(played.states, played.states[1:], last, strict=False):
        if after.any():  # of the same game
            assert (-after - before).nonzero()[0].tolist() == [move]


def test_a_match_begins_alike_with_sides_changed():
    game, settings = make_game("TicTacToe-v0"), AlphaZeroConfig(**SMALL)
    play = SearchedGames(game, 4, settings, seed=3)

    def poor(seen):
        return np.zeros((len(seen), 9), np.float32), np.zeros(len(seen), np.float32)

    def good(seen):  # knows what each board is worth
        boards = (seen[:, 0] - seen[:, 1]).reshape(-1, 9).astype(int)
        worth = [bodies.minimax(tuple(board)) for board in boards.tolist()]
        return np.zeros((len(seen), 9), np.float32), np.array(worth, np.float32)

    same = play.match(poor, poor, 0, range(8))
    assert same.wins == same.losses  # each game is played twice, once on each side
    won, mirrored = play.match(good, poor, 0, range(8)), play.match(poor, good, 0, range(8))
    assert won == (mirrored.losses, mirrored.draws, mirrored.wins)
    assert sum(won) == 16
    assert won.wins > won.losses


def positions(game, count, first=0):
    states = np.zeros((count, game.state_size), np.int16)
    states[np.arange(count), np.arange(count) % 9] = 1
    policy = np.eye(9, dtype=np.float32)[(np.arange(count) + 1) % 9]
    return Positions(states, policy, np.arange(first, first + count, dtype=np.float32))


def replay(capacity=20, seed=1, **settings):
    game = make_game("TicTacToe-v0")
    its = AlphaZeroConfig(**{**SMALL, "replay_capacity": capacity, **settings})
    return game, GameReplay(game, its, seed, CPU)


def test_the_replay_keeps_the_newest_and_goes_on_as_it_was():
    game, kept = replay()
    kept.put(positions(game, 13), 1)
    kept.put(positions(game, 13, first=13), 2)
    assert sum(kept.ready() for _ in range(99)) == 5  # of 26 rows, 0.2 of each
    drawn = [kept.next(number, 0, 1) for number in range(40)]
    seen = torch.cat([one["value"] for one in drawn])
    assert set(seen.tolist()) == set(range(6, 26))
    _, resumed = replay()
    resumed.load_state_dict(kept.state_dict())
    for its in (kept, resumed):
        its.put(positions(game, 5, first=26), 3)
    assert kept.ready()
    assert resumed.ready()
    assert not resumed.ready()
    for name in ("observation", "policy", "value", "legal"):
        assert (kept.next(7, 0, 1)[name] == resumed.next(7, 0, 1)[name]).all()
    for capacity, rows in ((8, range(23, 31)), (50, range(11, 31))):
        _, other = replay(capacity)
        other.load_state_dict(kept.state_dict())
        other.put(positions(game, 3, first=31), 4)
        its = torch.cat([other.next(number, 0, 1)["value"] for number in range(60)])
        newest = list(rows)[3:] if capacity == 8 else list(rows)
        assert set(its.tolist()) == {*newest, 31, 32, 33}


def test_shares_of_a_minibatch_are_the_minibatch():
    game, kept = replay()
    kept.put(positions(game, 15), 1)
    whole, parts = kept.next(3, 0, 1), [kept.next(3, rank, 2) for rank in (0, 1)]
    for name in ("observation", "policy", "value", "legal"):
        together = torch.stack([part[name] for part in parts], 1).flatten(0, 1)
        assert (together == whole[name]).all()


def test_minibatches_are_of_all_symmetries_and_policies_follow_boards():
    game, kept = replay(batch_size=400)
    kept.put(Positions(*(column[:1] for column in positions(game, 1))), 1)  # a stone in a corner
    batch = kept.next(0, 0, 1)
    stones, moves = batch["observation"][:, :9].argmax(1), batch["policy"].argmax(1)
    assert (batch["legal"].sum(1) == 8).all()
    assert not batch["legal"][torch.arange(400), stones].any()
    pairs = set(zip(stones.tolist(), moves.tolist(), strict=True))
    # The move beside the corner stays beside it.
    assert pairs == {(0, 1), (0, 3), (2, 1), (2, 5), (6, 3), (6, 7), (8, 5), (8, 7)}


def test_the_loss_is_that_of_the_paper():
    settings = AlphaZeroConfig(**{**SMALL, "weight_decay": 0.01, "value_coef": 0.5})
    game = make_game("TicTacToe-v0")
    network = GameNetwork(game, settings, torch.Generator().manual_seed(1))
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(2))
    algorithm = AlphaZero(settings, SearchPolicy(network, 0), Normalizers.of(settings, 9))
    rng = np.random.default_rng(0)
    states = game.initial(5)
    states[:, 3] = 1
    seen, legal = game.observe(states).reshape(5, -1), game.legal(states)
    policy = rng.random((5, 9)).astype(np.float32) * legal
    policy /= policy.sum(1, keepdims=True)
    value = rng.choice([-1.0, 0.0, 1.0], 5).astype(np.float32)
    columns = {"observation": seen, "legal": legal, "policy": policy, "value": value}
    losses = algorithm.losses(Batch({name: torch.from_numpy(one) for name, one in columns.items()}))
    with torch.no_grad():
        out = network(torch.from_numpy(seen)).double().numpy()
    odds = np.exp(out[:, :9]) * legal
    priors = odds / odds.sum(1, keepdims=True)
    cross = -np.where(legal, policy * np.log(np.where(legal, priors, 1)), 0).sum(1).mean()
    squares = sum(p.detach().square().sum().item() for p in network.parameters())
    expected = cross + 0.5 * ((out[:, 9] - value) ** 2).mean() + 0.005 * squares
    assert losses.total.item() == pytest.approx(expected, rel=1e-5)
    losses.total.backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())


def test_residual_blocks_see_the_board_and_begin_as_nothing():
    settings = AlphaZeroConfig(blocks=2, channels=8, network=[16])
    game = make_game("ConnectFour-v0")
    network = GameNetwork(game, settings, torch.Generator().manual_seed(1))
    states = game.step(game.initial(3), np.array([0, 3, 6]))
    preferences, value = network.evaluate(game.observe(states))
    assert preferences.shape == (3, 7)
    assert (preferences == 0).all()
    assert (value == 0).all()
    seen = torch.from_numpy(game.observe(states)).flatten(1)
    features = network.trunk(seen)
    assert not torch.allclose(features[0], features[2])
    with torch.no_grad():
        for block in network.trunk.blocks:
            block.first.weight.normal_()  # what a block does not pass on
    assert torch.equal(network.trunk(seen), features)


# Together ----------------------------------------------------------------------------------------


def together(size, algorithm, count):
    """Returns the optimizers of a group's GMIs after rounds, and their metrics."""
    if size == 1:
        return [bodies.trained(solo_group("alone"), section(algorithm), count)]
    spec = create_group([f"gmi {i}" for i in range(size)])
    with ThreadPoolExecutor(size) as pool:
        work = [
            pool.submit(
                lambda rank: bodies.trained(
                    spec.join(rank, timedelta(seconds=60)), section(algorithm), count
                ),
                rank,
            )
            for rank in range(size)
        ]
        return [one.result() for one in work]


def test_gmis_share_games_and_train_one_network():
    """The first games are of a network that prefers nothing: the same whoever plays them."""
    ((alone, told),) = together(1, SMALL, 1)
    pair = together(2, SMALL, 1)
    mine = alone.state_dict()
    for optimizer, metrics in pair:
        its = optimizer.state_dict()
        for name in ("states", "policy", "value"):
            assert torch.equal(its["replay"][name], mine["replay"][name])
        assert torch.equal(its["candidate"], pair[0][0].state_dict()["candidate"])
        assert torch.allclose(its["candidate"], mine["candidate"], atol=1e-5)
        assert metrics[0]["updates"] == told[0]["updates"] > 0
        assert metrics[0]["policy_loss"] == pytest.approx(told[0]["policy_loss"], rel=1e-4)


def test_a_candidate_becomes_the_best_network_when_it_wins_enough():
    ((optimizer, told),) = together(1, {**SMALL, "gate_share": 0.0, "gate_games": 20}, 4)
    state, (first, second, third, fourth) = optimizer.state_dict(), told
    assert first["match_wins"] + first["match_draws"] + first["match_losses"] == 0
    assert second["match_wins"] + second["match_draws"] + second["match_losses"] == 20
    assert (first["promoted"], second["promoted"], third["promoted"]) == (0, 1, 1)
    assert fourth["promoted"] == 2
    assert torch.equal(state["parameters"], state["candidate"])
    policy = optimizer.learner.algorithm.policy
    assert policy.plays_by is not policy.network  # the best one plays and is saved
    ((optimizer, told),) = together(1, {**SMALL, "gate_share": 1.0, "gate_games": 20}, 3)
    assert told[1]["match_losses"]
    assert told[2]["promoted"] == 0
    state = optimizer.state_dict()
    assert not torch.equal(state["parameters"], state["candidate"])
    begun = GameNetwork(
        policy.network.game, AlphaZeroConfig(**SMALL), torch.Generator().manual_seed(5)
    )
    (first,) = [p for name, p in begun.named_parameters() if name == "trunk.0.weight"]
    (its,) = [
        p for name, p in policy_of(optimizer).named_parameters() if name == "trunk.0.weight"
    ]  # fmt: skip
    assert torch.equal(its, first)  # as it began


def test_leaves_of_a_match_count_as_its_seconds_do():
    asked = section({**SMALL, "gate_every": 1, "gate_games": 20})
    optimizer, (told,) = bodies.trained(solo_group("alone"), asked, 1)
    counted = told["leaves_per_s"] * told["infer_s"]
    assert counted == pytest.approx(optimizer._evaluator.leaves)


@pytest.mark.parametrize(
    ("changes", "promoted", "is_told"),
    [({"gate_every": 5}, 0, True), ({"gate_share": 0.0}, 1, False), ({"gate_games": 0}, 0, False)],
)
def test_a_network_that_acts_and_was_never_trained_is_told(changes, promoted, is_told):
    """As where a run ends before its first match."""
    optimizer, told = bodies.trained(solo_group("alone"), section({**SMALL, **changes}), 2)
    warnings = []
    optimizer._mgr.warn = warnings.append
    optimizer.finish()
    assert told[-1]["promoted"] == promoted
    assert len(warnings) == is_told
    assert all("that training began with: gate_every=5 rounds lie" in one for one in warnings)


def policy_of(optimizer):
    return optimizer.learner.algorithm.policy.plays_by


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tic_tac_toe_is_never_lost_after_a_short_training():
    """Against minimax both sides draw, whichever best move it makes; nor do other moves win."""
    algorithm = {
        "name": "alphazero", "network": [128, 128], "blocks": 0, "games": 64, "simulations": 50,
        "updates_per_row": 0.2, "batch_size": 64, "learning_rate": 3e-3, "schedule": "linear",
        "gate_games": 0, "temperature_moves": 6, "dirichlet_weight": 0.5, "dirichlet_alpha": 2.0,
    }  # fmt: skip
    asked = section(algorithm, num_env=64, total_steps=11_000)
    optimizer, _ = bodies.trained(solo_group("alone"), asked, 24)
    policy = SearchPolicy(policy_of(optimizer), 64)
    begun = GameNetwork(make_game("TicTacToe-v0"), AlphaZeroConfig(**algorithm), None)
    for side in ("first", "second"):
        assert bodies.results(policy.moves, True, side) == {0}
        assert bodies.results(policy.moves, False, side) == {0, 1}
    assert -1 in bodies.results(SearchPolicy(begun, 64).moves, False, "second")


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "key", "remedy"),
    [
        ({"games": 1}, "algorithm.games", "Raise it"),
        ({"batch_size": 9}, "algorithm.batch_size", "Use 10."),
        ({"games": 4}, "env.num_env", "Use 2 or fewer, or raise games to 6."),
        ({"gate_games": 3}, "algorithm.gate_games", "Use 4."),
        ({"layer_norm": True}, "algorithm.layer_norm", "Leave it out."),
    ],
)
def test_settings_that_cannot_be_are_told(fields, key, remedy):
    config = load_config(section({**SMALL, **fields}), ["layout.gmi_per_gpu=2"])
    faults = [str(fault) for fault in check(config, Topology.from_cores(range(2), 1))]
    assert any(key in fault and remedy in fault for fault in faults), faults


def test_apart_templates_and_other_optimizers_are_told():
    with pytest.raises(ConfigError, match="tree_search"):
        load_config(section({**SMALL, "optimizer": "all_reduce"}))
    config = load_config(section(SMALL), ["layout.template=tdg_ex", "layout.gmi_per_gpu=2"])
    faults = [str(fault) for fault in check(config, Topology.from_cores(range(2), 1))]
    assert any("under tree_search each GMI plays games" in fault for fault in faults), faults


def test_environments_that_are_no_games_and_games_without_boards_are_told():
    with pytest.raises(RoleError, match="no game of two players"):
        bodies.trained(solo_group("alone"), section(SMALL, "CartPole-v1"), 0)


def test_wrappers_around_a_game_are_refused_as_a_search_needs_its_states():
    asked = section(SMALL)
    asked["env"]["wrappers"] = [{"frame_stack": {"count": 2}}]
    faults = [str(fault) for fault in check(load_config(asked), Topology.from_cores(range(2), 1))]
    assert any("env.wrappers" in fault and "Leave them out." in fault for fault in faults), faults
