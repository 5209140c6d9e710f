"""Tries a backend on this machine: a gang of GMIs without roles enters its slices and ends.

It does what a run does before its roles are built, and takes seconds.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from gmi_drl.gmi.errors import GmiDied, GmiError
from gmi_drl.gmi.gang import Gang, origin_of
from gmi_drl.placement import counted
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.layout import GmiSpec, Layout, LayoutError
from gmi_drl.placement.slicing import sliced
from gmi_drl.placement.topology import Topology
from gmi_drl.runtime import ActorRuntimeError

from .backend import backend_of, why_not_on

DEADLINE: Final = timedelta(seconds=60)  # CUDA takes seconds to start on a machine of many GPUs


class _NoRole:
    """Runs in a GMI that only takes its slice."""

    def __init__(self, spec: GmiSpec) -> None:
        pass

    def is_entered(self) -> bool:
        return True


def trial_layout(backend: str, topology: Topology) -> Layout:
    """Lays GMIs of this backend on every GPU that allows it; LayoutError if none does."""
    gpus = [gpu for gpu in topology.devices if not why_not_on(gpu, backend)]
    slots = [gpu for gpu in gpus for _ in range(backend_of(backend).trial_gmis)]
    gmis = tuple(
        GmiSpec(gmi_id, gpu.index, (), backend, (), num_env=0, device_uuid=gpu.uuid)
        for gmi_id, gpu in enumerate(slots)
    )
    return sliced(Layout("trial", topology, gmis), HardwareConfig())


def try_backend(backend: str, topology: Topology, deadline: timedelta = DEADLINE) -> str:
    """Tries a backend, and says what was tried; GmiError says what does not work.

    Nothing is left behind. `topology` is of GPUs, and `backend` is not among its `unusable`. What
    others use is left alone; if they use all, nothing is tried, which is no fault.
    """
    begin_s = time.monotonic()
    topology, busy = backend_of(backend).idle_part(topology)
    if backend_of(backend).uses_mig and not any(device.mig for device in topology.devices):
        return "all instances are in use, not tried"
    try:
        layout = trial_layout(backend, topology)
        _enter(layout, deadline)
    except (LayoutError, ActorRuntimeError) as error:  # the latter if no process can be started
        raise GmiError(str(error)) from error
    gpus = len({gmi.gpu_id for gmi in layout.gmis})
    per_gpu = counted(backend_of(backend).trial_gmis, "GMI")
    where = "" if gpus == 1 else f" on each of {gpus} GPUs"
    result = f"{per_gpu}{where} started and verified in {time.monotonic() - begin_s:.1f} s"
    return "; ".join((result, *(f"all of GPU {index} are in use, not tried" for index in busy)))


def _enter(layout: Layout, deadline: timedelta) -> None:
    """Starts the GMIs and ends them; GmiError if one has not entered its slice by the deadline."""
    threads = any(backend_of(gmi.backend).gmis_are_threads for gmi in layout.gmis)
    preload = ("torch",) if threads else ()  # threads work in its streams
    with Gang(layout, _NoRole, grace=timedelta(seconds=1), preload=preload) as gang:
        gang.start("is_entered")
        try:
            if gang.wait(deadline):
                return
        except GmiDied as error:
            cause = origin_of(error.__cause__)
            raise cause if isinstance(cause, GmiError) else error from None
        gmi = layout.gmis[next(iter(gang.at_work()), 0)]  # 0: it has answered since
        raise GmiError(
            f"GMI {gmi.gmi_id} on GPU {gmi.gpu_id} has not entered its slice within "
            f"{deadline.total_seconds():g} s. Look at nvidia-smi: a GPU that hangs has to be reset."
        )
