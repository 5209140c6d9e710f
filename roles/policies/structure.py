"""Takes observation vectors apart again, for networks that want an environment's own structure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from gymnasium import Space
from gymnasium.spaces import Box, Dict, MultiBinary, Tuple
from torch import Tensor

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.spaces import leaves, width_of


def structured_space(env: VecEnv) -> Space[Any]:
    """Returns the space that an environment's observations have before they become vectors."""
    space: Space[Any] = getattr(env, "structured_space", env.observation_space)
    return space


def unflatten(observation: Tensor, space: Space[Any]) -> Any:
    """Returns observations [B, D] in the structure of `space`: dicts and tuples of views.

    A Box and a MultiBinary have their shape behind B; a Discrete and a MultiDiscrete stay one-hot,
    [B, width].
    """
    widths = [width_of(leaf) for _, leaf in leaves(space)]
    return _structured(space, iter(torch.split(observation, widths, -1)))


def _structured(space: Space[Any], parts: Iterator[Tensor]) -> Any:
    if isinstance(space, Dict):
        return {key: _structured(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_structured(part, parts) for part in space.spaces)
    columns = next(parts)
    if isinstance(space, Box | MultiBinary):
        return columns.reshape(len(columns), *space.shape)
    return columns
