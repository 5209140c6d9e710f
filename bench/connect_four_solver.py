#!/usr/bin/env python3
"""Solves connect four exactly from late positions, by negamax.

Boards are two numbers, as John Tromp and Pascal Pons have them: a column has 7 bits, of which the
highest is never set. As a command it makes the positions of `bench/alphazero.py`:

    bench/connect_four_solver.py > bench/results/raw/connect_four.jsonl
"""

import json
from functools import lru_cache

import numpy as np

from gmi_drl.roles.games import make_game

ROWS, COLUMNS = 6, 7
HEIGHT = ROWS + 1
ORDER = sorted(range(COLUMNS), key=lambda column: abs(column - COLUMNS // 2))
BOTTOM = sum(1 << column * HEIGHT for column in range(COLUMNS))
BOARD = BOTTOM * ((1 << ROWS) - 1)
COLUMN = [((1 << ROWS) - 1) << column * HEIGHT for column in range(COLUMNS)]


def bits(cells):
    """Returns the bitboards of own and of all stones; of 42 cells 1 is own, -1 the other's."""
    own = mask = 0
    for place, stone in enumerate(cells):
        row, column = divmod(place, COLUMNS)
        bit = 1 << column * HEIGHT + row
        mask |= bit if stone else 0
        own |= bit if stone > 0 else 0
    return own, mask


def _winning(own, mask):
    """Returns the empty places that would make four of `own`."""
    winning = own << 1 & own << 2 & own << 3
    for step in (HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pair = own << step & own << 2 * step
        winning |= pair & own << 3 * step | pair & own >> step
        pair = own >> step & own >> 2 * step
        winning |= pair & own << step | pair & own >> 3 * step
    return winning & BOARD & ~mask


@lru_cache(maxsize=4_000_000)
def solve(own, mask):
    """Returns the value for the player to move, 1, 0 or -1; nobody has won the board yet."""
    if mask == BOARD:
        return 0
    playable = (mask + BOTTOM) & BOARD
    if _winning(own, mask) & playable:
        return 1
    other = own ^ mask
    threats = _winning(other, mask)
    forced = threats & playable
    if forced:
        if forced & forced - 1:
            return -1  # two places to be filled at once
        playable = forced
    playable &= ~(threats >> 1)  # not below a place where the other wins
    best = -1
    for column in ORDER:
        move = playable & COLUMN[column]
        if move:
            best = max(best, -solve(other, mask | move))
            if best == 1:
                break
    return best


def values(cells):
    """Returns the value of each of the 7 moves for its player; None where the column is full."""
    own, mask = bits(cells)
    results = []
    for column in range(COLUMNS):
        move = (mask + (1 << column * HEIGHT)) & COLUMN[column]
        if not move:
            results.append(None)
        elif _winning(own, mask) & move:
            results.append(1)
        else:
            results.append(-solve(own ^ mask, mask | move))
    return results


def sensible(cells):
    """Returns the columns that lose nothing at once: a win, a block, or no win above."""
    own, mask = bits(cells)
    playable = (mask + BOTTOM) & BOARD
    threats = _winning(own ^ mask, mask)
    for moves in (_winning(own, mask), threats, ~(threats >> 1), BOARD):
        if playable & moves:
            return [c for c in range(COLUMNS) if playable & moves & COLUMN[c]]
    raise ValueError("the board is full; give one with an empty place")


def positions(count, seed=0, stones=range(20, 29)):
    """Yields boards of games without plain mistakes, with the values of their moves.

    Players win and block at once, and move at random otherwise. The moves of a board are not all
    worth the same.
    """
    rng, yielded = np.random.default_rng(seed), set()
    game = make_game("ConnectFour-v0")
    while len(yielded) < count:
        states = game.initial(1)
        for _ in range(rng.choice(stones)):
            move = rng.choice(sensible(states[0].tolist()))
            states = game.step(states, np.array([move]))
            if game.terminal(states)[0][0]:
                break
        else:
            move_values = values(states[0].tolist())
            cells = tuple(states[0].tolist())
            if len({v for v in move_values if v is not None}) > 1 and cells not in yielded:
                yielded.add(cells)
                yield cells, move_values
        if solve.cache_info().currsize > 3_000_000:
            solve.cache_clear()


def main():
    """Writes 200 boards, and which of their moves are best, to standard output."""
    for cells, move_values in positions(200):
        print(json.dumps({"cells": cells, "values": move_values}), flush=True)


if __name__ == "__main__":
    main()
