"""Computes how much of a device's memory each GMI may hold, and by what rule.

What holds it to that is another matter, and differs by backend: see `gmi_drl.gmi.usage.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .mig.instances import profiles_of
from .slicing import RESERVE_BYTES

if TYPE_CHECKING:
    from .layout import GmiSpec, Layout
    from .topology import Device


@dataclass(frozen=True)
class MemoryShare:
    """What a GMI may hold of its device's memory."""

    nbytes: int
    why: str  # "an equal part of GPU 0 for 4 GMIs"


def memory_share(layout: Layout, gmi_id: int) -> MemoryShare | None:
    """Returns the share of a GMI; None on cores, and where the driver does not say.

    A MIG instance has its own; a limit in the layout is the share; the GMIs of a GPU that have
    none share evenly what is left of it, but for `RESERVE_BYTES` and what other processes held
    when the devices were looked at.
    """
    spec = layout.gmi(gmi_id)
    device = layout.topology.devices[spec.gpu_id]
    if device.kind != "gpu":
        return None
    if spec.mig is not None:
        return _instance(spec, device)
    if spec.mem_bytes is not None:
        return MemoryShare(spec.mem_bytes, "its limit in the layout")
    if device.mem_bytes is None:
        return None
    gmis = [layout.gmi(other) for other in layout.mpl[spec.gpu_id]]
    limits = sum(gmi.mem_bytes or 0 for gmi in gmis)
    without = sum(gmi.mem_bytes is None for gmi in gmis)
    left = device.mem_bytes - RESERVE_BYTES - device.held_bytes - limits
    where = f"GPU {device.index}"
    why = f"an equal part of {where} for {without} GMIs" if without > 1 else f"all of {where}"
    return MemoryShare(max(0, left) // without, why)


def _instance(spec: GmiSpec, device: Device) -> MemoryShare | None:
    assert spec.mig is not None
    why = f"its MIG instance {spec.mig.profile}"
    for instance in device.mig:
        if (instance.profile, instance.start) == (spec.mig.profile, spec.mig.start):
            return MemoryShare(instance.mem_bytes, why)
    for profile in profiles_of(device):
        if profile.name == spec.mig.profile:
            return MemoryShare(profile.mem_bytes, why)
    return None
