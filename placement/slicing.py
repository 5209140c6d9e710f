"""Shares a device between the GMIs of a Layout: cores, SMs, memory, MIG instances.

Shares in a GmiSpec stay; the other GMIs of its device share the rest evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from .faults import counted
from .layout import GmiSpec, Layout, LayoutError
from .mig import instance_at, mig_slices, pack, profiles_of
from .topology import Device, Topology, share_at_least_one

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import HardwareConfig


def group_sms(device: Device) -> int:
    """Returns the SMs in a group on this GPU, the least that a green context can have."""
    major = (device.capability or (0, 0))[0]
    if major >= 9:
        return 8
    return {8: 4, 7: 2}.get(major, 1)


def num_groups(device: Device) -> int:
    """Returns the groups of this GPU at most, as drivers may give fewer; 0 if SMs are unknown."""
    return (device.sm_count or 0) // group_sms(device)


def percent_of(count: int, groups: int) -> int:
    """Returns the `sm_percent` of a GMI with `count` of `groups` groups, rounded down."""
    return 100 * count // groups


def groups_of(sm_percent: int | None, groups: int) -> int:
    """Returns the most of `groups` groups that fit into a GMI's share.

    It is the inverse of `percent_of` for at most 100 groups. None: all.
    """
    if sm_percent is None:
        return groups
    return min(groups, ((sm_percent + 1) * groups - 1) // 100)


# The part of a GPU's memory that no GMI is promised: for the contexts of the MPS server and its
# clients, and for the driver.
RESERVE_BYTES: Final = 1 << 30
_MIB: Final = 1 << 20
# The SMs of runs that share a GPU add up to so many times its own: each takes what others leave
# idle, and none can hold up all others (MPS guide, "Volta MPS Execution Resource Provisioning": a
# client gets its part of half as many clients).
_OVERCOMMIT_OF_PARTS: Final = 2.0

Specs = Sequence[GmiSpec]


def sliced(layout: Layout, hardware: HardwareConfig) -> Layout:
    """Returns the layout with every GMI's share of its device, by backend.

    mps: percent of the SMs, floor(100 * sm_overcommit * gpu_share / n) where n GMIs share a GPU
    evenly, and its `usable_bytes`; green: percent, in whole groups of
    SMs; mig: an instance, of the memory that is asked for; direct, cpu: the cores alone.
    LayoutError where cores or instances are too few. Where no memory is left for a GMI it has no
    limit, and devices with GMIs of two backends are left alone: `check` refuses both.
    """
    shared: dict[int, GmiSpec] = {}
    for device in layout.topology.devices:
        gmis = _with_cores(device, [gmi for gmi in layout.gmis if gmi.gpu_id == device.index])
        kinds = {gmi.backend for gmi in gmis}
        fill = _FILLS.get(kinds.pop()) if len(kinds) == 1 else None
        shared.update((gmi.gmi_id, gmi) for gmi in (fill(device, gmis, hardware) if fill else gmis))
    return replace(layout, gmis=tuple(shared[gmi.gmi_id] for gmi in layout.gmis))


def usable_bytes(device: Device) -> int | None:
    """Returns the memory of a GPU that a run may promise to its GMIs; None where it is not known.

    All but `RESERVE_BYTES` and what other processes hold, and no more than the run's share.
    """
    if device.mem_bytes is None:
        return None
    room = device.mem_bytes - RESERVE_BYTES
    return max(0, min(room - device.held_bytes, int(room * device.share)))


def usable_percent(device: Device, sm_overcommit: float) -> int:
    """Returns the percentage of a GPU's SMs that the GMIs of a run share, under mps."""
    return round(100 * sm_overcommit * device.share)


def part_of(device: Device, parts: int, place: int) -> Device:
    """Returns the part of a GPU that one of several runs gets, with its part of the cores."""
    size = max(1, len(device.cores) // parts)
    first = place * size if len(device.cores) >= parts else place % max(1, len(device.cores))
    return replace(device, share=device.share / parts, cores=device.cores[first : first + size])


def hardware_of_parts(
    hardware: HardwareConfig, topology: Topology, parts: int
) -> dict[str, str | int | float]:
    """Returns the keys of `hardware` for each of several runs that share a GPU, without cores."""
    backend: str = hardware.backend
    if backend == "auto":
        backend = "direct" if "mps" in dict(topology.unusable) else "mps"
    return {
        "backend": backend,
        "num_gpus": 1,
        "gpu_share": hardware.gpu_share / parts,
        "sm_overcommit": max(hardware.sm_overcommit, _OVERCOMMIT_OF_PARTS),
    }


def why_no_parts(hardware: HardwareConfig, topology: Topology) -> str:
    """Says why runs cannot share a GPU of these, or nothing."""
    if hardware.backend == "mig" or any(device.mig_mode for device in topology.devices):
        return (
            "runs share out no MIG instances: start each by itself with "
            "CUDA_VISIBLE_DEVICES=MIG-<uuid>, or turn MIG off"
        )
    if hardware.backend == "green":
        return "runs share one by backend mps or direct, not green, whose GMIs are of one process"
    return ""


def core_share(device: Device, parts: int, place: int) -> tuple[int, ...]:
    """Returns the cores of the GMI at `place` of `parts` on a device: contiguous, and even.

    On a group of cores no two GMIs share one (LayoutError if there are too few); beside a GPU they
    do when they must.
    """
    if device.kind == "cpu" and len(device.cores) < parts:
        raise LayoutError(
            f"device {device.index} ({device.name}): {counted(parts, 'GMI')}; it has "
            f"{counted(len(device.cores), 'core')}, and each GMI needs one. "
            "Lower layout.gmi_per_gpu."
        )
    return share_at_least_one(device.cores, parts, place)


def _with_cores(device: Device, gmis: Specs) -> list[GmiSpec]:
    """Gives GMIs without cores those of the device that no other GMI names."""
    taken = {core for gmi in gmis for core in gmi.cores}
    free = tuple(core for core in device.cores if core not in taken)
    if device.kind == "gpu":
        free = free or device.cores
    rest = replace(device, cores=free)
    without_cores = [gmi.gmi_id for gmi in gmis if not gmi.cores]
    if device.kind == "cpu" and taken and len(free) < len(without_cores):
        raise LayoutError(
            f"device {device.index} ({device.name}): {counted(len(without_cores), 'GMI')} without "
            f"cores; the others name all but {len(free)}, and each needs one. Let those name "
            "fewer, or leave cores out of all."
        )
    places = {gmi_id: place for place, gmi_id in enumerate(without_cores)}
    return [
        gmi if gmi.cores
        else replace(gmi, cores=core_share(rest, len(without_cores), places[gmi.gmi_id]))
        for gmi in gmis
    ]  # fmt: skip


def _mps(device: Device, gmis: Specs, hardware: HardwareConfig) -> list[GmiSpec]:
    total = usable_percent(device, hardware.sm_overcommit)
    percent = _even_share(total, [gmi.sm_percent for gmi in gmis], 1)
    memory = None
    if (usable_mem := usable_bytes(device)) is not None:
        memory = _even_share(usable_mem, [gmi.mem_bytes for gmi in gmis], _MIB)
    return [
        replace(
            gmi,
            sm_percent=gmi.sm_percent or (percent and min(100, percent)),
            mem_bytes=gmi.mem_bytes or memory,
        )
        for gmi in gmis
    ]


def _green(device: Device, gmis: Specs, hardware: HardwareConfig) -> list[GmiSpec]:
    """Gives GMIs whole groups, evenly; a remainder is not used."""
    groups = num_groups(device)
    if not groups:
        return list(gmis)
    given = [None if g.sm_percent is None else groups_of(g.sm_percent, groups) for g in gmis]
    even = _even_share(groups, given, 1)
    percent = even and percent_of(even, groups)
    return [replace(g, sm_percent=g.sm_percent or percent) for g in gmis]


def _mig(device: Device, gmis: Specs, hardware: HardwareConfig) -> list[GmiSpec]:
    placed = [gmi.gmi_id for gmi in gmis if gmi.mig is not None]
    if len(placed) == len(gmis):
        return list(gmis)
    if placed:
        raise LayoutError(
            f"GPU {device.index}: GMIs {placed} name their MIG instances, and others do not. Give "
            "mig for all GMIs of a GPU, or for none."
        )
    mem_bytes = [gmi.mem_bytes or 0 for gmi in gmis]
    if len(set(mem_bytes)) == 1:
        memory = mem_bytes[0] or None
        places = mig_slices(device, len(gmis), memory, hardware.allow_create)
    else:
        places = pack(mem_bytes, profiles_of(device), device.mig)
    return [replace(gmi, mig=place) for gmi, place in zip(gmis, places, strict=True)]


def _even_share(total: int, given: Sequence[int | None], unit: int) -> int | None:
    """Returns the even share of the rest for each entry of None, in whole units; or None."""
    num_open = given.count(None)
    if not num_open:
        return None
    rest = total - sum(value for value in given if value is not None)
    return max(0, rest // num_open // unit * unit) or None


_FILLS: Final[dict[str, Callable[[Device, Specs, HardwareConfig], list[GmiSpec]]]] = {
    "mps": _mps,
    "green": _green,
    "mig": _mig,
}


@dataclass(frozen=True)
class MemoryShare:
    """Says what a GMI may hold of its device's memory."""

    nbytes: int
    why: str  # "an equal part of GPU 0 for 4 GMIs"


def memory_share(layout: Layout, gmi_id: int) -> MemoryShare | None:
    """Returns the share of a GMI; None on cores, and where the driver does not say.

    The share is that of its MIG instance, or its limit in the layout; GMIs of a GPU without a limit
    share evenly what is left of its `usable_bytes`.
    """
    spec = layout.gmi(gmi_id)
    device = layout.topology.devices[spec.gpu_id]
    if device.kind != "gpu":
        return None
    if spec.mig is not None:
        instance, reason = instance_at(device, spec.mig), f"its MIG instance {spec.mig.profile}"
        return None if instance is None else MemoryShare(instance.mem_bytes, reason)
    if spec.mem_bytes is not None:
        return MemoryShare(spec.mem_bytes, "its limit in the layout")
    usable = usable_bytes(device)
    if usable is None:
        return None
    gmis = [layout.gmi(id) for id in layout.mpl[spec.gpu_id]]
    limits = sum(gmi.mem_bytes or 0 for gmi in gmis)
    num_open = sum(gmi.mem_bytes is None for gmi in gmis)
    gpu = f"GPU {device.index}"
    if device.share < 1:
        gpu = f"this run's share ({device.share:g}) of {gpu}"
    reason = f"an equal part of {gpu} for {num_open} GMIs" if num_open > 1 else f"all of {gpu}"
    return MemoryShare(max(0, usable - limits) // num_open, reason)
