"""Games: rules against OpenSpiel's and by hand, symmetries, and what breaks their rules."""

import pickle

import numpy as np
import pytest
import torch

import bodies_games as bodies
from gmi_drl.placement import AlphaZeroConfig
from gmi_drl.roles.envs import check_env, make_env
from gmi_drl.roles.evaluators.searched_games import SearchedGames
from gmi_drl.roles.games import (
    GameError,
    GameFault,
    IllegalMove,
    NetworkNotFinite,
    make_game,
    step_legal,
)
from gmi_drl.roles.games.checked import CheckedGame, try_game
from gmi_drl.roles.games.in_a_row import InARow
from gmi_drl.roles.games.tree import SearchTrees
from gmi_drl.roles.policies.search import GameNetwork, SearchPolicy
from gmi_drl.roles.samples.replay.games import GameReplay


def played(game, count, rng, moves=None):
    """Each state [count, S] of games played at random until the first is over."""
    states = game.initial(count)
    for _ in range(moves or game.longest):
        yield states
        legal = game.legal(states)
        states = step_legal(game, states, np.where(legal, rng.random(legal.shape), -1).argmax(1))
        if game.terminal(states)[0].any():
            yield states
            return


@pytest.mark.parametrize(
    ("ours", "its"), [("ConnectFour-v0", "connect_four"), ("TicTacToe-v0", "tic_tac_toe")]
)
def test_the_rules_are_openspiels(ours, its):
    pyspiel = pytest.importorskip("pyspiel")
    game, other = make_game(ours), pyspiel.load_game(its)
    rng, ends = np.random.default_rng(0), []
    for _ in range(60):
        state, row = other.new_initial_state(), game.initial(1)
        while not state.is_terminal():
            assert not game.terminal(row)[0][0]
            assert np.flatnonzero(game.legal(row)[0]).tolist() == state.legal_actions()
            move = int(rng.choice(state.legal_actions()))
            state.apply_action(move)
            row = step_legal(game, row, np.array([move]))
        over, worth = game.terminal(row)
        player = int((row != 0).sum()) % 2
        assert (over[0], worth[0]) == (True, state.returns()[player])
        ends.append(state.returns()[0])
    assert {1.0, -1.0} <= set(ends)


def test_a_game_of_openspiels_is_one_of_ours():
    pytest.importorskip("pyspiel")
    adapted, ours = make_game("OpenSpiel/tic_tac_toe"), make_game("TicTacToe-v0")
    rng, states, rows = np.random.default_rng(1), adapted.initial(40), ours.initial(40)
    for _ in range(5):
        assert (adapted.legal(states) == ours.legal(rows)).all()
        # OpenSpiel's planes: empty, then noughts and crosses, whoever moves.
        seen, mine = adapted.observe(states), ours.observe(rows)
        turn = int((rows[0] != 0).sum()) % 2
        assert (seen[:, [2 - turn, 1 + turn]].reshape(40, -1) == mine.reshape(40, -1)).all()
        legal = ours.legal(rows)
        moves = np.where(legal, rng.random(legal.shape), -1).argmax(1)
        states, rows = adapted.step(states, moves), ours.step(rows, moves)
    for mine, its in zip(ours.terminal(rows), adapted.terminal(states), strict=True):
        assert (mine == its).all()
    fresh = make_game("OpenSpiel/tic_tac_toe")  # which has to play the moves of a state first
    assert (fresh.observe(states[:3]) == adapted.observe(states[:3])).all()


@pytest.mark.parametrize("name", ["ConnectFour-v0", "TicTacToe-v0"])
def test_symmetries_change_nothing_of_a_game(name):
    game, rng = make_game(name), np.random.default_rng(2)
    assert len(game.symmetries) == {"ConnectFour-v0": 1, "TicTacToe-v0": 7}[name]
    for places, moves in game.symmetries:
        states = game.initial(30)
        mirrored = states
        for _ in range(game.longest):
            legal = game.legal(states)
            chosen = np.where(legal, rng.random(legal.shape), -1).argmax(1)
            inverse = np.argsort(moves)
            assert (legal[:, moves] == game.legal(mirrored)).all()
            states, mirrored = game.step(states, chosen), game.step(mirrored, inverse[chosen])
            seen = game.observe(states).reshape(30, -1)
            assert (seen[:, places] == game.observe(mirrored).reshape(30, -1)).all()
            ended = game.terminal(states)
            assert (ended[0] == game.terminal(mirrored)[0]).all()
            states, mirrored = states[~ended[0]], mirrored[~ended[0]]
            if len(states) < 30:
                break


def test_an_illegal_move_names_game_state_and_move():
    game = make_game("ConnectFour-v0")
    states = game.initial(2)
    for _ in range(6):
        states[1] = game.step(states[1:], np.array([3]))[0]
    with pytest.raises(IllegalMove) as caught:
        step_legal(game, states, np.array([3, 3]))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.game, error.state, error.move) == ("ConnectFour-v0", states[1].tolist(), 3)
    assert str(error).startswith(f"game ConnectFour-v0, state {states[1].tolist()}, move 3: it is")
    with pytest.raises(IllegalMove, match="move 7"):
        step_legal(game, states, np.array([7, 0]))


def uniform(seen):
    return np.zeros((len(seen), 9), np.float32), np.zeros(len(seen), np.float32)


def test_a_game_of_the_users_that_cannot_do_what_it_allows_is_named():
    game = bodies.Broken()
    with pytest.raises(
        IllegalMove, match=r"game Broken, .* move 4: step raised ValueError: no mid"
    ):
        SearchTrees(game, 2, 20).search(game.initial(2), uniform)


def test_a_game_is_not_blamed_for_a_network_that_gives_nan():
    game = make_game("ConnectFour-v0")

    def diverged(seen):
        return np.full((len(seen), 7), np.nan, np.float32), np.zeros(len(seen), np.float32)

    with pytest.raises(
        NetworkNotFinite, match=r"state \[0, .*Lower algorithm\.learning_rate"
    ) as caught:
        SearchTrees(game, 2, 20).search(game.initial(2), diverged)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_move_that_a_game_cannot_make_is_told_in_an_environment_too():
    env = make_env("TicTacToe-v0", 4, seed=4)
    env.reset()
    env.game = bodies.Broken()
    with pytest.raises(
        IllegalMove, match=r"game Broken, .* move 4: step raised ValueError: no mid"
    ):
        env.step(torch.full((4,), 4))


def test_a_game_that_neither_ends_nor_goes_on_is_told():
    game = bodies.Stuck()
    with pytest.raises(GameError, match=r"game Stuck, state \[.*no move is legal, and it is not"):
        SearchTrees(game, 2, 200).search(game.initial(2), uniform)


def test_environments_pay_the_end_of_games_to_the_one_who_acts():
    env = make_env("TicTacToe-v0", 200, seed=4)
    observation = env.reset()
    began = (observation != 0).sum(1)
    assert set(began.tolist()) == {0, 1}  # the other one has made the first move in some
    paid, ended = [], 0
    for _ in range(40):
        legal = env.game.legal(observation.numpy().astype(np.int16))
        moves = torch.from_numpy(legal.argmax(1))
        step = env.step(moves)
        over = step.terminated
        assert not step.truncated.any()
        assert (step.reward[~over] == 0).all()
        paid += step.reward[over].tolist()
        assert (step.observation[~over] == step.final_observation[~over]).all()
        assert ((step.observation[over] != 0).sum(1) <= 1).all()
        ended += int(over.sum())
        observation = step.observation
    assert ended > 1000
    assert set(paid) == {1.0, 0.0, -1.0}
    observation = env.reset(1)
    taken = env.step(torch.zeros(200, dtype=torch.int64)).observation[:, 0] != 0
    step = env.step(torch.zeros(200, dtype=torch.int64))
    assert step.terminated[taken].all()
    assert (step.reward[taken] == -1).all()


def test_what_is_no_game_is_told():
    assert "Did you mean" in check_env("TicTacTo-v0", "game")[0]
    assert "no game is made of it" in check_env("nowhere:Game", "game")[0]
    assert "unknown option 'depth'" in check_env("ConnectFour-v0", "auto", {"depth": 3})[0]
    assert not check_env("bodies_games:Wide", "game")
    (fault,) = check_env("bodies_games:Broken", "game")
    assert "game Broken, state [" in fault
    assert "move 4: step raised ValueError: no middle" in fault


def own(**changes):
    """Tic-tac-toe of a user's, with other attributes or functions."""
    game = InARow("Own", 3, 3, 3, falls=False)
    vars(game).update(changes)
    return game


def raising(states):
    raise KeyError("board")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"legal": None}, "it has no legal. Write"),
        ({"actions": "9"}, "its actions is '9'; must be a whole number from 1"),
        ({"longest": 0}, "its longest is 0; must be a whole number"),
        ({"shape": (3, 3)}, "its shape is (3, 3); must be that of what observe returns"),
        ({"symmetries": None}, "its symmetries are None; must be a list. Set it, [] for none"),
        ({"symmetries": [(np.arange(18), np.arange(8))]}, "its symmetries[0][1] must have each"),
        ({"symmetries": [5]}, "its symmetries[0][0] must have each number of an observation, 0 to"),
        ({"initial": lambda n: np.zeros((n, 8), np.int16)},
         "its initial returned int16 [4, 8]; must be int16 [4, 9], a row for each game. Reshape "
         "it, or correct its state_size, 9."),
        ({"initial": lambda n: np.zeros((n, 9))}, "its initial returned float64 [4, 9]; must be"),
        ({"initial": lambda n: np.full((n, 9), 40_000)}, "of numbers from 40000 to 40000; those"),
        ({"legal": lambda s: (s == 0).astype(int)},
         "its legal returned int64 [4, 9]; must be bool [4, 9]. In legal, compare, or use "
         "astype(bool)."),
        ({"legal": lambda s: (s == 0)[:, :8]}, "Reshape it, or correct its actions, 9."),
        ({"legal": lambda s: [0, 1]}, "its legal returned a list of 2; must be a NumPy array"),
        ({"legal": raising}, "its legal raised KeyError: 'board' ("),
        ({"step": lambda s, m: None}, "its step returned None; must be a NumPy array, int16 [4"),
        ({"step": lambda s, m: s[0]}, "its step returned int16 [9]; must be int16 [4, 9]"),
        ({"terminal": lambda s: np.zeros(len(s), bool)}, "its terminal returned bool [4]; must be"),
        ({"terminal": lambda s: (np.zeros(len(s)), np.zeros(len(s)))},
         "its terminal returned float64 [4] as the first of two; must be bool [4]"),
        ({"terminal": lambda s: (np.ones(len(s), bool), np.zeros(1))},
         "its terminal returned float64 [1] as the second of two; must be float32 [4]"),
        ({"terminal": lambda s: (np.ones(len(s), bool), np.full(len(s), 3.0))},
         "its terminal says that it is worth 3; must be -1 to 1"),
        ({"observe": lambda s: s.astype(np.float32)},
         "its observe returned float32 [4, 9]; must be float32 [4, 2, 3, 3], a row for each game. "
         "Reshape it, or correct its shape, (2, 3, 3)."),
        ({"observe": lambda s: np.full((len(s), 2, 3, 3), np.nan)}, "its observe returned NaN"),
        ({"longest": 3}, "it is not over after 3 moves, which its longest says are the most"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_game_of_the_users_is_told_before_it_is_played(changes, said):
    with pytest.raises((GameFault, GameError)) as caught:
        try_game(CheckedGame(own(**changes), "my:Own"))
    assert str(caught.value).startswith("game Own")
    assert said in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_game_that_fails_without_a_word_is_told_by_its_error(monkeypatch):
    def refuse(env_id):
        raise MemoryError

    monkeypatch.setattr("gmi_drl.roles.games.make_game", refuse)
    (fault,) = check_env("OpenSpiel/tic_tac_toe")
    assert fault.startswith("env.id='OpenSpiel/tic_tac_toe': MemoryError. ")


def test_a_game_of_the_users_may_use_wider_numbers_and_write_to_what_it_is_given():
    plain, wide = make_game("TicTacToe-v0"), make_game("bodies_games:Wide")
    mine = SearchTrees(plain, 3, 60).search(plain.initial(3), uniform)
    its = SearchTrees(wide, 3, 60).search(wide.initial(3), uniform)
    assert (mine == its).all()
    over, worth = wide.terminal(wide.initial(2))
    assert (over.dtype, worth.dtype, worth.tolist()) == (np.bool_, np.float32, [0.0, 0.0])


def test_games_of_openspiels_that_are_none_of_ours_are_told():
    pytest.importorskip("pyspiel")
    (fault,) = check_env("OpenSpiel/kuhn_poker")
    assert "it is explicit_stochastic, and must be deterministic" in fault
    assert "must be perfect_information" in fault
    assert not check_env("OpenSpiel/hex(board_size=3)")


def test_arrays_of_a_users_game_may_be_read_only_shared_and_written_to():
    plain, careless = make_game("TicTacToe-v0"), make_game("bodies_games:Careless")
    try_game(careless)
    settings = AlphaZeroConfig(network=[8], blocks=0, simulations=8, gate_games=4)

    def preferring(seen):
        flat = seen.reshape(len(seen), -1)
        return flat[:, :9] - flat[:, 9:], np.zeros(len(seen), np.float32)

    of_both = []
    for game in (plain, careless):
        games = SearchedGames(game, 4, settings, seed=3)
        positions = games.play(preferring, 1, range(6))
        replay = GameReplay(game, settings, 1, torch.device("cpu"))
        replay.put(positions, 1)
        drawn = replay.next(0, 0, 1)
        match = games.match(preferring, uniform, 1, range(3))
        of_both.append([*positions, drawn["legal"].numpy(), match])
    for mine, its in zip(*of_both, strict=True):
        assert np.array_equal(mine, its)
    assert not careless.initial(3).any()
    names = ("TicTacToe-v0", "bodies_games:Careless")
    envs = [make_env(name, 3, seed=1, adapter="game") for name in names]
    shown = [env.reset() for env in envs]
    for _ in range(12):
        assert torch.equal(*shown)
        moves = torch.from_numpy(plain.legal(shown[0].numpy().astype(np.int16)).argmax(1))
        shown = [env.step(moves).observation for env in envs]


def test_a_game_that_its_first_move_can_end_begins_with_a_move_to_make():
    env = make_env("bodies_games:Sticks", 64, seed=1, adapter="game")
    for seed in range(5):
        left = env.reset(seed)[:, 0]
        assert (left > 0).all()
    assert {1.0, 2.0, 3.0} == set(left.tolist())  # the other one has taken one or two in some


def test_a_users_game_is_asked_of_one_state_or_more():
    env = make_env("bodies_games:Sticks", 1, seed=1, adapter="game")
    for move in (0, 1, 2) * 20:  # some of which are illegal, or end the game
        env.reset()
        env.step(torch.tensor([move]))


@pytest.mark.parametrize("move", [-1, 9, 2**40])
def test_who_makes_a_move_that_is_none_has_lost(move):
    env = make_env("TicTacToe-v0", 2, seed=1)
    free = int((env.reset()[1] == 0).nonzero()[0])
    step = env.step(torch.tensor([move, free]))
    assert (step.reward[0].item(), step.terminated.tolist()) == (-1.0, [True, False])


@pytest.mark.parametrize("simulations", [0, 8])
def test_a_policy_that_is_asked_for_a_move_when_the_game_is_over_says_so(simulations):
    settings = AlphaZeroConfig(network=[8], blocks=0)
    policy = SearchPolicy(GameNetwork(make_game("TicTacToe-v0"), settings, None), simulations)
    won, full = [-1, -1, -1, 1, 1, 0, 0, 0, 0], [1, -1, 1, 1, -1, -1, -1, 1, 1]
    for board in (won, full):
        with pytest.raises(GameError, match=r"game TicTacToe-v0, state \[.*: the game is over"):
            policy.moves(np.array([[0] * 9, board], np.int16))


@pytest.mark.parametrize("name", ["mancala", "dots_and_boxes"])
def test_a_game_of_openspiels_whose_players_move_twice_is_told_before_it_is_played(name):
    pytest.importorskip("pyspiel")
    (fault,) = check_env(f"OpenSpiel/{name}")
    assert fault.startswith(f"env.id='OpenSpiel/{name}': game OpenSpiel/{name}, state [")
    assert "moves twice in a row" in fault


def test_a_game_goes_as_it_does_alone():
    many = make_env("TicTacToe-v0", 5, seed=4)
    alone = [make_env("TicTacToe-v0", 1, seed=4 + row) for row in range(5)]
    for seed in (None, 9):
        seen = many.reset(seed)
        for row, env in enumerate(alone):
            assert torch.equal(env.reset(None if seed is None else seed + row)[0], seen[row])
        for number in range(40):
            moves = (number * torch.arange(1, 6) + number // 9) % 9
            step = many.step(moves)
            for row, env in enumerate(alone):
                its = env.step(moves[row : row + 1])
                assert torch.equal(its.observation[0], step.observation[row])
                assert its.reward[0] == step.reward[row]
