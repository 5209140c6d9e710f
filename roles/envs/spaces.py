"""Says which spaces a policy can be trained on, and what observations and actions become there.

It is the one place that does: for adapters, policies and `gmi-drl check`. Imports no torch.

A *leaf* is a space of which others are made: Box, Discrete, MultiDiscrete and MultiBinary; Dict and
Tuple hold some, in their own order. Observations become vectors by the rule of
`gymnasium.spaces.flatten`: a Box its numbers row by row, a Discrete a one for the choice among
zeros, a MultiDiscrete such a block for each of its numbers, a MultiBinary its bits. An action has a
column for each number of a Box, for each choice and for each bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from gymnasium import Space
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Tuple,
    flatten_space,
)

from gmi_drl.placement.faults import counted

Leaf: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary
Path: TypeAlias = tuple[Any, ...]  # the keys that lead to a leaf: of Dicts, and places in Tuples
_SHOWN: Final = 120  # characters of a space


def space_faults(env_id: str, observation: Space[Any], action: Space[Any]) -> list[str]:
    """Returns why no policy can be trained on these spaces; empty if one can."""
    faults = [observation_fault(observation), action_fault(action)]
    return [f"env {env_id}: {fault}" for fault in faults if fault]


def observation_fault(space: Space[Any]) -> str:
    """Returns why a policy cannot take such observations; "" if it can."""
    if _is_known(space) and any(width_of(leaf) for _, leaf in leaves(space)):
        return ""
    flat = _flattened(space)
    remedy = "gymnasium.wrappers.TransformObservation, by a function to a one-dimensional Box."
    if flat is not None:
        numbers = counted(flat.shape[0], "number")
        remedy = f"gymnasium.wrappers.FlattenObservation, which makes it a Box of {numbers}."
    return (
        f"observation space {_shown(space)}; must be made of Box, Discrete, MultiDiscrete and "
        "MultiBinary, in Dict and Tuple, of one number or more, or be a one-dimensional Box. "
        f"Register the environment wrapped in {remedy}"
    )


def action_fault(space: Space[Any]) -> str:
    """Returns why a policy cannot act in this space; "" if it can."""
    if _is_known(space) and all(map(_is_action, (leaf for _, leaf in leaves(space)))):
        return ""
    return (
        f"action space {_shown(space)}; must be made of Box, Discrete, MultiDiscrete and "
        "MultiBinary, in Dict and Tuple, each of one number or more. Register the environment "
        "wrapped in gymnasium.wrappers.TransformAction, by a function from a one-dimensional Box "
        "or a Discrete."
    )


def _is_action(leaf: Leaf) -> bool:
    """Tells whether a policy acts in it; a Box of shape [] gives Gymnasium no array to check."""
    return action_columns(leaf) > 0 and not (isinstance(leaf, Box) and leaf.shape == ())


def leaves(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """Yields the leaves of a space that has no others, in their order, with their paths."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, (*path, key))
    elif isinstance(space, Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*path, index))
    else:
        assert isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary), space
        yield path, space


def structured(space: Space[Any], parts: Iterator[Any]) -> Any:
    """Returns `parts`, one for each leaf of a space, in its structure: dicts and tuples."""
    if isinstance(space, Dict):
        return {key: structured(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(structured(part, parts) for part in space.spaces)
    return next(parts)


def width_of(leaf: Leaf) -> int:
    """Counts the numbers that an observation of a leaf becomes."""
    if isinstance(leaf, Discrete):
        return int(leaf.n)
    if isinstance(leaf, MultiDiscrete):
        return int(leaf.nvec.sum())
    return math.prod(leaf.shape)


def action_columns(space: Space[Any]) -> int:
    """Counts the columns of an action row; 0 in part or whole for what is empty."""
    return sum(
        1 if isinstance(leaf, Discrete) else math.prod(leaf.shape) for _, leaf in leaves(space)
    )


def action_shape(space: Space[Any], rows: int) -> tuple[int, ...]:
    """Returns the shape of a batch of action rows; those of a Discrete alone are numbers."""
    return (rows,) if isinstance(space, Discrete) else (rows, action_columns(space))


def is_bounded(box: Box) -> bool:
    """Tells whether a policy acts in [-1, 1], which is scaled to the bounds: all are finite.

    Bounds as far apart as the largest numbers of float32 are none.
    """
    span = box.high.astype(np.float64) - box.low.astype(np.float64)
    return box.is_bounded() and bool((span < np.finfo(np.float32).max).all())


def flat_space(space: Space[Any]) -> Box:
    """Returns the vector that observations become: of its own type for a Box, else of float32.

    That of a Box of true and false is of uint8, 0 and 1, which can be reckoned with.
    """
    if isinstance(space, Box) and space.dtype == np.bool_:
        return Box(0, 1, (math.prod(space.shape),), dtype=np.uint8)
    if isinstance(space, Box):
        if len(space.shape) == 1:
            return space
        return Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type)
    flat = flatten_space(space)
    assert isinstance(flat, Box), space
    return Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)


def _is_known(space: Space[Any]) -> bool:
    """Tells whether a space is made of leaves, one or more."""
    if isinstance(space, Dict):
        return bool(space.spaces) and all(map(_is_known, space.spaces.values()))
    if isinstance(space, Tuple):
        return bool(space.spaces) and all(map(_is_known, space.spaces))
    return isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary)


def _flattened(space: Space[Any]) -> Box | None:
    """Returns what FlattenObservation makes of it, if that is a vector."""
    try:
        flat = flatten_space(space)
    except (NotImplementedError, TypeError, ValueError):  # a kind of one's own; an empty Dict
        return None
    is_vector = isinstance(flat, Box) and len(flat.shape) == 1 and flat.shape[0] > 0
    return flat if isinstance(flat, Box) and is_vector else None


def _shown(space: Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
