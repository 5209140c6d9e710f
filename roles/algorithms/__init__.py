"""Holds the mathematics of learning, one file an algorithm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmi_drl.placement import AlgorithmConfig, Config

    from .algorithm import Algorithm


def algorithm_class(settings: AlgorithmConfig) -> type[Algorithm]:
    """Return the class of the algorithm that these are the settings of."""
    from gmi_drl.roles.role.role import load_class

    cls: type[Algorithm] = load_class(settings.implementation, kind="algorithm")
    return cls


def with_settings(config: Config) -> Config:
    """Return `config` with the settings of the user's algorithm that it names, checked."""
    from gmi_drl.placement import CustomAlgorithmConfig, settings_of
    from gmi_drl.roles.role.role import load_class

    section = config.algorithm
    if not isinstance(section, CustomAlgorithmConfig):
        return config
    settings = settings_of(load_class(section.class_, kind="algorithm"), section)
    return config.model_copy(update={"algorithm": settings})


def __getattr__(name: str) -> Any:
    if name in ("Algorithm", "Losses"):
        return getattr(import_module(f"{__name__}.algorithm"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
