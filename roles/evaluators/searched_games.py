"""Plays whole games by search: one network against itself, or two against each other.

N = games at once, S = numbers of a state, A = moves, P = positions of games.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gmi_drl.placement import AlphaZeroConfig
from gmi_drl.roles.games import Game, step_legal
from gmi_drl.roles.games.tree import Evaluate, Exploration, SearchTrees

_GAMES: Final = 10  # the stream of seeds that games are drawn by
_OPENINGS: Final = 11  # the stream of seeds of the first moves of matches
_OPENING_MOVES: Final = 2  # which are drawn, as two networks would play one game only


class Positions(NamedTuple):
    """What games teach: in each position what the search found, and how the game ended."""

    states: NDArray[np.int16]  # [P, S]
    policy: NDArray[np.float32]  # [P, A], the shares of visits
    value: NDArray[np.float32]  # [P], 1 where the player who moves there has won


class Match(NamedTuple):
    """The games of a match, as the first of its players sees them."""

    wins: int
    draws: int
    losses: int


class SearchedGames:
    """Plays games in `num_env` places, where the next one begins when one is over.

    What is drawn in a game depends on the run's seed, the round and the game's number alone.
    """

    def __init__(self, game: Game, num_env: int, settings: AlphaZeroConfig, seed: int) -> None:
        self._game, self._num_env, self._settings, self._seed = game, num_env, settings, seed
        exploration = Exploration(settings.c_base, settings.c_init)
        self._trees = SearchTrees(game, num_env, settings.simulations, exploration)
        longest, actions = game.longest, game.actions
        self._states = np.zeros((num_env, longest, game.state_size), np.int16)
        self._policy = np.zeros((num_env, longest, actions), np.float32)

    @property
    def leaves(self) -> int:
        """Returns how many leaves were valued since this object was made."""
        return self._trees.leaves

    def play(self, evaluate: Evaluate, number: int, games: range) -> Positions:
        """Plays `games` of round `number`, and returns their positions in the games' order."""
        game, settings = self._game, self._settings
        waiting = list(reversed(games))
        numbers = np.array([waiting.pop() for _ in range(min(self._num_env, len(waiting)))])
        rngs: list[Any] = [self._generator(number, index) for index in numbers.tolist()]
        states, ply = game.initial(len(numbers)), np.zeros(len(numbers), np.int64)
        rows, finished = np.arange(len(numbers)), dict[int, Positions]()
        while len(numbers):
            noise = np.stack(
                [rng.gamma(settings.dirichlet_alpha, size=game.actions) for rng in rngs]
            )
            visits = self._trees.search(
                states, evaluate, np.maximum(noise, 1e-12), settings.dirichlet_weight
            )
            policy = visits / visits.sum(1, keepdims=True)
            self._states[rows, ply], self._policy[rows, ply] = states, policy
            moves = visits.argmax(1)
            early = np.flatnonzero(ply < settings.temperature_moves)
            draws = np.array([rngs[i].random() for i in early])
            moves[early] = _draw_moves(policy[early], draws)
            states = step_legal(game, states, moves)
            ply += 1
            over, outcome = game.terminal(states)
            over |= ply >= game.longest
            for i in np.flatnonzero(over).tolist():
                finished[int(numbers[i])] = self._positions(rows[i], ply[i], outcome[i])
                if waiting:
                    numbers[i], over[i] = waiting.pop(), False
                    rngs[i], ply[i] = self._generator(number, int(numbers[i])), 0
                    states[i] = game.initial(1)[0]
            if over.any():
                on = ~over
                rngs = [rng for rng, goes_on in zip(rngs, on, strict=True) if goes_on]
                numbers, states, ply, rows = numbers[on], states[on], ply[on], rows[on]
        return joined([finished[index] for index in games], game)

    def match(self, one: Evaluate, other: Evaluate, number: int, pairs: range) -> Match:
        """Plays two games for each of `pairs`, with the same opening and sides changed."""
        wins = draws = losses = 0
        size = max(self._num_env // 2, 1)
        for begin in range(0, len(pairs), size):
            outcome = self._play_pairs(one, other, number, pairs[begin : begin + size])
            wins, losses = wins + int((outcome > 0).sum()), losses + int((outcome < 0).sum())
            draws += int((outcome == 0).sum())
        return Match(wins, draws, losses)

    def _play_pairs(
        self, one: Evaluate, other: Evaluate, number: int, pairs: range
    ) -> NDArray[np.float32]:
        """Returns what each game was worth to the player `one`."""
        game, count = self._game, 2 * len(pairs)
        states, over = game.initial(count), np.zeros(count, np.bool_)
        result = np.zeros(count, np.float32)
        first_turn = np.arange(count) < len(pairs)  # games in which `one` moves next
        rngs = [np.random.default_rng((self._seed, _OPENINGS, number, pair)) for pair in pairs]
        for ply in range(game.longest):
            on = np.flatnonzero(~over)
            if not len(on):
                break
            moves = np.zeros(count, np.int64)
            if ply < _OPENING_MOVES:
                legal = game.legal(states)
                shares = np.stack([rng.random(game.actions) for rng in rngs] * 2)
                moves = np.where(legal, shares, -1.0).argmax(1)
            else:
                for player, indices in ((one, on[first_turn[on]]), (other, on[~first_turn[on]])):
                    # A place searches one game at a time.
                    for begin in range(0, len(indices), self._num_env):
                        batch = indices[begin : begin + self._num_env]
                        moves[batch] = self._trees.search(states[batch], player).argmax(1)
            states[on] = step_legal(game, states[on], moves[on])
            first_turn = ~first_turn
            over[on], outcome = game.terminal(states[on])
            result[on] = np.where(first_turn[on], outcome, -outcome)
        return result

    def _positions(self, row: int, count: int, outcome: float) -> Positions:
        turns = np.where((count - np.arange(count)) % 2, -1.0, 1.0).astype(np.float32)
        states, policy = self._states[row, :count].copy(), self._policy[row, :count].copy()
        return Positions(states, policy, turns * np.float32(outcome))

    def _generator(self, number: int, index: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, _GAMES, number, index))


def joined(parts: list[Positions], game: Game) -> Positions:
    """Returns the positions of all parts, in their order."""
    none = Positions(
        np.zeros((0, game.state_size), np.int16), np.zeros((0, game.actions), np.float32),
        np.zeros(0, np.float32),
    )  # fmt: skip
    return Positions(*(np.concatenate(column) for column in zip(none, *parts, strict=True)))


def _draw_moves(policy: NDArray[np.float32], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns moves drawn in proportion to `policy` [K, A]; draws [K] are uniform, below 1.

    They are doubles: one that is rounded to 1 is above all sums, and draws move 0, legal or not.
    """
    sums = policy.cumsum(1)
    above = sums > (draws * sums[:, -1])[:, None]
    return np.asarray(above.argmax(1))
