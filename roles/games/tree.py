"""Searches many games at once by PUCT: one leaf of each game a wave, all evaluated in one call.

Trees are arrays, of all games side by side. G = games, M = nodes of a tree, A = moves, S = numbers
of a state. Node 0 of a tree is its root; a node of a game is the row `game * M + node`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .errors import NetworkNotFinite
from .game import Array, Game, States, moves_of, stepped

# Of observations [K, *shape]: preferences [K, A], which are priors after a softmax over the legal
# moves, and values [K] for the player to move.
Evaluate = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.float32]]]

_NONE: Final = -1  # no child


@dataclass(frozen=True)
class Exploration:
    """The constants of PUCT (Silver et al., 2018): c = log((1 + N + base) / base) + init."""

    base: float = 19652.0
    init: float = 1.25


class SearchTrees:
    """The trees of up to `games` games, with room for `simulations` leaves each."""

    def __init__(
        self, game: Game, games: int, simulations: int, exploration: Exploration = Exploration()
    ) -> None:
        self._game, self._exploration = game, exploration
        self._games, self.simulations = games, simulations
        self._nodes = simulations + 1
        rows, actions = games * self._nodes, game.actions
        self._states = np.zeros((rows, game.state_size), np.int16)
        self._children = np.empty((rows, actions), np.int32)
        # Of each move: its visits, the sum of their values (-inf: illegal), and its prior. Rows are
        # written when their nodes are made.
        self._visits = np.empty((rows, actions), np.float32)
        self._sums = np.empty((rows, actions), np.float32)
        self._priors = np.empty((rows, actions), np.float32)
        self._total = np.empty(rows, np.float32)  # visits of a node, with the one that made it
        self._over = np.zeros(rows, np.bool_)
        self._worth = np.empty(rows, np.float32)  # values of finished games, to who would move
        self._path = np.empty((self._nodes, games), np.int64)  # edges: row * A + move
        self.leaves = 0  # that were made by all searches

    def search(
        self, states: States, evaluate: Evaluate, noise: Array | None = None, weight: float = 0.25
    ) -> NDArray[np.float32]:
        """Returns the visits of each move [G, A] from `states` [G, S], none of them over.

        `noise` [G, A] is mixed with the priors of the roots by `weight`, over the legal moves. With
        the same states, values and noise the result of a game is the same beside any other games.
        """
        count = len(states)
        roots = np.arange(count) * self._nodes
        self._plant(roots, states)
        self._over[roots] = False
        self._expand(roots, evaluate)
        if noise is not None:
            legal = self._sums[roots] == 0
            legal_noise = np.where(legal, noise, 0.0)
            legal_noise /= legal_noise.sum(1, keepdims=True)
            self._priors[roots] = (1 - weight) * self._priors[roots] + weight * legal_noise
        for node in range(1, self._nodes):
            self._simulate(roots, node, evaluate)
        return self._visits[roots]

    def _simulate(self, roots: NDArray[np.int64], node: int, evaluate: Evaluate) -> None:
        """Makes one wave: a leaf in each tree, which becomes its node `node`, and is backed up."""
        actions, length, ends, leaf_rows = self._game.actions, *self._descend(roots), roots + node
        values = np.empty(len(roots), np.float32)
        is_new = self._children.ravel()[ends] == _NONE
        finished = np.flatnonzero(~is_new)  # paths to a game that is over: no node is made
        if len(finished):
            values[finished] = self._worth[self._children.ravel()[ends[finished]] + roots[finished]]
        new = np.flatnonzero(is_new)
        if len(new):
            rows, edges = leaf_rows[new], ends[new]
            parents = self._states[edges // actions]
            states = stepped(self._game, parents, edges % actions)
            is_over, leaf_values = self._game.terminal(states)
            self._plant(rows, states)
            self._over[rows], self._worth[rows] = is_over, leaf_values
            self._children.ravel()[edges] = node
            unfinished = np.flatnonzero(~is_over)
            if len(unfinished):
                leaf_values[unfinished] = self._expand(rows[unfinished], evaluate)
            values[new] = leaf_values
            self.leaves += len(new)
        self._back_up(length, values)

    def _descend(self, roots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Goes down by PUCT; returns the lengths of paths, and the edges [G] that they end in."""
        games, rows, actions = np.arange(len(roots)), roots, self._game.actions
        length, ends = np.empty(len(roots), np.int64), np.empty(len(roots), np.int64)
        base, init = self._exploration.base, self._exploration.init
        children, depth = self._children.ravel(), 0
        while len(games):
            visits, total = self._visits[rows], self._total[rows]
            factor = np.sqrt(total) * (np.log((1.0 + total + base) / base) + init)
            visits_1 = visits + 1.0
            # Q(s, a) + c P(s, a) sqrt(N(s)) / (1 + N(s, a)), where Q is 0 without visits.
            score = self._priors[rows]
            score *= factor[:, None].astype(np.float32)
            score /= visits_1
            np.maximum(visits, 1.0, out=visits)
            score += self._sums[rows] / visits
            edges = rows * actions + score.argmax(1)
            self._path[depth, games] = edges
            depth += 1
            child = children[edges]
            child_rows = rows - rows % self._nodes + child
            goes_on = child != _NONE
            goes_on &= ~self._over[child_rows * goes_on]
            stop = ~goes_on
            length[games[stop]], ends[games[stop]] = depth, edges[stop]
            games, rows = games[goes_on], child_rows[goes_on]
        return length, ends

    def _back_up(self, length: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Adds the leaves' values, to the player who moves there, to the moves on their paths."""
        deepest = int(length.max())
        levels = np.arange(deepest)[:, None]
        inside = levels < length
        edges = self._path[:deepest, : len(length)][inside]
        # The move into a leaf is the other player's, and signs alternate on the path.
        sign = np.where((length - levels) % 2, -1.0, 1.0) * values
        self._sums.ravel()[edges] += sign[inside].astype(np.float32)  # each edge once: trees
        self._visits.ravel()[edges] += 1.0
        self._total[edges // self._game.actions] += 1.0

    def _plant(self, rows: NDArray[np.int64], states: States) -> None:
        self._states[rows] = states
        self._children[rows] = _NONE
        self._visits[rows] = 0.0
        self._total[rows] = 1.0

    def _expand(self, rows: NDArray[np.int64], evaluate: Evaluate) -> NDArray[np.float32]:
        """Writes priors and legal moves of nodes; returns their values to who moves there."""
        states = self._states[rows]
        legal = moves_of(self._game, states)
        preferences, values = evaluate(self._game.observe(states))
        preferences = np.where(legal, preferences, -np.inf)
        greatest = preferences.max(1, keepdims=True)
        finite = np.isfinite(greatest[:, 0] + values)
        if not finite.all():
            raise NetworkNotFinite(self._game.name, states[int(finite.argmin())].tolist())
        priors = np.exp(preferences - greatest)
        self._priors[rows] = priors / priors.sum(1, keepdims=True)
        self._sums[rows] = np.where(legal, 0.0, -np.inf)
        return values
