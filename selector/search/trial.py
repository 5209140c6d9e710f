"""Trains runs of trials in GMIs that stay warm: from a checkpoint, up to a step count.

A trial has the GMIs of its layout, as a launch has. The job alone decides a run: where a process of
its GMIs dies, the run goes on from the last checkpoint that it has written itself, or else from the
one it began with, and ends the same.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import Gang, GmiDied
from gmi_drl.launcher.callbacks.tensorboard_log import TensorBoardLog
from gmi_drl.launcher.folder.run_folder import METRICS, RunFolder, metrics_in
from gmi_drl.launcher.start.jobs import job_of
from gmi_drl.launcher.watch.watchdog import is_recoverable
from gmi_drl.placement import Config, Layout
from gmi_drl.roles.loading import classes_of
from gmi_drl.roles.role.host import GmiHost
from gmi_drl.roles.role.job import Job, Pause
from gmi_drl.runtime import TaskError

if TYPE_CHECKING:
    from gmi_drl.runtime import ObjectRef

_POINTS: Final = 200  # of a learning curve that a result carries
_RETRIES: Final = 2  # when a process dies


class TrialError(GmiDrlError, RuntimeError):
    """A trial cannot be trained as it was asked for."""


class TrialEnded(GmiDrlError, RuntimeError):
    """A trial was ended from outside, as it wrote no more metrics."""


@dataclass(frozen=True)
class TrialJob:
    """Holds everything that decides a run."""

    name: str  # as errors call it: "trial 3"
    config: Config  # with the trial's values; total_steps are those of the whole search
    layout: Layout
    steps: int  # it ends at these, or a little above: the iteration is finished
    folder: Path  # of this run alone; made here
    resume: Path | None  # the checkpoint to begin from; None: a new policy
    learning_rate: float | None  # instead of the checkpoint's; None: that stays
    session: str  # names the run among those that write checkpoints
    sockets: Path  # a private folder (0700) with a short path
    role_folder: Path | None  # where role modules lie: beside the config file
    copy: int = 0  # the run's number, if the checkpoint is another trial's, which goes on as well


@dataclass(frozen=True)
class TrialResult:
    """Holds how a run ended."""

    return_mean: float | None  # of the last 100 episodes; None before the first one has ended
    steps: int  # since the trial's beginning
    iteration: int
    seconds: float  # of this run, with its start and its checkpoints
    checkpoint: Path
    points: tuple[tuple[int, float], ...]  # (steps, return_mean) of this run, 200 at most


class TrialGmi:
    """Trains a GMI's part of one run after another."""

    def __init__(self, gmi_id: int) -> None:
        self._gmi_id = gmi_id

    def train(self, job: Job, name: str) -> Any:
        """Trains its part of a job; returns what its role does."""
        from gmi_drl.roles.role.role import load_role
        from gmi_drl.roles.role.trainer import Trainer

        if "trainer" in job.layout.gmi(self._gmi_id).roles:
            reference = job.class_of(self._gmi_id)
            if not issubclass(load_role(reference, job.role_folder), Trainer):
                raise TrialError(
                    f"{name}: role {reference} does not train as gmi-drl's own do, so it cannot be "
                    "paused and gone on with. Derive it from gmi_drl.Holistic."
                )
        host = GmiHost(self._gmi_id, job)
        try:
            return host.run()
        finally:
            host.close()
            _give_back_memory()


class TrialGmis:
    """Holds the GMIs of a group of devices, which train one run after another.

    Their processes stay for the next run. New ones are started after a run that failed or lost a
    process, and for a run with another layout.
    """

    def __init__(self, name: str = "trial", logs: Path | None = None) -> None:
        """`logs` is the folder of their logs, which begin with `name`."""
        self._name, self._logs = name, logs
        self._gang: Gang | None = None
        self._retries: int | None = None

    def begin(self, job: TrialJob) -> None:
        """Begins a run, and returns when its GMIs have been told."""
        self._job, self._began_s = job, time.monotonic()
        (job.folder / "report").mkdir(parents=True, exist_ok=True)  # of what channels carried
        classes = classes_of(job.config, job.layout, None)
        self._sockets = Path(tempfile.mkdtemp(prefix="t", dir=job.sockets))
        gmi_job, _ = job_of(
            job.layout, job.config, RunFolder(job.folder), classes, job.role_folder,
            resume=job.resume, sockets=self._sockets,
        )  # fmt: skip
        # The search's folder has a lock of its own.
        pause = Pause(job.steps, job.learning_rate, job.copy)
        gmi_job = replace(gmi_job, lock=None, session=job.session, pause=pause)
        arguments = {g.gmi_id: (gmi_job.of_gmi(g.gmi_id), job.name) for g in job.layout.gmis}
        if self._gang is not None and self._gang.layout == job.layout:
            with contextlib.suppress(GmiDied):  # idle, and so for no fault of this run's
                self._gang.start_each("train", arguments)
                return
        self._end()  # whose sockets went when its last run ended
        if self._retries is None:  # all trials have the same roles
            comes_back = all(is_recoverable(role, job.role_folder) for role in classes.values())
            self._retries = _RETRIES if comes_back else 0
        self._gang = Gang(
            job.layout, TrialGmi, lambda spec: (spec.gmi_id,), logs=self._logs,
            max_restarts=self._retries, name=f"{self._name}.gmi",
        )  # fmt: skip
        self._gang.start_each("train", arguments)

    def to_come(self) -> list[ObjectRef]:
        """Returns what ends or changes a run: answers of its GMIs, and ends of their processes."""
        return [] if self._gang is None else self._gang.to_come()

    def look(self) -> TrialResult | None:
        """Returns how the run ended; None while it trains. Returns at once.

        Raises what a GMI has raised, as a TaskError, or GmiDied.
        """
        assert self._gang is not None, "begin comes first"
        self._gang.records()  # nobody reads them: metrics.jsonl has what they say
        try:
            if not self._gang.wait(timedelta(0)):
                return None
        except GmiDied as error:
            self.close()
            raise (error.__cause__ if isinstance(error.__cause__, TaskError) else error) from None
        outcomes = self._gang.results()
        job, restarts = self._job, self._gang.restarts()
        shutil.rmtree(self._sockets, ignore_errors=True)
        if restarts:  # the next run may lose as many
            self.close()
        if "tensorboard" in job.config.run.log:
            with contextlib.suppress(OSError):  # a full disk: the trial is done
                TensorBoardLog.write(job.folder, metrics_in((job.folder / METRICS).read_bytes()))
        outcome = outcomes[job.layout.holding("trainer")[0].gmi_id]
        return TrialResult(
            return_mean=outcome["return_mean"],
            steps=outcome["steps"],
            iteration=outcome["iteration"],
            seconds=time.monotonic() - self._began_s,
            checkpoint=Path(outcome["checkpoint"]),
            points=_curve(job.folder),
        )

    def close(self, kill: bool = False) -> None:
        """Ends the processes; `kill`: at once, whatever they do."""
        if self._gang is not None:
            self._end(kill)
            shutil.rmtree(self._sockets, ignore_errors=True)

    def _end(self, kill: bool = False) -> None:
        if self._gang is not None:
            gang, self._gang = self._gang, None
            gang.kill() if kill else gang.stop()


def _give_back_memory() -> None:
    """Leaves nothing of a run in the memory of a GPU, which the next one may need."""
    import gc

    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def _curve(folder: Path) -> tuple[tuple[int, float], ...]:
    points = []
    with contextlib.suppress(OSError):
        for line in metrics_in((folder / METRICS).read_bytes()):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if line["return_mean"] is not None:
                    points.append((int(line["steps"]), float(line["return_mean"])))
    every = -(-len(points) // _POINTS) or 1
    return tuple(points[::-1][::every][::-1])  # the last one is always there
