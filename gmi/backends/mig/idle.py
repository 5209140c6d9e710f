"""Which MIG instances nobody has: no process is in them, and no other run has noted them."""

from __future__ import annotations

import contextlib
import dataclasses

from gmi_drl.gmi.lease import Lease
from gmi_drl.placement.mig.instances import whole_instances
from gmi_drl.placement.topology import Device, MigInstance, Topology

from .nvml import MigGpu


def without_busy(topology: Topology) -> tuple[Topology, list[int]]:
    """The topology without the instances that somebody has; and the GPUs that have no others."""
    devices, busy = [], []
    for device in topology.devices:
        if whole_instances(device):
            device = dataclasses.replace(device, mig=idle_instances(device))
            busy += [] if device.mig else [device.index]
        devices.append(device)
    return dataclasses.replace(topology, devices=tuple(devices)), busy


def idle_instances(device: Device) -> tuple[MigInstance, ...]:
    """Those of `device`, as it is now, that a GMI could take; GmiError without a driver.

    Of other users' runs only the processes are seen. A moment later somebody may have one.
    """
    assert device.uuid is not None
    with contextlib.closing(Lease.open("mig")) as lease, MigGpu.open(device.uuid) as gpu:
        notes = [note for left in lease.others() for note in left.notes]
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
