"""Reads which MIG instances a GPU has. Making them is another file's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Final

from gmi_drl.placement.mig.instances import placements, profiles_of
from gmi_drl.placement.topology import Device, MigInstance

from .nvml import query

_UNKNOWN: Final = -1
_PROFILE: Final = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb(?:\+\S+)?)", re.IGNORECASE)


def mig_handles(nvml: Any, handle: Any) -> list[Any]:
    """Returns handles of the MIG devices of a GPU that exist. Their numbers may have gaps."""
    numbers = range(query(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    by_index = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    devices = [query(nvml, by_index, handle, number) for number in numbers]
    return [device for device in devices if device is not None]


def read_instances(
    nvml: Any, handle: Any, handles: Sequence[Any], gpu: Device
) -> tuple[MigInstance, ...]:
    """Returns the MIG instances of `gpu` behind these handles, by their start.

    Where a GPU instance lies is told to root alone; for others each gets a place where it could
    lie, disjoint from the rest.
    """
    instances: list[tuple[int, MigInstance]] = []  # with the GPU instance of each
    for device in handles:
        number = query(nvml, nvml.nvmlDeviceGetGpuInstanceId, device)
        attributes = query(nvml, nvml.nvmlDeviceGetAttributes_v2, device)
        memory = query(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
        profile = _PROFILE.search(str(nvml.nvmlDeviceGetName(device)))
        if number is None or attributes is None or profile is None:
            continue  # it was destroyed while we looked
        start, size = _place(nvml, handle, number) or (_UNKNOWN, 0)
        instance = MigInstance(
            uuid=str(nvml.nvmlDeviceGetUUID(device)),
            profile=profile[1].lower(),
            start=start,
            size=size,
            mem_bytes=int(attributes.memorySizeMB) << 20 if memory is None else int(memory.total),
            sm_count=int(attributes.multiprocessorCount) or None,
        )
        instances.append((int(number), instance))
    found = [instance for _, instance in instances]
    if any(instance.start == _UNKNOWN for instance in found):
        found = _placed(instances, gpu)
    return tuple(sorted(found, key=lambda one: (one.start, one.uuid)))


def _place(nvml: Any, handle: Any, number: int) -> tuple[int, int] | None:
    """Returns (start, size) of a GPU instance; None for users who may not know."""
    held = query(nvml, nvml.nvmlDeviceGetGpuInstanceById, handle, number)
    info = None if held is None else query(nvml, nvml.nvmlGpuInstanceGetInfo, held)
    return None if info is None else (int(info.placement.start), int(info.placement.size))


def _placed(instances: list[tuple[int, MigInstance]], gpu: Device) -> list[MigInstance]:
    """Gives them places that could be theirs; in a row if a profile is not known."""
    names = {number: one.profile.rpartition("c.")[2] for number, one in instances}
    known = {profile.name: profile for profile in profiles_of(gpu)}
    places = {number: (place, 1) for place, number in enumerate(names)}
    if known.keys() >= set(names.values()):
        slices = placements([known[name] for name in names.values()]) or ()
        for number, its in zip(names, slices, strict=False):
            places[number] = its.start, known[its.profile].size
    return [
        dataclasses.replace(one, start=places[number][0], size=places[number][1])
        for number, one in instances
    ]
