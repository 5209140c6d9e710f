"""Holds the mathematics of learning, one file an algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gmi_drl.lazy import lazy

if TYPE_CHECKING:
    from pathlib import Path

    from gmi_drl.placement import AlgorithmConfig, Config, Layout

    from .algorithm import Algorithm

__getattr__, __dir__ = lazy(__name__, {".algorithm": ["Algorithm", "Losses"]})


def algorithm_class(settings: AlgorithmConfig) -> type[Algorithm]:
    """Return the class of the algorithm that these are the settings of."""
    from gmi_drl.roles.loading import load_class

    cls: type[Algorithm] = load_class(settings.implementation, kind="algorithm")
    return cls


def with_settings(
    config: Config, folder: Path | None = None, layout: Layout | None = None
) -> Config:
    """Returns `config` with the settings of its algorithm, and the optimizer that `auto` is.

    A class of the user's, whose module may lie in `folder`, is loaded. RoleLoadError says why it is
    no algorithm, ConfigError what is wrong with its settings: with the numbers in them, too, if the
    layout is known.
    """
    from gmi_drl.placement import ConfigError, CustomAlgorithmConfig, settings_of
    from gmi_drl.placement.config.algorithms import mode_faults
    from gmi_drl.roles.loading import check_class, load_class

    from .algorithm import Algorithm

    settings = config.algorithm
    if isinstance(settings, CustomAlgorithmConfig):
        cls = load_class(settings.class_, folder, "algorithm.class")
        check_class(cls, settings.class_, "algorithm.class", Algorithm, f"{__name__}.Algorithm")
        settings = settings_of(cls, settings)
        faults = list(mode_faults(settings, config.mode))
        if layout is not None and config.mode != "serving":
            agents, trainers = layout.holding("agent"), layout.holding("trainer")
            faults += settings.faults(config, len(agents), len(trainers))
        if faults:
            raise ConfigError(faults)
    optimizers = settings.optimizers_in(config.mode)
    if settings.optimizer == "auto" and optimizers:
        settings = settings.model_copy(update={"optimizer": optimizers[0]})
    return config.model_copy(update={"algorithm": settings})
