"""The backend mig gives a GMI a MIG instance: SMs, memory and caches of its own, by the hardware.

Instances that exist are used, and those of the layout that do not are made. There is no CUDA IPC
between instances.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi.backends.cpu import verify_cores
from gmi_drl.gmi.backends.gpu import GpuBackend, verify_device, verify_outside_mps
from gmi_drl.gmi.errors import SliceError
from gmi_drl.gmi.lease import Lease, LeaseNotes
from gmi_drl.placement.mig import whole_instances

from .mig_gpu import MigGpu
from .slices import INSTANCE, MigSlices, make_slices, undo_notes

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, MigInstance, Topology

_SMALLER: Final = 0.85  # what CUDA says of memory against NVML: a part is the driver's own


class MigBackend(GpuBackend):
    """GMIs in MIG instances, of which each sees its own as a GPU."""

    uses_mig = True

    def prepare(self, gmis: Sequence[GmiSpec], topology: Topology) -> MigSlices:
        return make_slices(gmis, topology)

    def verify(self, spec: GmiSpec, device: Device) -> None:
        """Raises SliceError unless CUDA sees the GMI's instance alone, with its SMs and memory."""
        verify_cores(spec)
        expected = os.environ.get(INSTANCE, "").split()
        if len(expected) != 3:
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: {INSTANCE} is not in the environment, where the launcher "
                "puts it. Something clears the environment of processes: let it pass."
            )
        uuid, sm_count, mem_bytes = expected[0], int(expected[1]), int(expected[2])
        verify_device(spec, uuid)
        verify_outside_mps(spec)
        seen_sms, seen_bytes = cuda_driver.sm_count(), cuda_driver.total_mem_bytes()
        where = f"GmiSpec {spec.gmi_id}: MIG device {uuid}"
        if sm_count and seen_sms != sm_count:
            raise SliceError(
                f"{where}: {sm_count} SMs; CUDA sees {seen_sms}. The instance was changed "
                "since it was looked at: launch again."
            )
        if seen_bytes < mem_bytes * _SMALLER:
            raise SliceError(
                f"{where}: {mem_bytes} bytes of memory; CUDA sees {seen_bytes}. The instance was "
                "changed since it was looked at: launch again."
            )

    def undo(self, lease: LeaseNotes) -> bool:
        return undo_notes(list(enumerate(lease.notes)), lease.same_boot, lambda number: None)

    def why_not_on(self, device: Device, allow_create: bool = False) -> str:
        name = f"GPU {device.index} ({device.name})"
        if device.mig_mode is None:
            return f"{name} is of a kind without MIG"
        if device.mig or allow_create:
            return ""
        mode = "MIG mode is on" if device.mig_mode else "MIG mode is off"
        return f"{name} has no MIG instance ({mode}); hardware.allow_create: true makes them"

    def idle_part(self, topology: Topology) -> tuple[Topology, list[int]]:
        devices, busy = [], []
        for device in topology.devices:
            if whole_instances(device):
                device = dataclasses.replace(device, mig=_idle_instances(device))
                busy += [] if device.mig else [device.index]
            devices.append(device)
        return dataclasses.replace(topology, devices=tuple(devices)), busy


def _idle_instances(device: Device) -> tuple[MigInstance, ...]:
    """Returns the instances of `device` without processes or other runs' notes.

    Of other users' runs only processes are seen. GmiError without a driver.
    """
    assert device.uuid is not None
    with contextlib.closing(Lease.open("mig")) as lease, MigGpu.open(device.uuid) as gpu:
        notes = [note for other in lease.others() for note in other.notes]
        noted = {
            note.get(key)
            for note in notes
            for key in ("uses", "start")
            if note.get("gpu") == gpu.uuid
        }
        return tuple(
            one
            for one in whole_instances(device)
            if one.start not in noted and gpu.has_device(one.uuid) and not gpu.pids(one.uuid)
        )
