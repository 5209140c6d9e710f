"""Policies: networks that act, the statistics they normalise by, and how they are described."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actor_critic import ActorCritic, distribution_for, observation_width

__all__ = ["ActorCritic", "distribution_for", "observation_width"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.actor_critic"), name)
