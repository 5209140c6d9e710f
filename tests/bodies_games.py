"""Games and their exact values, and GMIs that learn them, for processes that import it by name."""

from functools import cache

import numpy as np

import bodies_recovery
from bodies_roles import optimizer_of
from gmi_drl.roles.games.in_a_row import InARow
from gmi_drl.roles.optimizers.descent import one_thread

WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@cache
def minimax(board):
    """The value of a board of tic-tac-toe, 1, -1 and 0, to the player 1, who moves."""
    if has_lost(board):
        return -1
    return max((-minimax(after) for _, after in replies(board)), default=0)


def replies(board):
    """Each move, and the board after it as the other player sees it."""
    return [
        (place, tuple(-stone for stone in (*board[:place], 1, *board[place + 1 :])))
        for place, stone in enumerate(board)
        if not stone
    ]


def has_lost(board):
    """Whether the other player, -1, has three in a row."""
    return any(all(board[place] == -1 for place in line) for line in WINS)


def results(move, best_only, side):
    """How the games end, as a set of 1, 0 and -1, in which `move(boards)` plays a side.

    The other plays each move that there is, or each that is best by minimax.
    """
    found, begin = set(), (0,) * 9
    mine = {begin} if side == "first" else {after for _, after in replies(begin)}
    while mine:
        boards = sorted(mine)
        moves, mine = move(np.array(boards, np.int16)).tolist(), set()
        for board, place in zip(boards, moves, strict=True):
            theirs = dict(replies(board))[place]
            if has_lost(theirs) or not theirs.count(0):
                found.add(int(has_lost(theirs)))
                continue
            for _, after in replies(theirs):
                if best_only and -minimax(after) != minimax(theirs):
                    continue
                if has_lost(after) or not after.count(0):
                    found.add(-int(has_lost(after)))
                else:
                    mine.add(after)
    return found


class Broken(InARow):
    """Tic-tac-toe that cannot step to its middle, which it says is legal."""

    def __init__(self):
        super().__init__("Broken", 3, 3, 3, falls=False)

    def step(self, states, moves):
        if (moves == 4).any():
            raise ValueError("no middle")
        return super().step(states, moves)


class Wide(InARow):
    """Tic-tac-toe in NumPy's own types, whose step writes to the states that it is given."""

    def __init__(self):
        super().__init__("Wide", 3, 3, 3, falls=False)

    def initial(self, count):
        return np.zeros((count, 9), np.int64)

    def step(self, states, moves):
        states[np.arange(len(states)), moves] = 1
        return -states.astype(np.int64)

    def terminal(self, states):
        over, worth = super().terminal(states)
        return over, np.where(over, worth.astype(np.float64), 7.0)

    def observe(self, states):
        return super().observe(states).astype(np.float64)


class Stuck(InARow):
    """Tic-tac-toe that knows no move after the second one, and no end."""

    def __init__(self):
        super().__init__("Stuck", 3, 3, 3, falls=False)

    def legal(self, states):
        return super().legal(states) & ((states != 0).sum(1) < 2)[:, None]


def trained(group, section, count):
    """Returns the optimizer of a group's GMI after `count` rounds, and their metrics."""
    optimizer = optimizer_of(group, section)
    steps, told = 0, []
    with one_thread():  # as a GMI with one core: threads that wait for others are slow
        for iteration in range(count):
            done = optimizer.step(iteration, steps)
            steps += done.steps
            told.append(done.metrics)
    return optimizer, told


class WatchedGame:
    """A game that tells the script of each move, of searches too."""

    def __init__(self, game, role):
        self._game, self._role = game, role

    def __getattr__(self, name):
        return getattr(self._game, name)

    def step(self, states, moves):
        self._role.strike("play")
        return self._game.step(states, moves)


class Mortal(bodies_recovery.MortalWithoutLoss):
    """Passes the points of a script."""

    def make_policy(self, env, generator):
        network = super().make_policy(env, generator)
        network.game = WatchedGame(network.game, self)
        return network


class Careless(InARow):
    """Tic-tac-toe that gives the same arrays each time, some read-only, and writes to all."""

    def __init__(self):
        super().__init__("Careless", 3, 3, 3, falls=False)
        self._begin, self._over = np.zeros((64, 9), np.int16), np.zeros(64, np.bool_)

    def initial(self, count):
        return self._begin[:count]

    def legal(self, states):
        allowed = super().legal(states)
        states[:] = 1
        return np.broadcast_to(allowed, allowed.shape)

    def terminal(self, states):
        self._over[: len(states)], worth = super().terminal(states)
        states[:] = 1
        return self._over[: len(states)], worth

    def observe(self, states):
        seen = super().observe(states)
        states[:] = 1
        return seen


class Sticks:
    """Nim, one state at a time: who takes the last of `sticks` has won."""

    name, actions, state_size, shape, symmetries, sticks = "Sticks", 3, 1, (1,), (), 3

    @property
    def longest(self):
        return self.sticks

    def initial(self, count):
        return np.full((count, 1), self.sticks, np.int16)

    def legal(self, states):
        return np.stack([state >= (1, 2, 3) for state in states])

    def step(self, states, moves):
        return np.stack([state - move - 1 for state, move in zip(states, moves, strict=True)])

    def terminal(self, states):
        over = np.stack([state[0] == 0 for state in states])
        return over, np.where(over, -1.0, 0.0)

    def observe(self, states):
        return np.stack([state.astype(np.float32) for state in states])
