"""Games on a board in which so many stones in a row win: tic-tac-toe and connect four."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .game import States, Symmetry


class InARow:
    """A board whose places players fill in turn; in states 1 is own, -1 the other's, 0 empty.

    Row 0 is the lowest. With `falls` a move is a column, and its stone falls on those below.
    """

    def __init__(self, name: str, rows: int, columns: int, length: int, *, falls: bool) -> None:
        self.name, self.rows, self.columns, self._falls = name, rows, columns, falls
        self.state_size = self.longest = rows * columns
        self.actions = columns if falls else self.state_size
        self.shape: tuple[int, ...] = (2, rows, columns)
        lines = list(_lines(rows, columns, length))
        self._length = length
        # [S, lines]: one product counts the stones in every line.
        self._lines = np.zeros((self.state_size, len(lines)), np.float32)
        for number, line in enumerate(lines):
            self._lines[line, number] = 1.0
        self.symmetries = list(self._symmetries())

    def initial(self, count: int) -> States:
        return np.zeros((count, self.state_size), np.int16)

    def legal(self, states: States) -> NDArray[np.bool_]:
        empty: NDArray[np.bool_] = states[:, -self.actions :] == 0  # of the highest row, or of all
        return empty

    def step(self, states: States, moves: NDArray[np.int64]) -> States:
        next_states, games = -states, np.arange(len(states))
        places = moves
        if self._falls:
            column = states.reshape(-1, self.rows, self.columns)[games, :, moves]
            places = moves + self.columns * (column != 0).sum(1)
        next_states[games, places] = -1
        return next_states

    def terminal(self, states: States) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        lost = ((states < 0).astype(np.float32) @ self._lines).max(1) == self._length
        return lost | (states != 0).all(1), -lost.astype(np.float32)

    def observe(self, states: States) -> NDArray[np.float32]:
        planes = np.empty((len(states), 2, self.state_size), np.float32)
        np.greater(states, 0, out=planes[:, 0], casting="unsafe")
        np.less(states, 0, out=planes[:, 1], casting="unsafe")
        return planes.reshape(-1, *self.shape)

    def _symmetries(self) -> Iterator[Symmetry]:
        places = np.arange(self.state_size).reshape(self.rows, self.columns)
        mirrored = places[:, ::-1]
        if self._falls:
            boards = [mirrored]
        else:  # the board is a square
            boards = [np.rot90(board, k) for board in (places, mirrored) for k in range(4)][1:]
        for board in boards:
            flat = board.ravel()
            moves = np.arange(self.columns)[::-1] if self._falls else flat
            yield Symmetry(np.concatenate([flat, flat + self.state_size]), moves.copy())


def _lines(rows: int, columns: int, length: int) -> Iterator[list[int]]:
    for row in range(rows):
        for column in range(columns):
            for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                end_row, end_column = row + up * (length - 1), column + right * (length - 1)
                if end_row < rows and 0 <= end_column < columns:
                    yield [(row + i * up) * columns + column + i * right for i in range(length)]
