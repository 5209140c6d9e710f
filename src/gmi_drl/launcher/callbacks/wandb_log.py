"""Sends a run to Weights & Biases, or keeps it there offline (WANDB_MODE=offline)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Final

from gmi_drl.launcher.folder.run_folder import RunFolder

from .callback import Callback, EndedRun, StartedRun, scalars

_PROJECT: Final = "gmi-drl"
_ID: Final = "wandb_id"  # in run.json: a run that goes on is the same one there
_EXIT_CODES: Final = {"finished": 0, "stopped": 0}


class WandbLog(Callback):
    """Logs config and metrics to W&B; seeds of one name are a group.

    What is not given is as W&B's own environment variables say (WANDB_PROJECT, WANDB_ENTITY,
    WANDB_MODE, WANDB_API_KEY). Nothing else of the run's folder is sent.
    """

    only_logged: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        """`options` go to `wandb.init`, over our own: project, entity, group, tags, ..."""
        self._options = options
        self._run: Any = None

    def on_start(self, run: StartedRun) -> None:
        wandb: Any = import_module("wandb")
        folder, config = RunFolder(run.folder), run.config
        run_id = folder.state().get(_ID) if run.is_resumed else None
        seed = config.run.seed
        options = {
            "project": os.environ.get("WANDB_PROJECT", _PROJECT),
            "name": f"{config.run.name}-{seed}",
            "group": config.run.name,
            "config": config.model_dump(mode="json"),
            "dir": str(run.folder),
            "id": run_id,
            "resume": "allow" if run_id else None,
            # W&B neither captures the launcher's output nor ends another run of this process.
            "settings": wandb.Settings(console="off"),
            "reinit": "create_new",
        }
        self._run = wandb.init(**options | self._options)
        folder.update(**{_ID: self._run.id})
        self._run.define_metric("*", step_metric="steps")

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        self._run.log({"iteration": iteration, **scalars(metrics)})

    def on_end(self, end: EndedRun) -> None:
        if self._run is None:
            return
        self._run.summary["state"] = end.state
        if end.result is not None and end.result.eval_return is not None:
            self._run.summary["eval_return"] = end.result.eval_return
        self._run.finish(exit_code=_EXIT_CODES.get(end.state, 1))
