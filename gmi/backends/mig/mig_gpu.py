"""Makes and destroys MIG instances through NVML, one GPU at a time.

A GPU instance is a piece of the GPU; a compute instance over all of it makes it a device that a
process sees. Both need root.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from gmi_drl.gmi.errors import GmiError
from gmi_drl.gmi.nvml import mig_handles, nvml_session, read_instances, read_processes
from gmi_drl.placement.layout import MigSlice
from gmi_drl.placement.topology import Device, MigInstance

_RETRY_S: Final = 0.1  # between two attempts while the GPU is in use
_REMEDIES: Final = {
    "NO_PERMISSION": "It needs root (in a container also access to the MIG configuration: "
    "NVIDIA_MIG_CONFIG_DEVICES=all). Run as root, or have an administrator do it",
    "IN_USE": "Something holds the GPU or the instance (monitors such as dcgm count): stop it, see "
    "nvidia-smi",
    "INSUFFICIENT_RESOURCES": "Another instance lies there: see nvidia-smi mig -lgi, and choose "
    "another place, or destroy it",
    "RESET_REQUIRED": "The GPU must be reset first (nvidia-smi --gpu-reset), in a virtual machine "
    "this may need a restart of it",
    "GPU_IS_LOST": "The GPU has fallen off the bus: nothing of it can be used until the machine is "
    "started anew",
    "NOT_SUPPORTED": "Is MIG mode on, and the driver new enough for it? See nvidia-smi mig -lgip",
}


@dataclass(eq=False, repr=False)
class MigError(GmiError):
    """NVML has refused something: what was tried, and the name of its code ("IN_USE")."""

    what: str
    code: str

    def __str__(self) -> str:
        remedy = _REMEDIES.get(self.code)
        return f"{self.what}: NVML says {self.code}." + (f" {remedy}." if remedy else "")


@dataclass(frozen=True)
class GpuInstance:
    """An existing GPU instance, with a compute instance or without."""

    id: int  # unique on its GPU while it exists; reused afterwards
    profile_id: int
    start: int
    handle: Any


class MigGpu:
    """Makes and destroys instances of one GPU while NVML is open. MigError if NVML refuses."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml, self.uuid = nvml, uuid
        self._find()

    @classmethod
    @contextlib.contextmanager
    def open(cls, uuid: str) -> Iterator[Self]:
        """Opens the GPU with this UUID until the end of the block; GmiError without a driver."""
        with nvml_session() as nvml:
            try:
                yield cls(nvml, uuid)
            except nvml.NVMLError as error:  # of queries; the GPU may be lost
                raise _error(nvml, uuid, error.value) from error

    def mode(self) -> tuple[bool, bool]:
        """Tells whether MIG mode is on now, and whether it will be after the GPU's next reset."""
        with self._mig_errors("MIG mode"):
            active, pending = self._nvml.nvmlDeviceGetMigMode(self._handle)
        return bool(active), bool(pending)

    def switch(self, on: bool) -> None:
        """Turns MIG mode on or off at once; if that is not possible, it stays as it is.

        The driver resets the GPU, which must not be in use. MigError says what prevents it.
        """
        set_mode, text = self._nvml.nvmlDeviceSetMigMode, f"MIG mode {'on' if on else 'off'}"
        was_on, _ = self.mode()
        with self._mig_errors(text):
            activated = int(set_mode(self._handle, int(on)))
        if activated:
            # Else the change would come with the next reset, when nobody expects it.
            with self._mig_errors("MIG mode as it was"):
                set_mode(self._handle, int(was_on))
            raise self._error(text, activated)
        self._find()

    def has_device(self, mig_uuid: str) -> bool:
        """Tells whether this MIG device exists."""
        devices = mig_handles(self._nvml, self._handle)
        return any(self._nvml.nvmlDeviceGetUUID(device) == mig_uuid for device in devices)

    def pids(self, mig_uuid: str | None = None) -> list[int]:
        """Lists the processes on the GPU, or in one MIG device of it."""
        devices = mig_handles(self._nvml, self._handle)
        if mig_uuid is not None:
            matches = [d for d in devices if self._nvml.nvmlDeviceGetUUID(d) == mig_uuid]
            return [process.pid for process in read_processes(self._nvml, matches)]
        return [process.pid for process in read_processes(self._nvml, [self._handle, *devices])]

    def instances(self) -> list[GpuInstance]:
        """Lists all GPU instances there are."""
        nvml, instances = self._nvml, []
        for profile in self._profiles():
            handles = (nvml.c_nvmlGpuInstance_t * max(1, profile.instanceCount))()
            count = c_uint()
            with self._mig_errors("GPU instances"):
                nvml.nvmlDeviceGetGpuInstances(self._handle, profile.id, handles, byref(count))
                for handle in handles[: count.value]:
                    info = nvml.nvmlGpuInstanceGetInfo(handle)
                    instances.append(
                        GpuInstance(info.id, info.profileId, info.placement.start, handle)
                    )
        return instances

    def profile_id(self, wanted: MigSlice, device: Device) -> int:
        """Returns the driver's id of this profile."""
        ids = {_name(info): int(info.id) for info in self._profiles()}
        if wanted.profile not in ids:
            raise GmiError(
                f"GPU {device.index} ({device.name}): MIG profile {wanted.profile!r}; there is "
                f"{', '.join(ids) or 'none'}. Use one of them."
            )
        return ids[wanted.profile]

    def make(self, profile_id: int, start: int) -> int:
        """Makes a GPU instance at memory slice `start`; returns its id. No process sees it yet."""
        nvml, text = self._nvml, f"a MIG instance of profile {profile_id} at {start}"
        placements, count = (nvml.c_nvmlGpuInstancePlacement_t * 16)(), c_uint(16)
        with self._mig_errors(text):
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
                self._handle, profile_id, placements, byref(count)
            )
            by_start = {placement.start: placement for placement in placements[: count.value]}
            if start not in by_start:
                raise GmiError(
                    f"{text} of {self.uuid}; it can begin at {list(by_start)}. Use one of them."
                )
            handle = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                self._handle, profile_id, byref(by_start[start])
            )
            return int(nvml.nvmlGpuInstanceGetInfo(handle).id)

    def fill(self, instance_id: int, device: Device) -> MigInstance:
        """Makes a compute instance over a whole GPU instance, which is the device processes see."""
        nvml, text = self._nvml, f"the compute instance of MIG instance {instance_id}"
        instance = next(instance for instance in self.instances() if instance.id == instance_id)
        kinds = self._compute_profiles(instance.handle)
        largest = max(kinds, key=lambda info: (info.sliceCount, info.multiprocessorCount))
        with self._mig_errors(text):
            nvml.nvmlGpuInstanceCreateComputeInstance(instance.handle, largest.id)
            for part in mig_handles(nvml, self._handle):
                if nvml.nvmlDeviceGetGpuInstanceId(part) == instance_id:
                    return read_instances(nvml, self._handle, [part], device)[0]
        raise GmiError(
            f"{text} of {self.uuid} was made, and is not listed. In a container it is not seen "
            "before the container is started anew: have the instances made before."
        )

    def destroy(self, gi: GpuInstance, timeout: timedelta = timedelta(0)) -> None:
        """Destroys its compute instances, then itself; waits up to `timeout` while it is in use."""

        def step(destroy: Callable[[Any], None], handle: Any) -> None:
            with self._mig_errors(f"destroying MIG instance {gi.id}"):
                destroy(handle)

        for handle in self._compute_instances(gi.handle):
            inner = self._nvml.nvmlComputeInstanceDestroy
            retry_while_in_use(timeout, functools.partial(step, inner, handle))
        outer = self._nvml.nvmlGpuInstanceDestroy
        retry_while_in_use(timeout, functools.partial(step, outer, gi.handle))

    def is_filled(self, gi: GpuInstance) -> bool:
        """Tells whether it has compute instances."""
        return bool(self._compute_instances(gi.handle))

    def _find(self) -> None:
        with self._mig_errors("looking for it"):
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self.uuid)

    def _profiles(self) -> list[Any]:
        """Returns the driver's information on each profile of GPU instances it offers."""
        query = self._nvml.nvmlDeviceGetGpuInstanceProfileInfo
        return self._supported(query, self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT, self._handle)

    def _compute_profiles(self, gi: Any) -> list[Any]:
        nvml, shared = self._nvml, self._nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED

        def ask(gi: Any, number: int) -> Any:
            return nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, number, shared)

        return self._supported(ask, nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT, gi)

    def _compute_instances(self, gi: Any) -> list[Any]:
        nvml, instances = self._nvml, []
        for info in self._compute_profiles(gi):
            handles, count = (nvml.c_nvmlComputeInstance_t * max(1, info.instanceCount))(), c_uint()
            with self._mig_errors("compute instances"):
                nvml.nvmlGpuInstanceGetComputeInstances(gi, info.id, handles, byref(count))
            instances += handles[: count.value]
        return instances

    def _supported(self, query: Callable[[Any, int], Any], count: int, owner: Any) -> list[Any]:
        """Returns the driver's answers for the numbers below `count` that it supports."""
        nvml, infos = self._nvml, []
        for number in range(count):
            with (
                self._mig_errors("MIG profiles"),
                contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument),
            ):
                infos.append(query(owner, number))
        return infos

    @contextlib.contextmanager
    def _mig_errors(self, what: str) -> Iterator[None]:
        """Raises errors of NVML in the block as MigError; `what` says what was tried."""
        try:
            yield
        except self._nvml.NVMLError as error:
            raise self._error(what, error.value) from error

    def _error(self, what: str, code: int) -> MigError:
        return _error(self._nvml, f"{self.uuid}: {what}", code)


def retry_while_in_use(timeout: timedelta, step: Callable[[], Any]) -> None:
    """Runs a step, and repeats it up to `timeout` while NVML reports that something is in use."""
    deadline_s = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            step()
            return
        except MigError as error:
            if error.code != "IN_USE" or time.monotonic() > deadline_s:
                raise
        time.sleep(_RETRY_S)


def _error(nvml: Any, what: str, code: int) -> MigError:
    names = {
        value: name.removeprefix("NVML_ERROR_")
        for name, value in vars(nvml).items()
        if name.startswith("NVML_ERROR_")
    }
    return MigError(what, names.get(code, f"error {code}"))


def _name(info: Any) -> str:
    """Returns the name of a profile: 3g.40gb."""
    name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
    return name.removeprefix("MIG ")
