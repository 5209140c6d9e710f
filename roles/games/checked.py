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
_TRIED: Final = 4  # games that are played at random before a game is taken
# By the first letter of a type as NumPy has it: any type of the kind is converted to the first.
_KINDS: Final[dict[str, Any]] = {"b": np.bool_, "i": np.int16, "f": np.float32}
_REMEDIES: Final = {
    "b": "compare, or use astype(bool)",
    "i": "use astype(np.int16)",
    "f": "use astype(np.float32)",
}


class CheckedGame:
    """A user's game, whose answers have the shapes, types and values that they must have.

    It is given copies, to which it may write, and what it returns is copied: it may be read-only,
    or the same array each time.
    """

    def __init__(self, game: Any, reference: str) -> None:
        """`reference` is what the config calls it. GameFault where an attribute is wrong."""
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
        wanted = (len(states), self.actions)
        return self._array("legal", self._call("legal", states), "b", wanted, "actions")

    def step(self, states: States, moves: NDArray[np.int64]) -> States:
        # What it raises is told by `stepped`, with the move.
        after = self._game.step(states.copy(), moves.copy())
        return self._states("step", after, len(states))

    def terminal(self, states: States) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        told, wanted = self._call("terminal", states), (len(states),)
        if not isinstance(told, tuple) or len(told) != 2:
            rule = (
                f"its terminal returned {_shown(told)}; must be two arrays [{len(states)}]: which "
                "games are over, and what those are worth. Return both."
            )
            raise GameFault(self.name, rule)
        over = self._array("terminal", told[0], "b", wanted, "", "the first of two")
        worth = self._array("terminal", told[1], "f", wanted, "", "the second of two")
        worth = np.where(over, worth, np.float32(0))
        if (wrong := ~(np.abs(worth) <= 1)).any():  # of NaN, too
            at = int(wrong.argmax())
            rule = (
                f"its terminal says that it is worth {worth[at]:g}; must be -1 to 1. Divide by "
                "the most that can be won."
            )
            raise GameError(self.name, states[at].tolist(), rule)
        return over, worth

    def observe(self, states: States) -> NDArray[np.float32]:
        wanted = (len(states), *self.shape)
        seen = self._array("observe", self._call("observe", states), "f", wanted, "shape")
        if not (finite := np.isfinite(seen).reshape(len(states), -1).all(1)).all():
            rule = "its observe returned NaN or infinity. Look there."
            raise GameError(self.name, states[int(finite.argmin())].tolist(), rule)
        return seen

    def _call(self, name: str, argument: Any) -> Any:
        try:
            its = argument.copy() if isinstance(argument, np.ndarray) else argument
            return getattr(self._game, name)(its)
        except GameError:
            raise
        except Exception as error:  # whatever someone's game raises
            *_, last = traceback.extract_tb(error.__traceback__)
            said = f"{type(error).__name__}: {error}".strip(": ")
            rule = f"its {name} raised {said} ({last.filename}, line {last.lineno}). Look there."
            raise GameFault(self.name, rule) from error

    def _states(self, name: str, told: Any, count: int) -> States:
        return self._array(name, told, "i", (count, self.state_size), "state_size")

    def _array(
        self, name: str, told: Any, kind: str, wanted: tuple[int, ...], by: str, which: str = ""
    ) -> Array:
        """Returns what function `name` told, copied, as an array [wanted]; else a GameFault.

        `by` is the attribute that says how wide it is; `which` of several arrays it is.
        """
        dtype = _KINDS[kind]
        needed = f"{np.dtype(dtype)} {list(wanted)}"
        what = f"its {name} returned {_shown(told)}{which and f' as {which}'}"
        if not isinstance(told, np.ndarray):
            raise GameFault(self.name, f"{what}; must be a NumPy array, {needed}. Return one.")
        if told.shape != wanted:
            correct = f", or correct its {by}, {getattr(self, by)}" if by else ""
            rule = f"{what}; must be {needed}, a row for each game. Reshape it{correct}."
            raise GameFault(self.name, rule)
        if told.dtype.kind != kind and (kind, told.dtype.kind) != ("i", "u"):  # unsigned ones fit
            rule = f"{what}; must be {needed}. In {name}, {_REMEDIES[kind]}."
            raise GameFault(self.name, rule)
        if kind == "i" and told.size:
            bounds = np.iinfo(np.int16)
            if told.min() < bounds.min or told.max() > bounds.max:
                rule = (
                    f"{what}, of numbers from {told.min()} to {told.max()}; those of a state are "
                    f"{bounds.min} to {bounds.max}. Make two of one."
                )
                raise GameFault(self.name, rule)
        return told.astype(dtype)

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
        given, width = getattr(self._game, "symmetries", None), int(np.prod(self.shape))
        if not isinstance(given, Sequence):
            rule = f"its symmetries are {_shown(given)}; must be a list. Set it, [] for none."
            raise GameFault(self.name, rule)
        return [
            Symmetry(
                self._order(number, one, 0, "of an observation", width),
                self._order(number, one, 1, "of a move", self.actions),
            )
            for number, one in enumerate(given)
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
        drawn = np.where(moves_of(game, states), rng.random((len(states), game.actions)), -1.0)
        states = step_legal(game, states, drawn.argmax(1))
        states = states[~game.terminal(states)[0]]
        if not len(states):
            return
    rule = (
        f"it is not over after {game.longest} moves, which its longest says are the most. Raise "
        "longest, or have `terminal` end it."
    )
    raise GameError(game.name, states[0].tolist(), rule)


def _shown(told: Any) -> str:
    """Says what a function returned, in a few words."""
    if isinstance(told, np.ndarray):
        return f"{told.dtype} {list(told.shape)}"
    if isinstance(told, (tuple, list)):
        return f"a {type(told).__name__} of {len(told)}"
    return "None" if told is None else f"a {type(told).__name__}"
