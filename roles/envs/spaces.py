"""Says which spaces a policy can be trained on, and which wrapper makes others so.

It is the one place that does: for adapters, policies and `gmi-drl check`. Imports no torch.
"""

from __future__ import annotations

import math
from typing import Any, Final

from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, flatten_space

from gmi_drl.placement.faults import counted

_MOST_CHOICES: Final = 10_000  # of one Discrete that stands for several choices
_SHOWN: Final = 120  # characters of a space


def space_faults(env_id: str, observation: Space[Any], action: Space[Any]) -> list[str]:
    """Returns why no policy can be trained on these spaces; empty if one can."""
    faults = [observation_fault(observation), action_fault(action)]
    return [f"env {env_id}: {fault}" for fault in faults if fault]


def can_be_batched(space: Space[Any]) -> bool:
    """Tells whether a batch of this space is one tensor, which a role of one's own may use."""
    return isinstance(space, Box | Discrete)


def observation_fault(space: Space[Any]) -> str:
    """Returns why a policy cannot take such observations; "" if it can."""
    if _is_vector(space):
        return ""
    flat = _flattened(space)
    remedy = "gymnasium.wrappers.TransformObservation, by a function to a one-dimensional Box."
    if flat is not None:
        numbers = counted(flat.shape[0], "number")
        remedy = f"gymnasium.wrappers.FlattenObservation, which makes it a Box of {numbers}."
    return (
        f"observation space {_shown(space)}; must be a one-dimensional Box of one number or more. "
        f"Register the environment wrapped in {remedy}"
    )


def action_fault(space: Space[Any]) -> str:
    """Returns why a policy cannot act in this space; "" if it can."""
    if _is_vector(space) or isinstance(space, Discrete):
        return ""
    origin = "a Discrete or a one-dimensional Box"
    if isinstance(space, MultiDiscrete | MultiBinary):
        if isinstance(space, MultiDiscrete):
            flat_choices = math.prod(int(choices) for choices in space.nvec.flat)
        else:
            flat_choices = 1 << math.prod(space.shape)
        if flat_choices <= _MOST_CHOICES:
            origin = f"Discrete({flat_choices})"
    elif isinstance(space, Box) and 0 not in space.shape:
        origin = f"a Box of {counted(math.prod(space.shape), 'number')}"
    return (
        f"action space {_shown(space)}; must be Discrete, or a one-dimensional Box of one number "
        "or more. Register the environment wrapped in gymnasium.wrappers.TransformAction, by a "
        f"function from {origin}."
    )


def _is_vector(space: Space[Any]) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1 and space.shape[0] > 0


def _flattened(space: Space[Any]) -> Box | None:
    """Returns what FlattenObservation makes of it, if that is a vector."""
    try:
        flat = flatten_space(space)
    except (NotImplementedError, TypeError, ValueError):  # a kind of one's own; an empty Dict
        return None
    return flat if isinstance(flat, Box) and _is_vector(flat) else None


def _shown(space: Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
