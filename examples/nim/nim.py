"""A game of your own for AlphaZero: take one to three of 21 sticks; who takes the last has won.

Arrays are of N games at once, and a state is the number of sticks. See docs/alphazero.md.
"""

from __future__ import annotations

import numpy as np


class Nim:
    name = "Nim"
    actions = 3  # takes one more than its number
    state_size = 1
    longest = 21  # moves
    shape = (22,)  # of what the network sees
    symmetries = ()

    def initial(self, count: int) -> np.ndarray:
        return np.full((count, 1), 21, np.int16)

    def legal(self, states: np.ndarray) -> np.ndarray:
        return states > np.arange(self.actions)

    def step(self, states: np.ndarray, moves: np.ndarray) -> np.ndarray:
        return states - moves[:, None] - 1

    def terminal(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        over = states[:, 0] == 0
        return over, np.where(over, -1.0, 0.0)  # who would move now has lost

    def observe(self, states: np.ndarray) -> np.ndarray:
        return np.eye(22, dtype=np.float32)[states[:, 0]]
