"""`launch`: from a config to a finished run. The driver plans, starts, watches, and stays out.

This process never imports torch: that happens once, in the fork server, while the config is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl import runtime
from gmi_drl.placement import Config, Layout

from .curve import draw_curve
from .run_folder import RunFolder
from .view import View, ViewName, open_view

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

_HOST = "gmi_drl.roles.host:GmiHost"
_HOLISTIC = "gmi_drl.roles:Holistic"
PRELOAD = (
    "torch",
    "torch.utils.tensorboard",
    "mujoco",
    "gymnasium",
    "gmi_drl.roles.host",
    "gmi_drl.roles.envs.mujoco",
)


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `gmis` holds what each GMI's role returned, by gmi_id."""

    folder: Path
    state: str  # "finished", or "stopped" when it was asked to end
    iteration: int
    steps: int
    seconds: float  # training time, all sessions of the run together
    steps_per_s: float
    return_mean: float | None  # of the last 100 training episodes
    eval_return: float | None  # mean return of the greedy policy's whole episodes
    curve: Path | None
    gmis: list[Any]


def launch(
    config: Config | Path | str | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    roles: Mapping[str, type[DRL_role]] | None = None,
    resume: Path | str | None = None,
    view: ViewName = "auto",
) -> RunResult:
    """Train what `config` says and return when it is done.

    `overrides` are `section.key=value` strings; `roles` gives classes instead of the config's
    names; `resume` is a run's folder, or one of its checkpoints. Raises ConfigError with every
    fault, GmiDied when a GMI is lost, and leaves no process behind.
    """
    runtime.init(PRELOAD)
    raise SystemExit("unfinished")
