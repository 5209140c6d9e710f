"""Turns what environments give and take into rows of numbers, for whole batches: see `spaces`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from .errors import EnvError
from .spaces import Leaf, Path, action_columns, flat_space, leaves, structured, width_of


class Flattener:
    """Writes observations of a space as vectors of `flat`; EnvError for a choice out of range.

    `which` says more of environment i of the batch than its number, in that error.
    """

    def __init__(
        self,
        space: Space[Any],
        env_id: str,
        which: Callable[[int], str] = "environment {}".format,
    ) -> None:
        self.flat, self._env_id, self._which = flat_space(space), env_id, which
        self._places: list[tuple[Path, Leaf, slice]] = []
        end = 0
        for path, leaf in leaves(space):
            begin, end = end, end + width_of(leaf)
            self._places.append((path, leaf, slice(begin, end)))

    def write(self, batch: Any, out: NDArray[Any]) -> None:
        """Writes observations [N, ...], batched as Gymnasium does it, into `out` [N, D]."""
        for path, leaf, place in self._places:
            self._write(leaf, np.asarray(part_at(batch, path)), out[:, place])

    def write_one(self, observation: Any, out: NDArray[Any], number: int) -> None:
        """Writes the observation of environment `number` into `out` [D]."""
        for path, leaf, place in self._places:
            values = np.asarray(part_at(observation, path))[None]
            self._write(leaf, values, out[None, place], number)

    def _write(self, leaf: Leaf, values: NDArray[Any], out: NDArray[Any], first: int = 0) -> None:
        """Writes values [N, ...] of a leaf into [N, width]; the first is environment `first`'s."""
        rows = len(values)
        if rows == 0:
            return
        if isinstance(leaf, Box | MultiBinary):
            out[...] = values.reshape(rows, -1)
            return
        is_discrete = isinstance(leaf, Discrete)
        sizes = np.array([leaf.n]) if isinstance(leaf, Discrete) else leaf.nvec.ravel()
        choices = values.reshape(rows, -1) - (leaf.start if is_discrete else leaf.start.ravel())
        invalid = (choices < 0) | (choices >= sizes)
        if invalid.any():
            number = int(invalid.any(1).argmax())
            raise EnvError(
                f"env {self._env_id}: {self._which(first + number)} gave an observation "
                f"{values[number].tolist()}; must be in {leaf}. Mend it, or its spaces."
            )
        out[...] = 0
        out[np.arange(rows)[:, None], np.cumsum(sizes) - sizes + choices] = 1


def part_at(structure: Any, path: Path) -> Any:
    """Returns the part of an observation of Dicts and Tuples that `path` leads to."""
    for key in path:
        structure = structure[key]
    return structure


def unflattened_action(space: Space[Any], rows: NDArray[Any]) -> Any:
    """Returns action rows [N, A] as the environments take them, batched as Gymnasium does it.

    They are copies, as environments may change what they are given. Choices count from 0 in the
    rows, and from the space's start in what is returned. Numbers of an integer Box become the
    nearest whole ones.
    """
    return structured(space, _actions(space, rows))


def _actions(space: Space[Any], rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yields the actions [N, ...] of each leaf."""
    end = 0
    for _, leaf in leaves(space):
        begin, end = end, end + action_columns(leaf)
        values = rows[:, begin:end]
        if isinstance(leaf, Discrete):
            yield values[:, 0].astype(np.int64) + leaf.start
            continue
        shaped = values.reshape(len(values), *leaf.shape)
        if isinstance(leaf, MultiDiscrete):
            yield shaped.astype(leaf.dtype) + leaf.start
            continue
        assert leaf.dtype is not None
        if leaf.dtype.kind in "iu":  # a cast would go towards 0
            shaped = np.rint(shaped)
        yield shaped.astype(leaf.dtype)
