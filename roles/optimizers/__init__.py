"""Optimizers: who samples, differentiates, applies, publishes and waits; one file each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gmi_drl.placement import Config
    from gmi_drl.roles.role.acting import ActingRole

    from .optimizer import Optimizer


def optimizer_name(config: Config) -> str:
    """The name of the optimizer that a config means."""
    return "async_samples" if config.mode == "async" else "all_reduce"


def make_optimizer(role: ActingRole) -> Optimizer:
    """Make the optimizer of the role's config, and all that it needs, with what the role makes."""
    module = import_module(f"{__name__}.{optimizer_name(role.mgr.config)}")
    optimizer: Optimizer = module.make(role)
    return optimizer


def samples_in_turn(config: Config) -> bool:
    """Whether agents sample when they are told to, and not all the time."""
    return optimizer_name(config) != "async_samples"
