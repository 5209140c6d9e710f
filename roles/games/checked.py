"""Checks what the functions of a user's game return, and plays it before anything is trained.

N = games, S = numbers of a state, A = moves; as in `game`.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import GameError, GameFault
from .game import Array, Game, States, Symmetry, moves_of, step_legal

_FUNCTIONS: Final = ("initial", "legal", "step", "terminal", "observe")
_NUMBERS: Final = ("actions", "state_size", "longest")
_TRIED: Final = 4  # games that are played at random before a game is accepted
# By NumPy's letter for a kind of types: the type that all of that kind are converted to.
_KINDS: Final[dict[str, Any]] = {"b": np.bool_, "i": np.int16, "f": np.float32}
_REMEDIES: Final = {
    "b": "compare, or use astype(bool)",
    "i": "use astype(np.int16)",
    "f": "use astype(np.float32)",
}


class CheckedGame:
    """A user's game, whose results are checked for their shapes, types and values.

    It is given copies, to which it may write, and what it returns is copied: that may be read-only,
    or the same array each time.
    """

    def __init__(self, game: Any, reference: str) -> None:
        """`reference` is its name in the config. GameFault where an attribute is wrong."""
        self._game = game
        self.name = str(getattr(game, "name", reference))
        if missing := [name for name in _FUNCTIONS if not callable(getattr(game, name, None))]:
            raise GameFault(self.name, f"it has no {', '.join(missing)}. Write what is missing.")
        for name in _NUMBERS:
            value = getattr(game, name, None)
            if not isinstance(value, (int, np.integer)) or value < 1:
                rule = f"its {name} is {value!r}; must be a whole number from 1. Set it."
                raise GameFault(self.name, rule)
        self.actions, self.state_size = int(game.actions), int(game.state_size)
        self.longest, self.shape = int(game.longest), self._shape()
        self.symmetries = self._symmetries()

    def initial(self, count: int) -> States:
        return self._states("initial", self._call("initial", count), count)

    def legal(self, states: States) -> NDArray[np.bool_]:
        shape = (len(states), self.actions)
        return self._array("legal", self._call("legal", states), "b", shape, "actions")

    def step(self, states: States, moves: NDArray[np.int64]) -> States:
        # `stepped` reports what this raises, together with the move.
        next_states = self._game.step(states.copy(), moves.copy())
        return self._states("step", next_states, len(states))

    def terminal(self, states: States) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        pair, shape = self._call("terminal", states), (len(states),)
        if not isinstance(pair, tuple) or len(pair) != 2:
            rule = (
                f"its terminal returned {_shown(pair)}; must be two arrays [{len(states)}]: which "
                "games are over, and what those are worth. Return both."
            )
            raise GameFault(self.name, rule)
        is_over = self._array("terminal", pair[0], "b", shape, "", "the first of two")
        values = self._array("terminal", pair[1], "f", shape, "", "the second of two")
        values = np.where(is_over, values, np.float32(0))
        if (wrong := ~(np.abs(values) <= 1)).any():  # of NaN, too
            index = int(wrong.argmax())
            rule = (
                f"its terminal says that it is worth {values[index]:g}; must be -1 to 1. Divide by "
                "the most that can be won."
            )
            raise GameError(self.name, states[index].tolist(), rule)
        return is_over, values

    def observe(self, states: States) -> NDArray[np.float32]:
        shape = (len(states), *self.shape)
        observations = self._array("observe", self._call("observe", states), "f", shape, "shape")
        if not (finite := np.isfinite(observations).reshape(len(states), -1).all(1)).all():
            rule = "its observe returned NaN or infinity. Look there."
            raise GameError(self.name, states[int(finite.argmin())].tolist(), rule)
        return observations

    def _call(self, name: str, argument: Any) -> Any:
        try:
            copied = argument.copy() if isinstance(argument, np.ndarray) else argument
            return getattr(self._game, name)(copied)
        except GameError:
            raise
        except Exception as error:  # whatever someone's game raises
            *_, last = traceback.extract_tb(error.__traceback__)
            text = f"{type(error).__name__}: {error}".strip(": ")
            rule = f"its {name} raised {text} ({last.filename}, line {last.lineno}). Look there."
            raise GameFault(self.name, rule) from error

    def _states(self, name: str, data: Any, count: int) -> States:
        return self._array(name, data, "i", (count, self.state_size), "state_size")

    def _array(
        self, name: str, data: Any, kind: str, shape: tuple[int, ...], by: str, which: str = ""
    ) -> Array:
        """Returns the result `data` of function `name`, copied; GameFault unless it is as it must.

        `by` is the attribute that says how wide it is; `which` names one of several arrays.
        """
        dtype = _KINDS[kind]
        expected = f"{np.dtype(dtype)} {list(shape)}"
        text = f"its {name} returned {_shown(data)}{which and f' as {which}'}"
        if not isinstance(data, np.ndarray):
            raise GameFault(self.name, f"{text}; must be a NumPy array, {expected}. Return one.")
        if data.shape != shape:
            correct = f", or correct its {by}, {getattr(self, by)}" if by else ""
            rule = f"{text}; must be {expected}, a row for each game. Reshape it{correct}."
            raise GameFault(self.name, rule)
        if data.dtype.kind != kind and (kind, data.dtype.kind) != ("i", "u"):  # unsigned ones fit
            rule = f"{text}; must be {expected}. In {name}, {_REMEDIES[kind]}."
            raise GameFault(self.name, rule)
        if kind == "i" and data.size:
            bounds = np.iinfo(np.int16)
            if data.min() < bounds.min or data.max() > bounds.max:
                rule = (
                    f"{text}, of numbers from {data.min()} to {data.max()}; those of a state are "
                    f"{bounds.min} to {bounds.max}. Make two of one."
                )
                raise GameFault(self.name, rule)
        return data.astype(dtype)

    def _shape(self) -> tuple[int, ...]:
        shape = getattr(self._game, "shape", None)
        if (
            not isinstance(shape, Sequence)
            or len(shape) not in (1, 3)
            or not all(isinstance(size, (int, np.integer)) and size >= 1 for size in shape)
        ):
            rule = (
                f"its shape is {shape!r}; must be that of what observe returns for one state: "
                "(numbers,), or (planes, rows, columns). Set it."
            )
            raise GameFault(self.name, rule)
        return tuple(int(size) for size in shape)

    def _symmetries(self) -> list[Symmetry]:
        symmetries, width = getattr(self._game, "symmetries", None), int(np.prod(self.shape))
        if not isinstance(symmetries, Sequence):
            rule = f"its symmetries are {_shown(symmetries)}; must be a list. Set it, [] for none."
            raise GameFault(self.name, rule)
        return [
            Symmetry(
                self._order(number, symmetry, 0, "of an observation", width),
                self._order(number, symmetry, 1, "of a move", self.actions),
            )
            for number, symmetry in enumerate(symmetries)
        ]

    def _order(self, number: int, symmetry: Any, at: int, of: str, size: int) -> NDArray[np.int64]:
        """Returns array `at` of a symmetry, which has each number below `size` once."""
        with np.errstate(all="ignore"):
            try:
                order = np.asarray(symmetry[at])
            except (TypeError, IndexError, KeyError, ValueError):
                order = np.zeros(0)
        if order.shape != (size,) or not np.array_equal(np.sort(order), np.arange(size)):
            rule = (
                f"its symmetries[{number}][{at}] must have each number {of}, 0 to {size - 1}, "
                "once: which one comes to each place. Correct it, or leave the symmetry out."
            )
            raise GameFault(self.name, rule)
        return order.astype(np.int64)


def try_game(game: Game) -> None:
    """Plays a few games at random; GameError or GameFault where one breaks a rule."""
    rng, states = np.random.default_rng(0), game.initial(_TRIED)
    for _ in range(game.longest):
        game.observe(states)
        scores = np.where(moves_of(game, states), rng.random((len(states), game.actions)), -1.0)
        states = step_legal(game, states, scores.argmax(1))
        states = states[~game.terminal(states)[0]]
        if not len(states):
            return
    rule = (
        f"it is not over after {game.longest} moves, which its longest says are the most. Raise "
        "longest, or have `terminal` end it."
    )
    raise GameError(game.name, states[0].tolist(), rule)


def _shown(value: Any) -> str:
    """Describes what a function returned, in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
