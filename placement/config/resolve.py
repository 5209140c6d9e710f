"""Configs with `auto` made ones that can run, and one that stands for them until then."""

from __future__ import annotations

from typing import Any, Final

from gmi_drl.placement.templates.templates import template_of

from .config import Config
from .section import AUTO

_PAIRED: Final = ("tdg", "tdg_ex")  # a device needs a GMI of each kind
_NUM_ENV: Final = 64  # what a plain user has


def settled(
    config: Config,
    *,
    gmi_per_gpu: int | None = None,
    num_env: int | None = None,
    horizon: int | None = None,
) -> Config:
    """`config` with what is given here in place of what it says, `auto` or not."""
    changes: dict[str, Any] = {}
    if gmi_per_gpu is not None:
        changes["layout"] = config.layout.model_copy(update={"gmi_per_gpu": gmi_per_gpu})
    if num_env is not None:
        changes["env"] = config.env.model_copy(update={"num_env": num_env})
    if horizon is not None:
        changes["algorithm"] = config.algorithm.model_copy(update={"horizon": horizon})
    return config.model_copy(update=changes)


def least_gmis(config: Config) -> int:
    """How many GMIs of a device the config's template needs at least."""
    return 2 if template_of(config) in _PAIRED else 1


def simplest(config: Config) -> Config:
    """`config` with the fewest GMIs and 64 environments where it says `auto`; itself otherwise."""
    return settled(
        config,
        gmi_per_gpu=least_gmis(config) if config.layout.gmi_per_gpu == AUTO else None,
        num_env=_NUM_ENV if config.env.num_env == AUTO else None,
    )
