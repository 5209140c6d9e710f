"""The run that a candidate is measured by: no evaluation, no checkpoints, nobody replaced."""

from __future__ import annotations

from pathlib import Path

from gmi_drl.placement import Config, Topology
from gmi_drl.selector.candidate import Candidate
from gmi_drl.selector.space import config_of, layout_text

from .planning import find_devices


def measured_run(
    config: Config,
    candidate: Candidate,
    folder: Path,
    topology: Topology | None = None,
    total_steps: int | None = None,
) -> Config:
    """`config` with what a candidate has, run in `folder`, which is the caller's to delete.

    Where shares differ the layout file is written there too, for `topology` (None: the devices that
    the config finds). `total_steps`: other than those of `config`.
    """
    layout_file = None
    if candidate.row.percents is not None:
        layout_file = folder / "layout.yaml"
        text = layout_text(config, candidate, topology or find_devices(config))
        layout_file.write_text(text, encoding="utf-8")
    found = config_of(config, candidate, layout_file)
    changes = {
        "folder": str(folder),
        "total_steps": total_steps or config.run.total_steps,
        "eval_episodes": 0,
        "checkpoint_every": 0,
        "target_return": None,
        "max_restarts": 0,
    }
    return found.model_copy(update={"run": found.run.model_copy(update=changes)})
