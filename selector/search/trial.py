"""Trains a run of a trial as a runtime task: one GMI, from a checkpoint, up to a step count.

Its worker is warm, and a job alone decides a run: one whose worker dies is run again, from the last
checkpoint it has written itself or else from the one it had begun with, and ends the same.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.comm import create_group
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi.backends.cpu import take_cores
from gmi_drl.gmi.backends.gpu import bare_uuid, uuid_of
from gmi_drl.launcher.callbacks.tensorboard_log import TensorBoardLog
from gmi_drl.launcher.folder.run_folder import METRICS, metrics_in
from gmi_drl.placement import Config, Device, GmiSpec, Layout
from gmi_drl.placement.faults import device_name
from gmi_drl.placement.resolve import template_of
from gmi_drl.roles.role.host import COUNTERS, GmiHost, Job, Wires
from gmi_drl.runtime import remote

if TYPE_CHECKING:
    from gmi_drl.roles.role.trainer import Trainer

_POINTS: Final = 200  # of a learning curve that a result carries
_RETRIES: Final = 2  # when the worker dies


class TrialError(GmiDrlError, RuntimeError):
    """A trial cannot be trained as it was asked for."""


@dataclass(frozen=True)
class TrialJob:
    """Everything a run is decided by."""

    name: str  # as errors call it: "trial 3"
    config: Config  # with the trial's values; total_steps are those of the whole search
    layout: Layout  # of one GMI
    steps: int  # it ends at these, or a little above: the iteration is finished
    folder: Path  # of this run alone; made here
    resume: Path | None  # the checkpoint to begin from; None: a new policy
    learning_rate: float | None  # instead of the checkpoint's; None: that stays
    session: str  # names the run among those that write checkpoints
    sockets: Path  # a private folder (0700) with a short path
    role_folder: Path | None  # where role modules lie: beside the config file


@dataclass(frozen=True)
class TrialResult:
    """Holds how a run ended."""

    return_mean: float | None  # of the last 100 episodes; None before the first one has ended
    steps: int  # since the trial's beginning
    iteration: int
    seconds: float  # of this run, with its start and its checkpoints
    checkpoint: Path
    points: tuple[tuple[int, float], ...]  # (steps, return_mean) of this run, 200 at most


def train(job: TrialJob) -> TrialResult:
    """Trains as `job` says, in this process; returns when the last checkpoint is written."""
    began_s = time.monotonic()
    spec = job.layout.gmi(0)
    device = job.layout.topology.devices[spec.gpu_id]
    job.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(
            prefix="t", dir=job.sockets, ignore_cleanup_errors=True
        ) as sockets,
        on_device(spec, device) as name,
    ):
        told = Job(
            layout=job.layout, config=job.config, sockets=Path(sockets), folder=job.folder,
            group=create_group([f"gmi 0, {device_name(device)}"]), resume=job.resume,
            classes={spec.roles[-1]: _pausing(job)}, role_folder=job.role_folder,
            session=job.session, tally=create_tally(1, COUNTERS), wires=Wires(), device=name,
        )  # fmt: skip
        outcome = GmiHost(0, told).run()
    if "tensorboard" in job.config.run.log:
        with contextlib.suppress(OSError):  # a full disk: the trial is done
            TensorBoardLog.write(job.folder, metrics_in((job.folder / METRICS).read_bytes()))
    return TrialResult(
        return_mean=outcome["return_mean"],
        steps=outcome["steps"],
        iteration=outcome["iteration"],
        seconds=time.monotonic() - began_s,
        checkpoint=Path(outcome["checkpoint"]),
        points=_curve(job.folder),
    )


# Its cores are dealt by who calls it, so the scheduler has nothing to count but the call itself.
train_task: Final = remote(num_cpus=0.0, max_retries=_RETRIES)(train)


def _pausing(job: TrialJob) -> type[Trainer]:
    """Returns the class that trains, made to end at the job's steps and say what it reached."""
    from gmi_drl.roles.role.role import load_role
    from gmi_drl.roles.role.trainer import Trainer
    from gmi_drl.roles.state.training import Pause

    template = template_of(job.config)
    name = template.class_roles[0]
    given = job.config.roles.get(name)
    reference = template.classes[name] if given is None else given.class_
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


def _curve(folder: Path) -> tuple[tuple[int, float], ...]:
    points = []
    with contextlib.suppress(OSError):
        for line in metrics_in((folder / METRICS).read_bytes()):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if line["return_mean"] is not None:
                    points.append((int(line["steps"]), float(line["return_mean"])))
    every = -(-len(points) // _POINTS) or 1
    return tuple(points[::-1][::every][::-1])  # the last one is always there


@contextlib.contextmanager
def on_device(spec: GmiSpec, device: Device) -> Iterator[str]:
    """In this block the process has the GMI's cores and GPU; yields torch's name of the device."""
    import torch

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    take_cores(spec)
    _move_threads(os.sched_getaffinity(0))
    try:
        if device.kind == "gpu":
            index = _cuda_index(spec)
            with torch.cuda.device(index), _given_back():
                yield f"cuda:{index}"  # `cuda` alone is that of the thread that asks
        else:
            yield "cpu"
    finally:
        torch.set_num_threads(threads)
        _move_threads(cores)


@contextlib.contextmanager
def _given_back() -> Iterator[None]:
    """After this block, however it ends, the process holds none of the GPU's memory."""
    import torch

    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # their locals are the policy and its samples
        raise
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _move_threads(cores: set[int]) -> None:
    """Lets all threads run on these cores alone: pools would stay where they were made."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def _cuda_index(spec: GmiSpec) -> int:
    """Finds torch's index of the GMI's GPU. The worker sees all GPUs, as it has trials of each."""
    import torch

    wanted, count = bare_uuid(uuid_of(spec)), torch.cuda.device_count()
    seen = [bare_uuid(str(torch.cuda.get_device_properties(i).uuid)) for i in range(count)]
    if wanted not in seen:
        raise TrialError(
            f"GPU {spec.device_uuid} is not among those that CUDA sees here ({', '.join(seen)}). "
            "Check CUDA_VISIBLE_DEVICES, and hardware.num_gpus."
        )
    return seen.index(wanted)
