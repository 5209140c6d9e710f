"""Adapts games of OpenSpiel: two players in turn, no chance, nothing hidden."""

from __future__ import annotations

from collections import OrderedDict
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import GameError
from .game import States, Symmetry

_KEPT: Final = 100_000  # states of OpenSpiel's that are kept, to go on from


class OpenSpielGame:
    """A game of OpenSpiel's by its name, such as `hex(board_size=5)`.

    A state is the moves that led to it, each plus 1, and then zeros. OpenSpiel's own state, which
    they stand for, is kept, so that a step costs one move.
    """

    symmetries: tuple[Symmetry, ...] = ()

    def __init__(self, name: str) -> None:
        pyspiel = import_module("pyspiel")
        game = pyspiel.load_game(name)
        if faults := _faults(game, pyspiel):
            raise ValueError(f"{name}: {'; '.join(faults)}")
        self.name, self._game = f"OpenSpiel/{name}", game
        self.actions: int = game.num_distinct_actions()
        self.state_size = self.longest = int(game.max_game_length())
        self.shape = tuple(int(size) for size in game.observation_tensor_shape())
        self._states: OrderedDict[bytes, Any] = OrderedDict()

    def initial(self, count: int) -> States:
        return np.zeros((count, self.state_size), np.int16)

    def legal(self, states: States) -> NDArray[np.bool_]:
        allowed = np.zeros((len(states), self.actions), np.bool_)
        for row, state in zip(allowed, states, strict=True):
            row[self.state(state).legal_actions()] = True
        return allowed

    def step(self, states: States, moves: NDArray[np.int64]) -> States:
        next_states = states.copy()
        num_moves = (states != 0).sum(1)
        next_states[np.arange(len(states)), num_moves] = moves + 1
        for state, move, row in zip(states, moves.tolist(), next_states, strict=True):
            if row.tobytes() not in self._states:
                child = self.state(state).child(move)
                self._keep(row, child)
        return next_states

    def terminal(self, states: States) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        is_over, values = np.zeros(len(states), np.bool_), np.zeros(len(states), np.float32)
        scale = float(self._game.max_utility())
        for index, row in enumerate(states):
            state = self.state(row)
            if state.is_terminal():
                player = int((row != 0).sum()) % 2  # who would move next
                is_over[index], values[index] = True, state.returns()[player] / scale
        return is_over, values

    def observe(self, states: States) -> NDArray[np.float32]:
        observations = np.empty((len(states), *self.shape), np.float32)
        for target, row in zip(observations, states, strict=True):
            state = self.state(row)
            target[...] = np.reshape(state.observation_tensor(state.current_player()), self.shape)
        return observations

    def state(self, row: NDArray[np.int16]) -> Any:
        """Returns OpenSpiel's state after the moves of `row` [S]; read it alone."""
        key = row.tobytes()
        if (state := self._states.get(key)) is None:
            state = self._game.new_initial_state()
            for move in (row[row != 0] - 1).tolist():
                state.apply_action(move)
            self._keep(row, state)
        return state

    def _keep(self, row: NDArray[np.int16], state: Any) -> None:
        turn = int((row != 0).sum()) % 2
        if not state.is_terminal() and state.current_player() != turn:
            raise GameError(
                self.name, row.tolist(),
                f"player {state.current_player()} moves twice in a row, and here players move in "
                "turn. Use a game in which they do.",
            )  # fmt: skip
        self._states[row.tobytes()] = state
        if len(self._states) > _KEPT:
            self._states.popitem(last=False)


def _faults(game: Any, pyspiel: Any) -> list[str]:
    """Returns why a game of OpenSpiel's cannot be adapted."""
    game_type, types = game.get_type(), pyspiel.GameType
    faults = []
    if game.num_players() != 2:
        faults.append(f"it has {game.num_players()} players, and must have 2")
    for actual, required in (
        (game_type.dynamics, types.Dynamics.SEQUENTIAL),
        (game_type.chance_mode, types.ChanceMode.DETERMINISTIC),
        (game_type.information, types.Information.PERFECT_INFORMATION),
        (game_type.utility, types.Utility.ZERO_SUM),
    ):
        if actual != required:
            faults.append(f"it is {actual.name.lower()}, and must be {required.name.lower()}")
    if not game_type.provides_observation_tensor:
        faults.append("it has no observation tensor")
    if not faults and game.num_distinct_actions() >= 2**15:
        faults.append(f"it has {game.num_distinct_actions():,} moves, and must have at most 32,767")
    return faults
