"""What the backends for GPUs share: the environment of a GMI on one GPU, and whether it sees it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi.errors import SliceError

from . import cpu

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device

# A directory that is there, and where nobody can put the socket of a daemon. Unset, a process would
# join the daemon of the machine, if there is one (/tmp/nvidia-mps).
_NO_DAEMON: Final = "/proc/sys"
_MPS: Final = "CUDA_MPS_"
_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # by older, newer torch
_EXPANDABLE: Final = "expandable_segments"


def environment(spec: GmiSpec, uuid: str) -> dict[str, str]:
    """Threads, and the one GPU or MIG device, by UUID: an index is another under another order.

    The process stays outside MPS: what this process has of MPS's other variables is empty there,
    for `enter` to take out. Torch's expandable segments are off: their memory cannot be shared with
    other processes by CUDA IPC. The rest of the user's options for its allocator stays.
    """
    return {
        **cpu.environment(spec),
        **dict.fromkeys((name for name in os.environ if name.startswith(_MPS)), ""),
        **_allocator(),
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_MPS_PIPE_DIRECTORY": _NO_DAEMON,
    }


def _allocator() -> dict[str, str]:
    """The user's variables that ask for expandable segments, without that."""
    found = {}
    for name in _ALLOCATOR:
        given = os.environ.get(name, "")
        options = [part for part in re.split(r",(?![^[]*])", given) if part.strip()]
        kept = [part for part in options if not part.strip().startswith(_EXPANDABLE)]
        if len(kept) < len(options):
            found[name] = ",".join(kept) or f"{_EXPANDABLE}:False"
    return found


def enter(spec: GmiSpec, device: Device) -> None:
    """Takes the cores, and takes out what `environment` emptied; before CUDA is started."""
    cpu.enter(spec, device)
    for name in [name for name, value in os.environ.items() if name.startswith(_MPS) and not value]:
        del os.environ[name]


def uuid_of(spec: GmiSpec) -> str:
    """The UUID of its GPU; SliceError without one."""
    if not spec.device_uuid:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: backend {spec.backend} without device_uuid. "
            "Make the layout from the topology that discover() returns."
        )
    return spec.device_uuid


def verify_device(spec: GmiSpec, uuid: str) -> None:
    """SliceError unless this process sees the device `uuid` and no other. Starts the driver."""
    try:
        count = cuda_driver.device_count()
        seen = cuda_driver.device_uuid()
    except cuda_driver.DriverError as error:
        raise SliceError(f"GmiSpec {spec.gmi_id}: device {uuid}: {error}") from error
    if count != 1:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: CUDA sees {count} devices; it must see one, {uuid} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}). "
            "Check that nvidia-smi -L lists it."
        )
    if seen != bare(uuid):
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: device {uuid}; CUDA sees {seen}. "
            "Something sets CUDA_VISIBLE_DEVICES after the GMI was started: remove it."
        )


def verify_outside_mps(spec: GmiSpec) -> None:
    """SliceError if this process is a client of an MPS server. Starts the driver."""
    if cuda_driver.mps_enabled():
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: backend {spec.backend}, but the process is an MPS client "
            f"(CUDA_MPS_PIPE_DIRECTORY={os.environ.get('CUDA_MPS_PIPE_DIRECTORY')}). Something "
            "sets CUDA_MPS_PIPE_DIRECTORY after the GMI was started: remove it."
        )


def bare(uuid: str) -> str:
    """A UUID as CUDA has it: without the GPU- or MIG- that NVML puts before it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
