"""Takes observation vectors apart again, for networks that want an environment's own structure."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space
from gymnasium.spaces import Box, MultiBinary
from torch import Tensor

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.spaces import leaves, structured, width_of


def structured_space(env: VecEnv) -> Space[Any]:
    """Returns the space that an environment's observations have before they become vectors."""
    space: Space[Any] = getattr(env, "structured_space", env.observation_space)
    return space


def unflatten(observation: Tensor, space: Space[Any]) -> Any:
    """Returns observations [B, D] in the structure of `space`: dicts and tuples of views.

    A Box and a MultiBinary have their shape behind B; a Discrete and a MultiDiscrete stay one-hot,
    [B, width].
    """
    spaces = [leaf for _, leaf in leaves(space)]
    columns = torch.split(observation, [width_of(leaf) for leaf in spaces], -1)
    parts = (
        part.reshape(len(part), *leaf.shape) if isinstance(leaf, Box | MultiBinary) else part
        for leaf, part in zip(spaces, columns, strict=True)
    )
    return structured(space, parts)
