"""A GMI as a share of CPU cores: affinity, and one thread per core. Needs no GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi.errors import SliceError
from gmi_drl.runtime import THREAD_VARIABLES

from .slices import PlainSlices

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology

THREADS: Final = False
FAULTS_SPREAD: Final = False
LET_FINISH: Final = False


def prepare(gmis: Sequence[GmiSpec], topology: Topology) -> PlainSlices:
    """Nothing to make: cores are there."""
    return PlainSlices(environment)


def num_threads(spec: GmiSpec) -> int:
    """Threads for computing: one per core of the GMI."""
    return max(1, len(spec.cores))


def environment(spec: GmiSpec) -> dict[str, str]:
    """Thread counts for the libraries that read them when they are loaded, and no GPU: else torch,
    asked by its optimizers, starts CUDA on a machine that has one."""
    return dict.fromkeys(THREAD_VARIABLES, str(num_threads(spec))) | {"CUDA_VISIBLE_DEVICES": ""}


def enter(spec: GmiSpec, device: Device) -> None:
    """Takes the cores, and sets torch's threads if torch is loaded already."""
    if spec.cores:
        try:
            os.sched_setaffinity(0, spec.cores)
        except OSError as error:
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: cores={list(spec.cores)}; the system refuses them "
                f"({error.strerror}). Use cores of {_listed(os.sched_getaffinity(0))}."
            ) from error
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(num_threads(spec))


def verify(spec: GmiSpec, device: Device) -> None:
    """SliceError unless affinity and torch's threads are what the spec says."""
    here = os.sched_getaffinity(0)
    if spec.cores and here != set(spec.cores):
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: cores={list(spec.cores)}; the process runs on "
            f"{_listed(here)}. Something else sets its affinity (a container, taskset): "
            "choose cores it allows."
        )
    if torch := sys.modules.get("torch"):
        threads = torch.get_num_threads()
        if threads != num_threads(spec):
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: {num_threads(spec)} threads for torch; it has {threads}. "
                "Do not call torch.set_num_threads while modules are preloaded."
            )


def sm_count() -> int:
    """See `Backend`."""
    return 0


def _listed(cores: set[int]) -> str:
    return f"cores {sorted(cores)}"
