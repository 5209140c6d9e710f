"""A GMI as a process on a GPU that others use too, with nothing between them: time-slicing.

Works on every NVIDIA GPU and needs no daemon; there is no limit on SMs or memory and no isolation.
Written from the documentation and tested with doubles: not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from . import cpu
from .errors import SliceError
from .slices import PlainSlices

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology

THREADS: Final = False
FAULTS_SPREAD: Final = False


def prepare(gmis: Sequence[GmiSpec], topology: Topology) -> PlainSlices:
    """Nothing to make: the driver takes turns."""
    return PlainSlices(environment)


def environment(spec: GmiSpec) -> dict[str, str]:
    """The one GPU it sees, by UUID (an index means another GPU under another order), and threads.

    PYTORCH_CUDA_ALLOC_CONF keeps expandable segments off: their memory cannot be shared with other
    processes by CUDA IPC.
    """
    return {
        **cpu.environment(spec),
        "CUDA_VISIBLE_DEVICES": _uuid(spec),
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
    }


def enter(spec: GmiSpec, device: Device) -> None:
    """Takes the cores; the GPU was chosen by the environment."""
    cpu.enter(spec, device)


def verify(spec: GmiSpec, device: Device) -> None:
    """SliceError unless torch sees exactly the one GPU of the spec. Starts CUDA in this process."""
    cpu.verify(spec, device)
    import torch

    count = torch.cuda.device_count()
    if count != 1:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: torch sees {count} GPUs; it must see one, {_uuid(spec)}. "
            "Check that torch is built for CUDA and that nvidia-smi -L lists that GPU."
        )
    properties = torch.cuda.get_device_properties(0)
    seen = str(properties.uuid)
    if _bare(seen) != _bare(_uuid(spec)):
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: device_uuid={_uuid(spec)}; torch sees GPU {seen}. "
            "Something sets CUDA_VISIBLE_DEVICES after the GMI was started: remove it."
        )


def _uuid(spec: GmiSpec) -> str:
    uuid: str | None = spec.device_uuid
    if not uuid:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: backend direct without device_uuid. "
            "Make the layout from the topology that discover() returns."
        )
    return uuid


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").lower()
