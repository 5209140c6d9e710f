"""Defines a game of two players who move in turn, where one wins what the other loses.

N = games, which are stepped at once; S = numbers of a state, A = moves. A state is complete, and is
as the player sees it who moves next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import GameError, GameFault, IllegalMove

States = NDArray[np.int16]  # [N, S]
Array = NDArray[Any]


class Symmetry(NamedTuple):
    """A change of the board under which the game stays the same."""

    observation: NDArray[np.int64]  # [D]: which number of a flat observation comes to each place
    moves: NDArray[np.int64]  # [A]: which move is each of the changed board's


class Game(Protocol):
    """The rules of a game, as functions of arrays of states."""

    name: str
    actions: int  # A
    state_size: int  # S
    shape: tuple[int, ...]  # of an observation: [planes, rows, columns], or [D]
    longest: int  # moves of a game, at most

    @property
    def symmetries(self) -> Sequence[Symmetry]:
        """Returns the symmetries of the game, without the identity."""

    def initial(self, count: int) -> States:
        """Returns the initial states [count, S] of games."""

    def legal(self, states: States) -> NDArray[np.bool_]:
        """Tells which moves [N, A] are allowed; at least one, where the game is not over."""

    def step(self, states: States, moves: NDArray[np.int64]) -> States:
        """Returns new states [N, S], as the other player sees them, after legal `moves` [N]."""

    def terminal(self, states: States) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Tells which games are over [N], and their values [N], -1 to 1.

        A value is that to the player who would move next: -1 where the last move has won.
        """

    def observe(self, states: States) -> NDArray[np.float32]:
        """Returns what a network sees of states, [N, *shape]."""


def are_legal(game: Game, states: States, moves: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tells which `moves` [N] are allowed; a number that is no move of the game is not."""
    inside = (moves >= 0) & (moves < game.actions)
    return inside & game.legal(states)[np.arange(len(moves)), np.where(inside, moves, 0)]


def step_legal(game: Game, states: States, moves: NDArray[np.int64]) -> States:
    """Returns `game.step(states, moves)`; IllegalMove names the first illegal move."""
    allowed = are_legal(game, states, moves)
    if not allowed.all():
        index = int(allowed.argmin())
        raise IllegalMove(game.name, states[index].tolist(), int(moves[index]))
    return stepped(game, states, moves)


def stepped(game: Game, states: States, moves: NDArray[np.int64]) -> States:
    """Returns `game.step(states, moves)` of moves that `legal` allows; IllegalMove if it raises."""
    try:
        return game.step(states, moves)
    except (GameError, GameFault):
        raise
    except Exception as error:  # whatever someone's game raises
        for state, move in zip(states, moves, strict=True):  # finds the move that raises
            try:
                game.step(state[None], move[None])
            except Exception as cause:
                text = f"{type(cause).__name__}: {cause}"
                raise IllegalMove(game.name, state.tolist(), int(move), text) from cause
        raise IllegalMove(game.name, states[0].tolist(), int(moves[0]), repr(error)) from error


def moves_of(game: Game, states: States) -> NDArray[np.bool_]:
    """Returns `game.legal(states)` [N, A] of games that go on; GameError where there is no move."""
    legal = game.legal(states)
    stuck = ~legal.any(1)
    if stuck.any():
        index = int(stuck.argmax())
        raise GameError(
            game.name, states[index].tolist(),
            "no move is legal, and it is not over. Have `terminal` end it, or `legal` allow one.",
        )  # fmt: skip
    return legal
