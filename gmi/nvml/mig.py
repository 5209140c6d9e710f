"""Reads which MIG instances a GPU has. Making them is another file's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Final

from gmi_drl.placement.mig import placements, profiles_of
from gmi_drl.placement.topology import Device, MigInstance

from .nvml import query

_UNKNOWN: Final = -1
_PROFILE: Final = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb(?:\+\S+)?)", re.IGNORECASE)


def mig_handles(nvml: Any, handle: Any) -> list[Any]:
    """Returns handles of the MIG devices of a GPU that exist. Their numbers may have gaps."""
    devices = []
    for index in range(query(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = query(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if device is not None:
            devices.append(device)
    return devices


def read_instances(
    nvml: Any, handle: Any, handles: Sequence[Any], gpu: Device
) -> tuple[MigInstance, ...]:
    """Returns the MIG instances of `gpu` behind these handles, by their start.

    Where a GPU instance lies is told to root alone; for others each gets a place where it could
    lie, disjoint from the rest.
    """
    instances: list[tuple[int, MigInstance]] = []  # with the GPU instance of each
    for device in handles:
        instance = query(nvml, nvml.nvmlDeviceGetGpuInstanceId, device)
        attributes = query(nvml, nvml.nvmlDeviceGetAttributes_v2, device)
        memory = query(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
        if instance is None or attributes is None:
            continue  # it was destroyed while we looked
        mem_bytes = int(attributes.memorySizeMB) << 20 if memory is None else int(memory.total)
        start, size = _place(nvml, handle, instance) or (_UNKNOWN, 0)
        instances.append(
            (
                int(instance),
                MigInstance(
                    uuid=str(nvml.nvmlDeviceGetUUID(device)),
                    profile=_profile(str(nvml.nvmlDeviceGetName(device)), attributes, mem_bytes),
                    start=start,
                    size=size,
                    mem_bytes=mem_bytes,
                    sm_count=int(attributes.multiprocessorCount) or None,
                ),
            )
        )
    if any(one.start == _UNKNOWN for _, one in instances):
        instances = _placed(instances, gpu)
    return tuple(sorted((one for _, one in instances), key=lambda one: (one.start, one.uuid)))


def _place(nvml: Any, handle: Any, instance: int) -> tuple[int, int] | None:
    """Returns (start, size) of a GPU instance; None for users who may not know."""
    held = query(nvml, nvml.nvmlDeviceGetGpuInstanceById, handle, instance)
    info = None if held is None else query(nvml, nvml.nvmlGpuInstanceGetInfo, held)
    return None if info is None else (int(info.placement.start), int(info.placement.size))


def _profile(name: str, attributes: Any, mem_bytes: int) -> str:
    """Finds the profile at the end of NVML's name; old drivers leave it out."""
    if match := _PROFILE.search(name):
        return match[1].lower()
    gpu, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    part = "" if gpu == compute else f"{compute}c."
    return f"{part}{gpu}g.{max(1, round(mem_bytes / 1e9))}gb"


def _placed(instances: list[tuple[int, MigInstance]], gpu: Device) -> list[tuple[int, MigInstance]]:
    """Gives them places that could be theirs; in a row if a profile is not known."""
    names = {instance: one.profile.rpartition("c.")[2] for instance, one in instances}
    known = {profile.name: profile for profile in profiles_of(gpu)}
    slices = None
    if all(name in known for name in names.values()):
        slices = placements([known[name] for name in names.values()])
    if slices is None:
        places = {instance: (place, 1) for place, instance in enumerate(names)}
    else:
        places = {
            instance: (its.start, known[its.profile].size)
            for instance, its in zip(names, slices, strict=True)
        }
    return [
        (instance, dataclasses.replace(one, start=places[instance][0], size=places[instance][1]))
        for instance, one in instances
    ]
