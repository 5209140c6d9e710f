"""Holds the optimizers, one file each: who samples, differentiates, applies and waits."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gmi_drl.placement import UpdateSize
from gmi_drl.placement.config.algorithms.common import MODE_OF_OPTIMIZER

if TYPE_CHECKING:
    from gmi_drl.placement import AlgorithmConfig, Config, Layout
    from gmi_drl.roles.role.acting import ActingRole

    from .optimizer import Optimizer


def make_optimizer(role: ActingRole) -> Optimizer:
    """Makes the optimizer of the role's config, from what the role makes."""
    name = role.mgr.config.algorithm.resolved_optimizer
    optimizer: Optimizer = import_module(f"{__name__}.{name}").make(role)
    return optimizer


def round_steps(config: Config, layout: Layout) -> int:
    """Return the steps of environments that a round trains on, of all GMIs."""
    horizon = config.algorithm.horizon
    if config.algorithm.sends_gradients:
        return horizon * sum(gmi.num_env for gmi in layout.gmis)
    if samples_in_turn(config):
        return UpdateSize.of(config, layout).samples
    segments = config.experience.batch_segments * len(layout.holding("trainer"))
    return horizon * config.env.num_env * segments


def is_sharded(settings: AlgorithmConfig) -> bool:
    """Tells whether each GMI that trains holds a piece of the parameters, and takes its steps."""
    return settings.resolved_optimizer == "parameter_server"


def samples_in_turn(config: Config) -> bool:
    """Tells whether agents sample when they are told to, and not all the time."""
    return MODE_OF_OPTIMIZER[config.algorithm.resolved_optimizer] == "sync"
