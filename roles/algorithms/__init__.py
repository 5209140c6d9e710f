"""The mathematics of learning: one file an algorithm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gmi_drl.placement import AlgorithmConfig

    from .algorithm import Algorithm

_HOME: Final = {"ppo": "ppo:PPO", "impala": "impala:IMPALA", "a3c": "a3c:A3C"}


def algorithm_class(settings: AlgorithmConfig) -> type[Algorithm]:
    """Return the class of the algorithm that a config names."""
    module, _, name = _HOME[settings.name].partition(":")
    cls: type[Algorithm] = getattr(import_module(f"{__name__}.{module}"), name)
    return cls


def __getattr__(name: str) -> Any:
    if name in ("Algorithm", "Losses"):
        return getattr(import_module(f"{__name__}.algorithm"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
