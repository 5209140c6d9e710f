"""Says when episodes are over in environments with known rules, and loads such functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gmi_drl.placement.faults import closest
from gmi_drl.roles.errors import RoleError, RoleLoadError
from gmi_drl.roles.loading import load_class

# Of observations [B, O], action rows [B, A] and next observations [B, O]: bool [B].
Termination: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


def never(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Pendulum, HalfCheetah, Swimmer, Reacher: no episode is over before its time limit."""
    return torch.zeros(len(following), dtype=torch.bool, device=following.device)


def hopper(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Hopper: over when it has fallen (Gymnasium's `is_healthy`)."""
    height, angle = following[:, 0], following[:, 1]
    is_sane = (following[:, 1:].abs() < 100.0).all(1) & following.isfinite().all(1)
    return ~((height > 0.7) & (angle.abs() < 0.2) & is_sane)


def walker2d(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Walker2d: over when it has fallen (Gymnasium's `is_healthy`)."""
    height, angle = following[:, 0], following[:, 1]
    return ~((height > 0.8) & (height < 2.0) & (angle.abs() < 1.0))


def inverted_pendulum(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """InvertedPendulum: over when it leans by more than 0.2 radians."""
    return ~((following[:, 1].abs() <= 0.2) & following.isfinite().all(1))


TERMINATIONS: Final[dict[str, Termination]] = {
    "never": never, "hopper": hopper, "walker2d": walker2d, "inverted_pendulum": inverted_pendulum,
}  # fmt: skip


def termination_of(name: str) -> Termination:
    """Returns the function of this name, or a user's; RoleLoadError where there is none."""
    if name in TERMINATIONS:
        return TERMINATIONS[name]
    if ":" not in name:
        near = closest(name, TERMINATIONS)
        raise RoleLoadError(
            f"algorithm.termination={name!r}; must be {', '.join(TERMINATIONS)}, or "
            f"module:function.{f' Did you mean {near}?' if near else ''} Write a function of "
            "(observation, action, next_observation) that gives a bool tensor [B]."
        )
    termination: Termination = load_class(name, kind="algorithm.termination")
    return termination


def check_termination(name: str, width: int, columns: int) -> None:
    """Raises unless the function of this name returns a bool for observations [B, `width`].

    RoleLoadError where there is none, RoleError where it raises, or returns anything else.
    `columns`: the numbers of an action.
    """
    rule, observation = termination_of(name), torch.zeros(2, width)
    action = torch.zeros(2, columns)
    given = f"for observations {list(observation.shape)} and actions {list(action.shape)}"
    remedy = (
        "Give the rule of this environment, as a function of (observation, action, "
        "next_observation) that gives a bool tensor [B]."
    )
    try:
        is_over = rule(observation, action, observation)
    except Exception as error:  # whatever someone's function raises
        raise RoleError(
            f"algorithm.termination={name!r} raised {type(error).__name__} {given}: {error}. "
            f"{remedy}"
        ) from error
    if not isinstance(is_over, Tensor) or is_over.dtype != torch.bool or is_over.shape != (2,):
        shown = (
            f"{str(is_over.dtype).removeprefix('torch.')} {list(is_over.shape)}"
            if isinstance(is_over, Tensor)
            else f"a {type(is_over).__name__}"
        )
        raise RoleError(
            f"algorithm.termination={name!r} gave {shown} {given}; must be bool [2]. {remedy}"
        )
