"""Gives a GMI on a GPU its environment, and checks that it sees that GPU alone."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi.errors import SliceError

from .backend import Backend
from .cpu import take_cores, thread_environment, verify_cores

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device

# A directory that exists, and where nobody can put the socket of a daemon. Without the variable a
# process would join the daemon of the machine, if there is one (/tmp/nvidia-mps).
_NO_DAEMON: Final = "/proc/sys"
_MPS: Final = "CUDA_MPS_"
_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # by older, newer torch
_EXPANDABLE: Final = "expandable_segments"


class GpuBackend(Backend):
    """Gives each GMI one GPU, by UUID, outside any MPS daemon of the machine."""

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        return gpu_environment(spec, uuid_of(spec))

    def enter(self, spec: GmiSpec, device: Device) -> None:
        """Takes the cores, and unsets the variables that are empty, before CUDA starts."""
        take_cores(spec)
        for name in [
            key for key, value in os.environ.items() if key.startswith(_MPS) and not value
        ]:
            del os.environ[name]

    def verify(self, spec: GmiSpec, device: Device) -> None:
        verify_cores(spec)
        verify_device(spec, uuid_of(spec))
        verify_outside_mps(spec)

    def sm_count(self) -> int:
        return cuda_driver.sm_count()

    def why_not_on(self, device: Device, allow_create: bool = False) -> str:
        if device.mig_mode:
            return (
                f"GPU {device.index} ({device.name}) is cut by MIG, and as a whole it is not seen; "
                "use mig, or turn MIG off"
            )
        return ""


def gpu_environment(spec: GmiSpec, uuid: str) -> dict[str, str]:
    """Returns variables for threads and for one GPU or MIG device, by UUID, which needs no order.

    The process stays outside MPS: other MPS variables of this process are set empty, and `enter`
    unsets them. Torch's expandable segments, which CUDA IPC cannot share, are off.
    """
    return {
        **thread_environment(spec),
        **dict.fromkeys((name for name in os.environ if name.startswith(_MPS)), ""),
        **_allocator(),
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_MPS_PIPE_DIRECTORY": _NO_DAEMON,
    }


def _allocator() -> dict[str, str]:
    """Returns the user's allocator variables without their wish for expandable segments."""
    variables = {}
    for name in _ALLOCATOR:
        value = os.environ.get(name, "")
        options = [part for part in re.split(r",(?![^[]*])", value) if part.strip()]
        kept = [part for part in options if not part.strip().startswith(_EXPANDABLE)]
        if len(kept) < len(options):
            variables[name] = ",".join(kept) or f"{_EXPANDABLE}:False"
    return variables


def uuid_of(spec: GmiSpec) -> str:
    """Returns the UUID of its GPU; SliceError without one."""
    if not spec.device_uuid:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: backend {spec.backend} without device_uuid. "
            "Make the layout from the topology that discover() returns."
        )
    return spec.device_uuid


def verify_device(spec: GmiSpec, uuid: str) -> None:
    """Raises SliceError unless this process sees `uuid` and no other device. Starts the driver."""
    try:
        count = cuda_driver.device_count()
        seen_uuid = cuda_driver.device_uuid()
    except cuda_driver.DriverError as error:
        raise SliceError(f"GmiSpec {spec.gmi_id}: device {uuid}: {error}") from error
    if count != 1:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: CUDA sees {count} devices; it must see one, {uuid} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}). "
            "Check that nvidia-smi -L lists it."
        )
    if seen_uuid != bare_uuid(uuid):
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: device {uuid}; CUDA sees {seen_uuid}. "
            "Something sets CUDA_VISIBLE_DEVICES after the GMI was started: remove it."
        )


def verify_outside_mps(spec: GmiSpec) -> None:
    """Raises SliceError if this process is a client of an MPS server. Starts the driver."""
    if cuda_driver.mps_enabled():
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: backend {spec.backend}, but the process is an MPS client "
            f"(CUDA_MPS_PIPE_DIRECTORY={os.environ.get('CUDA_MPS_PIPE_DIRECTORY')}). Something "
            "sets CUDA_MPS_PIPE_DIRECTORY after the GMI was started: remove it."
        )


def bare_uuid(uuid: str) -> str:
    """Returns a UUID as CUDA has it: without the GPU- or MIG- that NVML puts before it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
