"""Searches many games at once by PUCT: one leaf of each game a wave, all valued in one call.

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

_NONE: Final = -1  # a child that is not there


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
        rows, a = games * self._nodes, game.actions
        self._states = np.zeros((rows, game.state_size), np.int16)
        self._children = np.empty((rows, a), np.int32)
        # Of each move: how often it was tried, the sum of what came of it (-inf: illegal), and its
        # prior. Rows are made when their nodes are.
        self._visits = np.empty((rows, a), np.float32)
        self._sums = np.empty((rows, a), np.float32)
        self._priors = np.empty((rows, a), np.float32)
        self._total = np.empty(rows, np.float32)  # visits of a node, with that which made it
        self._over = np.zeros(rows, np.bool_)
        self._worth = np.empty(rows, np.float32)  # of games that are over, to who would move
        self._path = np.empty((self._nodes, games), np.int64)  # edges: row * A + move
        self.leaves = 0  # that were made since this object was

    def search(
        self, states: States, evaluate: Evaluate, noise: Array | None = None, weight: float = 0.25
    ) -> NDArray[np.float32]:
        """Returns how often each move [G, A] was tried from `states` [G, S], none of them over.

        `noise` [G, A] is mixed with the priors of the roots by `weight`, over the legal moves. With
        the same states, values and noise it is the same for each game, whatever others are there.
        """
        count = len(states)
        roots = np.arange(count) * self._nodes
        self._plant(roots, states)
        self._over[roots] = False
        self._expand(roots, evaluate)
        if noise is not None:
            legal = self._sums[roots] == 0
            drawn = np.where(legal, noise, 0.0)
            drawn /= drawn.sum(1, keepdims=True)
            self._priors[roots] = (1 - weight) * self._priors[roots] + weight * drawn
        for node in range(1, self._nodes):
            self._simulate(roots, node, evaluate)
        return self._visits[roots]

    def _simulate(self, roots: NDArray[np.int64], node: int, evaluate: Evaluate) -> None:
        """Makes one wave: a leaf in each tree, which becomes its node `node`, and its value."""
        actions, length, ends, made = self._game.actions, *self._descend(roots), roots + node
        worth = np.empty(len(roots), np.float32)
        fresh = self._children.ravel()[ends] == _NONE
        old = np.flatnonzero(~fresh)  # games that were over before: nothing is made of them
        if len(old):
            worth[old] = self._worth[self._children.ravel()[ends[old]] + roots[old]]
        new = np.flatnonzero(fresh)
        if len(new):
            rows, edges = made[new], ends[new]
            parents = self._states[edges // actions]
            states = stepped(self._game, parents, edges % actions)
            over, its = self._game.terminal(states)
            self._plant(rows, states)
            self._over[rows], self._worth[rows] = over, its
            self._children.ravel()[edges] = node
            on = np.flatnonzero(~over)
            if len(on):
                its[on] = self._expand(rows[on], evaluate)
            worth[new] = its
            self.leaves += len(new)
        self._back_up(length, worth)

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
            # Q(s, a) + c P(s, a) sqrt(N(s)) / (1 + N(s, a)), where Q is 0 of what was not tried.
            score = self._priors[rows]
            score *= factor[:, None].astype(np.float32)
            score /= visits_1
            np.maximum(visits, 1.0, out=visits)
            score += self._sums[rows] / visits
            edges = rows * actions + score.argmax(1)
            self._path[depth, games] = edges
            depth += 1
            child = children[edges]
            below = rows - rows % self._nodes + child
            on = child != _NONE
            on &= ~self._over[below * on]
            stop = ~on
            length[games[stop]], ends[games[stop]] = depth, edges[stop]
            games, rows = games[on], below[on]
        return length, ends

    def _back_up(self, length: NDArray[np.int64], worth: NDArray[np.float32]) -> None:
        """Adds what leaves are worth, to who moves there, to the moves that led to them."""
        deepest = int(length.max())
        levels = np.arange(deepest)[:, None]
        inside = levels < length
        edges = self._path[:deepest, : len(length)][inside]
        # The move into a leaf is made by the other player, and so in turn.
        sign = np.where((length - levels) % 2, -1.0, 1.0) * worth
        self._sums.ravel()[edges] += sign[inside].astype(np.float32)  # each edge once: trees
        self._visits.ravel()[edges] += 1.0
        self._total[edges // self._game.actions] += 1.0

    def _plant(self, rows: NDArray[np.int64], states: States) -> None:
        self._states[rows] = states
        self._children[rows] = _NONE
        self._visits[rows] = 0.0
        self._total[rows] = 1.0

    def _expand(self, rows: NDArray[np.int64], evaluate: Evaluate) -> NDArray[np.float32]:
        """Gives nodes their priors and legal moves; returns their values to who moves there."""
        states = self._states[rows]
        legal = moves_of(self._game, states)
        preferences, values = evaluate(self._game.observe(states))
        preferences = np.where(legal, preferences, -np.inf)
        most = preferences.max(1, keepdims=True)
        finite = np.isfinite(most[:, 0] + values)
        if not finite.all():
            raise NetworkNotFinite(self._game.name, states[int(finite.argmin())].tolist())
        priors = np.exp(preferences - most)
        self._priors[rows] = priors / priors.sum(1, keepdims=True)
        self._sums[rows] = np.where(legal, 0.0, -np.inf)
        return values
