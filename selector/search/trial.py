"""The runtime task that trains a trial of a search: one GMI, from a checkpoint, up to a step count.

The worker it runs in is warm: torch is there, and no process starts for a stint. What a stint does
is decided by its job alone, so that one whose worker dies is run again, from the last checkpoint it
has written itself or else from the one it had begun with, and ends the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.comm import create_group
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.placement import Config, Layout
from gmi_drl.placement.faults import device_name
from gmi_drl.placement.resolve import template_of
from gmi_drl.roles.role.host import COUNTERS, GmiHost, Job
from gmi_drl.roles.role.wires import Wires
from gmi_drl.runtime import remote

from .trial_device import TrialError, on_device

if TYPE_CHECKING:
    from gmi_drl.roles.role.trainer import Trainer

METRICS: Final = "metrics.jsonl"  # of a stint's folder, as of a run's
_POINTS: Final = 200  # of a learning curve that a result carries
_RETRIES: Final = 2  # when the worker dies


@dataclass(frozen=True)
class TrialJob:
    """Everything a stint is decided by."""

    name: str  # as errors call it: "trial 3"
    config: Config  # with the trial's values; total_steps are those of the whole search
    layout: Layout  # of one GMI
    steps: int  # it ends at these, or a little above: the iteration is finished
    folder: Path  # of this stint alone; made here
    resume: Path | None  # the checkpoint to begin from; None: a new policy
    learning_rate: float | None  # instead of the checkpoint's; None: that stays
    session: str  # names the stint among those that write checkpoints
    sockets: Path  # a private folder (0700) with a short path
    role_folder: Path | None  # where role modules lie: beside the config file


@dataclass(frozen=True)
class Trained:
    """How a stint ended."""

    return_mean: float | None  # of the last 100 episodes; None before the first one has ended
    steps: int  # since the trial's beginning
    iteration: int
    seconds: float  # of this stint, with its start and its checkpoints
    checkpoint: Path
    points: tuple[tuple[int, float], ...]  # (steps, return_mean) of this stint, 200 at most


def train(job: TrialJob) -> Trained:
    """Trains as `job` says, in this process, and returns when the last checkpoint is written.

    Takes the cores of the job's GMI for this time, and its GPU. Raises what training raises:
    DivergedError, CheckpointError, or whatever a role of the user's does.
    """
    began_s = time.monotonic()
    spec = job.layout.gmi(0)
    device = job.layout.topology.devices[spec.gpu_id]
    job.folder.mkdir(parents=True, exist_ok=True)
    sockets = Path(tempfile.mkdtemp(prefix="t", dir=job.sockets))
    try:
        with on_device(spec, device) as name:
            found = GmiHost(0, _gmi_job(job, sockets, name)).run()
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    return Trained(
        found["return_mean"],
        found["steps"],
        found["iteration"],
        time.monotonic() - began_s,
        Path(found["checkpoint"]),
        _curve(job.folder / METRICS),
    )


# Its cores are dealt by who calls it, so the scheduler has nothing to count but the call itself.
train_task: Final = remote(num_cpus=0.0, max_retries=_RETRIES)(train)


def _gmi_job(job: TrialJob, sockets: Path, device: str) -> Job:
    """What the one GMI is told; `device` is torch's name of where it trains."""
    spec = job.layout.gmi(0)
    name = f"gmi 0, {device_name(job.layout.topology.devices[spec.gpu_id])}"
    return Job(
        job.layout,
        job.config,
        create_group([name]),
        sockets,
        job.folder,
        job.resume,
        {spec.roles[-1]: _pausing(job)},
        job.role_folder,
        job.session,
        create_tally(1, COUNTERS),
        Wires(),
        device,
    )


def _pausing(job: TrialJob) -> type[Trainer]:
    """The class that trains, changed to end at the job's steps and to say what it reached."""
    from gmi_drl.roles.role.role import load_role
    from gmi_drl.roles.role.trainer import Trainer
    from gmi_drl.roles.state.training import Pause

    reference = _role_of(job.config)
    role = load_role(reference, job.role_folder)
    if not issubclass(role, Trainer):
        raise TrialError(
            f"{job.name}: role {reference} does not train as gmi-drl's own do, so it cannot be "
            "paused and gone on with. Derive it from gmi_drl.Holistic."
        )

    class Pausing(role):  # type: ignore[valid-type, misc]
        def GMI_run(self, **params: Any) -> Any:
            self.check_no_params(params)
            return self.train(Pause(job.steps, job.learning_rate))

    Pausing.__name__ = Pausing.__qualname__ = role.__name__
    return Pausing


def _role_of(config: Config) -> str:
    template = template_of(config)
    name = template.class_roles[0]
    return config.roles[name].class_ if name in config.roles else template.classes[name]


def last_line(metrics: Path) -> dict[str, Any] | None:
    """The last whole line of a file of metrics that may be being written; None without one."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 14)))
            lines = file.read().split(b"\n")[:-1]  # the last one has no end yet, or is empty
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            return found if isinstance(found, dict) else None
    return None


def _curve(metrics: Path) -> tuple[tuple[int, float], ...]:
    points = []
    with contextlib.suppress(OSError), open(metrics, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                its = json.loads(line)
                if its["return_mean"] is not None:
                    points.append((int(its["steps"]), float(its["return_mean"])))
    every = -(-len(points) // _POINTS)
    return tuple(points[::-1][::every][::-1]) if points else ()  # the last one is always there
