"""A GMI as a process on a GPU that others use too, with nothing between them: time-slicing.

Works on every NVIDIA GPU and needs no daemon. There is no limit on SMs and no isolation; that on
memory is kept by torch alone (see `memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi import cuda_driver

from . import cpu, gpu
from .slices import PlainSlices

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology

THREADS: Final = False
FAULTS_SPREAD: Final = False
LET_FINISH: Final = False


def prepare(gmis: Sequence[GmiSpec], topology: Topology) -> PlainSlices:
    """Nothing to make: the driver takes turns."""
    return PlainSlices(environment)


def environment(spec: GmiSpec) -> dict[str, str]:
    """The one GPU it sees, by UUID, outside any MPS daemon of the machine; and threads."""
    return gpu.environment(spec, gpu.uuid_of(spec))


def enter(spec: GmiSpec, device: Device) -> None:
    """Takes the cores; the GPU was chosen by the environment."""
    gpu.enter(spec, device)


def verify(spec: GmiSpec, device: Device) -> None:
    """SliceError unless CUDA sees exactly the one GPU of the spec, outside MPS."""
    cpu.verify(spec, device)
    gpu.verify_device(spec, gpu.uuid_of(spec))
    gpu.verify_outside_mps(spec)


def sm_count() -> int:
    """See `Backend`."""
    return cuda_driver.sm_count()
