"""The solver of connect four, against all games to their end."""

import sys
from pathlib import Path

import numpy as np

from gmi_drl.roles.games import make_game

BENCH = Path(__file__).resolve().parents[2] / "bench"


def worth(game, state):
    """The value of a state [1, S] to who moves, by trying everything."""
    over, value = game.terminal(state)
    if over[0]:
        return int(value[0])
    moves = np.flatnonzero(game.legal(state)[0])
    return max(-worth(game, game.step(state, np.array([move]))) for move in moves)


def test_the_solver_knows_what_trying_everything_finds(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    from connect_four_solver import positions

    game = make_game("ConnectFour-v0")
    for cells, values in positions(12, seed=1, stones=range(33, 37)):
        state = np.array([cells], np.int16)
        for move, value in enumerate(values):
            assert (value is not None) == game.legal(state)[0][move]
            if value is not None:
                assert value == -worth(game, game.step(state, np.array([move])))
