"""Checks that a GPU can be cut into the MIG instances that a Layout names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gmi_drl.placement.config.hardware import HardwareConfig
from gmi_drl.placement.faults import Fault, spec_fault
from gmi_drl.placement.layout import GmiSpec, MigSlice
from gmi_drl.placement.mig.instances import commands_for, whole_instances
from gmi_drl.placement.mig.tables import profiles_of
from gmi_drl.placement.topology import Device

_GIB = 1 << 30


def mig_faults(
    device: Device, gmis: Sequence[GmiSpec], hardware: HardwareConfig
) -> Iterator[Fault]:
    """Yields instances that do not exist and cannot be made, that overlap, or are too small."""
    profiles = {profile.name: profile for profile in profiles_of(device)}
    existing = {
        MigSlice(instance.profile, instance.start): instance for instance in whole_instances(device)
    }
    # Memory slices that are taken, and by what.
    taken = {n: f"{i.profile} at {i.start}" for i in device.mig for n in _span(i.start, i.size)}
    users: dict[MigSlice, int] = {}
    missing = []
    if device.mig_mode is None:
        yield Fault(
            f"GPU {device.index}: backend", "mig", f"{device.name} has no MIG",
            "Use mps, or direct.",
        )  # fmt: skip
        return
    for gmi in gmis:
        if gmi.sm_percent is not None:
            yield spec_fault(
                gmi, "sm_percent", gmi.sm_percent, "the instance says how many SMs there are",
                "Leave it out, or use backend mps.",
            )  # fmt: skip
        wanted = gmi.mig
        if wanted is None:
            yield spec_fault(gmi, "mig", None, "backend mig, and no instance", "Name one.")
            continue
        shown = f"{wanted.profile} at {wanted.start}"
        if wanted in users:
            yield spec_fault(
                gmi, "mig", shown, f"GMI {users[wanted]} is in it", "Use an instance for each GMI."
            )
            continue
        users[wanted] = gmi.gmi_id
        if wanted in existing:
            mem_bytes = existing[wanted].mem_bytes
        elif (profile := profiles.get(wanted.profile)) is None:
            known = ", ".join(profiles) or "none that are known"
            yield spec_fault(gmi, "mig", shown, f"{device.name} has profiles {known}", "Use one.")
            continue
        elif wanted.start not in profile.starts:
            places = ", ".join(map(str, profile.starts))
            yield spec_fault(
                gmi, "mig", shown, f"a {profile.name} begins at {places}", "Use one of these."
            )
            continue
        else:
            mem_bytes, span = profile.mem_bytes, _span(wanted.start, profile.size)
            if other := next((taken[n] for n in span if n in taken), None):
                yield spec_fault(
                    gmi, "mig", shown, f"it overlaps {other} on GPU {device.index}",
                    "Use another place, or a smaller profile.",
                )  # fmt: skip
                continue
            taken.update(dict.fromkeys(span, shown))
            missing.append(wanted)
        if (gmi.mem_bytes or 0) > mem_bytes:
            yield spec_fault(
                gmi, "mem_bytes", gmi.mem_bytes,
                f"{shown} has {mem_bytes / _GIB:.1f} GiB", "Use a larger profile, or ask for less.",
            )  # fmt: skip
    if missing and not hardware.allow_create:
        commands = " && ".join(commands_for(device, missing))
        yield Fault(
            f"GPU {device.index}: mig", [f"{place.profile} at {place.start}" for place in missing],
            "these instances do not exist, and none are made without hardware.allow_create",
            f"Set it (needs root and an idle GPU), or run: {commands}",
        )  # fmt: skip


def _span(start: int, size: int) -> range:
    return range(start, start + size)
