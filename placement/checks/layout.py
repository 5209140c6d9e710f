"""Lists every reason a Layout, of a template or edited, cannot run on its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from gmi_drl.placement.config.config import MAX_OVERCOMMIT, HardwareConfig
from gmi_drl.placement.faults import ABSENT, Fault, device_name, spec_fault
from gmi_drl.placement.layout import GmiSpec, Layout, MigSlice
from gmi_drl.placement.mig import commands_for, covered, profiles_of, whole_instances
from gmi_drl.placement.slicing import (
    RESERVE_BYTES,
    group_sms,
    groups_of,
    num_groups,
    usable_bytes,
    usable_percent,
)
from gmi_drl.placement.templates import TEMPLATES, Template
from gmi_drl.placement.topology import Device, format_cores

# The most client contexts of MPS on a device (MPS guide, "Client-Server Connections"), and from
# CUDA 13.1 on.
_CLIENTS: Final = 48
_CLIENTS_13_1: Final = 60
_GIB: Final = 1 << 30
_MIN_BYTES: Final = 1 << 20  # MPS counts in MiB

Specs = Sequence[GmiSpec]


def layout_faults(layout: Layout, hardware: HardwareConfig) -> list[Fault]:
    """Returns all faults of the GMIs' backends and shares; empty if devices can be cut so."""
    faults = list(_backends(layout, hardware))
    if not {gmi.backend for gmi in layout.gmis} <= _SHARES.keys():
        return faults
    for device, ids in zip(layout.topology.devices, layout.mpl, strict=True):
        gmis = [layout.gmi(i) for i in ids]
        kinds = list(dict.fromkeys(gmi.backend for gmi in gmis))
        if len(kinds) > 1:
            odd_gmi = next(gmi for gmi in gmis if gmi.backend != kinds[0])
            rule = (
                f"GMI {gmis[0].gmi_id} on {device_name(device)} has {kinds[0]}, and one way of "
                "cutting a device excludes the others"
            )
            remedy = f"Use {kinds[0]}, or another device."
            faults.append(spec_fault(odd_gmi, "backend", odd_gmi.backend, rule, remedy))
        elif kinds:
            faults += _share_of_gpu(device, kinds[0])
            faults += _SHARES[kinds[0]](device, gmis, hardware)
            faults += _processes(device, gmis, layout.topology.cuda)
    return [*faults, *_cores(layout)]


def _backends(layout: Layout, hardware: HardwareConfig) -> Iterator[Fault]:
    unusable = dict(layout.topology.unusable)
    hint = (
        "No other can be used either: mend that, or set hardware.backend: cpu."
        if unusable.keys() >= _ON_GPUS.keys()
        else "Use another, or auto; gmi-drl doctor says what this machine has."
    )
    for backend in dict.fromkeys(gmi.backend for gmi in layout.gmis):
        if backend in unusable:
            yield Fault("backend", backend, f"it cannot be used here: {unusable[backend]}", hint)
    for gmi in layout.gmis:
        device, key = layout.topology.devices[gmi.gpu_id], f"GmiSpec {gmi.gmi_id}: backend"
        if gmi.backend not in _SHARES:
            remedy = f"Use one of {', '.join(_SHARES)}."
            yield Fault(key, gmi.backend, "there is no such backend", remedy)
        elif gmi.backend not in (_ON_CORES if device.kind == "cpu" else _ON_GPUS):
            yield Fault(
                key, gmi.backend,
                f"{device_name(device)} is {'no GPU' if device.kind == 'cpu' else 'a GPU'}",
                "Use cpu." if device.kind == "cpu"
                else "Use mps or direct, or set hardware.backend: cpu.",
            )  # fmt: skip
        elif device.mig_mode and gmi.backend != "mig":
            yield Fault(
                key, gmi.backend,
                f"{device_name(device)} is in MIG mode, where its instances alone can be used",
                f"Use mig, or have MIG mode switched off: nvidia-smi -i {device.index} -mig 0.",
            )  # fmt: skip
        elif hardware.backend not in ("auto", gmi.backend):
            yield Fault(
                key, gmi.backend, f"hardware.backend is {hardware.backend}",
                f"Use {hardware.backend}, or set hardware.backend: auto.",
            )  # fmt: skip


_NO_SHARE: Final = {
    "cpu": "backend cpu has no GPU",
    "green": "its GMIs are threads of one process, and other runs are other processes",
    "mig": "its instances are of one run each, and are shares already",
}


def _share_of_gpu(device: Device, backend: str) -> Iterator[Fault]:
    """Yields a fault where a backend cannot leave the rest of a device to other runs."""
    if device.share < 1 and (rule := _NO_SHARE.get(backend)):
        remedy = (
            "Name cores by hardware.cores, and" if backend == "cpu" else "Use mps or direct, or"
        )
        yield Fault("hardware.gpu_share", device.share, rule, f"{remedy} leave it out.")


def _unlimited(device: Device, gmis: Specs, hardware: HardwareConfig) -> Iterator[Fault]:
    """Yields a fault for each limit, as direct and cpu would not keep it."""
    for gmi in gmis:
        for name, value in (("sm_percent", gmi.sm_percent), ("mem_bytes", gmi.mem_bytes)):
            if value is not None:
                yield spec_fault(
                    gmi, name, value, f"backend {gmi.backend} limits nothing",
                    "Leave it out" + (", or use backend mps." if device.kind == "gpu" else "."),
                )  # fmt: skip
        yield from _no_mig(gmi)


def _mps(device: Device, gmis: Specs, hardware: HardwareConfig) -> Iterator[Fault]:
    if device.capability is not None and device.capability < (7, 0):
        yield Fault(
            f"{device_name(device)}: backend", "mps", f"it is of compute capability "
            f"{'.'.join(map(str, device.capability))}, and MPS limits SMs from 7.0 on",
            "Use direct.",
        )  # fmt: skip
        return
    percent_left = usable_percent(device, hardware.sm_overcommit)
    or_raise = ", raise hardware.sm_overcommit" if hardware.sm_overcommit < MAX_OVERCOMMIT else ""
    for gmi in gmis:
        percent = gmi.sm_percent or 100  # without a limit: all SMs
        if percent > 100 or percent > percent_left:
            rule = "a GPU has 100 percent"
            if percent > percent_left:
                rule = f"{device_name(device)} has {percent_left} left"
            value = ABSENT if gmi.sm_percent is None else percent
            yield spec_fault(
                gmi, "sm_percent", value, rule, f"Lower it{or_raise}, or use fewer GMIs."
            )
        else:
            percent_left -= percent
        yield from _no_mig(gmi)
    room = usable_bytes(device)
    if device.mem_bytes is not None and room is not None:
        yield from _memory(device, gmis, device.mem_bytes, room)


def _memory(device: Device, gmis: Specs, mem_bytes: int, room: int) -> Iterator[Fault]:
    """Yields a fault for each GMI without memory left; GMIs without a limit come last."""
    held_bytes = device.held_bytes
    others = f"{RESERVE_BYTES / _GIB:.0f} that CUDA takes"
    if held_bytes:
        others += f" and {held_bytes / _GIB:.1f} that other processes hold"
    if device.share < 1:
        others += f" and a share of {device.share:g} (hardware.gpu_share)"
    for gmi in sorted(gmis, key=lambda gmi: gmi.mem_bytes is None):
        limit, left = gmi.mem_bytes, f"{max(0, room) / _GIB:.1f} GiB"
        if (limit or _MIN_BYTES) > room:
            wait = ", or wait for those to end" if held_bytes else ""
            less = ", or give the others less" if any(gmi.mem_bytes for gmi in gmis) else ""
            yield spec_fault(
                gmi, "mem_bytes", ABSENT if limit is None else limit,
                f"{device_name(device)} has {left} left of {mem_bytes / _GIB:.1f}, beside {others}",
                f"Use fewer GMIs{wait}{less}." if limit is None
                else f"Lower memory to {left}, or use fewer GMIs{wait}.",
            )  # fmt: skip
        else:
            room -= limit or 0


def _green(device: Device, gmis: Specs, hardware: HardwareConfig) -> Iterator[Fault]:
    groups, left = num_groups(device), num_groups(device)
    size = group_sms(device)
    if not groups:
        yield Fault(
            f"{device_name(device)}: backend", "green", "the number of its SMs is not known",
            "Use mps, or direct.",
        )  # fmt: skip
        return
    for gmi in gmis:
        count = groups_of(gmi.sm_percent, groups)
        if count < 1 or count > left or (gmi.sm_percent or 0) > 100:
            yield spec_fault(
                gmi, "sm_percent", ABSENT if gmi.sm_percent is None else gmi.sm_percent,
                f"{device_name(device)} has {groups} groups of {size} SMs, {left} are left, and "
                f"this is {count}",
                "Raise it." if count < 1 else "Lower it, or use fewer GMIs.",
            )  # fmt: skip
        left -= min(count, left)
        if gmi.mem_bytes is not None:
            yield spec_fault(
                gmi, "mem_bytes", gmi.mem_bytes, "backend green limits SMs alone: its GMIs are "
                "threads of one process",
                "Leave memory out, or use backend mps.",
            )  # fmt: skip
        yield from _no_mig(gmi)


def _processes(device: Device, gmis: Specs, cuda: tuple[int, int] | None) -> Iterator[Fault]:
    """Yields faults of the number of processes by the GPU's compute mode, or under MPS."""
    backend, key = gmis[0].backend, f"{device_name(device)}: compute mode"
    number = round(len(gmis) / device.share)  # with other runs' processes, if those are as many
    # Where runs share a GPU they may share its MPS server, too.
    allowed_kinds = {"graphics"} | ({"mps"} if backend == "mps" and device.share < 1 else set())
    others = (process for process in device.processes if process.kind not in allowed_kinds)
    if device.kind == "cpu":
        return
    if device.compute_mode == "prohibited":
        yield Fault(
            key, "prohibited", "no process may use CUDA on it",
            f"Have it set: nvidia-smi -i {device.index} -c DEFAULT, or leave the GPU out.",
        )  # fmt: skip
    elif device.compute_mode == "exclusive" and (holder := next(others, None)):
        yield Fault(
            key, "exclusive", f"process {holder.pid} holds it, and no other may use CUDA on it",
            "Wait for it to end, leave the GPU out, or have it set: "
            f"nvidia-smi -i {device.index} -c DEFAULT.",
        )  # fmt: skip
    elif device.compute_mode == "exclusive" and backend == "direct" and number > 1:
        yield Fault(
            key, "exclusive", f"one process may use it at a time, and there are {number} GMIs",
            "Use backend mps, or one GMI on it.",
        )  # fmt: skip
    max_clients = _CLIENTS_13_1 if cuda is not None and cuda >= (13, 1) else _CLIENTS
    if backend == "mps" and number > max_clients:
        yield Fault(
            f"{device_name(device)}: GMIs", number, f"MPS takes {max_clients} clients on a device"
            + ("" if max_clients == _CLIENTS_13_1 else f" ({_CLIENTS_13_1} from CUDA 13.1 on)"),
            f"Use {max_clients} or fewer.",
        )  # fmt: skip


def _cores(layout: Layout) -> Iterator[Fault]:
    """Yields a fault for cores that do not exist, or, without GPUs, are another GMI's."""
    all_cores = {core for device in layout.topology.devices for core in device.cores}
    owner: dict[int, int] = {}
    for gmi in layout.gmis:
        device = layout.topology.devices[gmi.gpu_id]
        allowed = set(device.cores) if device.kind == "cpu" else all_cores
        text, remedy = format_cores(gmi.cores), "Leave cores out for an even share."
        if unknown := sorted(set(gmi.cores) - allowed):
            yield spec_fault(
                gmi, "cores", text,
                f"{device_name(device) if device.kind == 'cpu' else 'this run'} has "
                f"{format_cores(sorted(allowed))}, and not {format_cores(unknown)}",
                remedy,
            )  # fmt: skip
        if len(set(gmi.cores)) < len(gmi.cores):
            yield spec_fault(gmi, "cores", list(gmi.cores), "a core is named twice", remedy)
        if device.kind == "gpu":
            continue
        if not gmi.cores:
            yield spec_fault(gmi, "cores", text, "backend cpu needs one or more", remedy)
        if shared := sorted(core for core in set(gmi.cores) if core in owner):
            yield spec_fault(
                gmi, "cores", text, f"GMI {owner[shared[0]]} has {format_cores(shared)}",
                "Give each core to one GMI.",
            )  # fmt: skip
        owner.update((core, gmi.gmi_id) for core in gmi.cores if core not in owner)


def _no_mig(gmi: GmiSpec) -> Iterator[Fault]:
    if gmi.mig is not None:
        yield spec_fault(
            gmi, "mig", gmi.mig.profile, f"its backend is {gmi.backend}",
            "Leave mig out, or use backend mig.",
        )  # fmt: skip


def _mig(device: Device, gmis: Sequence[GmiSpec], hardware: HardwareConfig) -> Iterator[Fault]:
    """Yields a fault for instances that cannot be made, overlap, or are too small."""
    profiles = {profile.name: profile for profile in profiles_of(device)}
    existing = {MigSlice(i.profile, i.start): i for i in whole_instances(device)}
    # The memory slices that are taken, with what takes them.
    taken = {n: f"{i.profile} at {i.start}" for i in device.mig for n in covered(i.start, i.size)}
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
        place = gmi.mig
        if place is None:
            yield spec_fault(gmi, "mig", None, "backend mig, and no instance", "Name one.")
            continue
        shown = f"{place.profile} at {place.start}"
        if place in users:
            yield spec_fault(
                gmi, "mig", shown, f"GMI {users[place]} is in it", "Use an instance for each GMI."
            )
            continue
        users[place] = gmi.gmi_id
        if place in existing:
            mem_bytes = existing[place].mem_bytes
        elif (profile := profiles.get(place.profile)) is None:
            names = ", ".join(profiles) or "none that are known"
            yield spec_fault(gmi, "mig", shown, f"{device.name} has profiles {names}", "Use one.")
            continue
        elif place.start not in profile.starts:
            places = ", ".join(map(str, profile.starts))
            yield spec_fault(
                gmi, "mig", shown, f"a {profile.name} begins at {places}", "Use one of these."
            )
            continue
        else:
            mem_bytes, span = profile.mem_bytes, covered(place.start, profile.size)
            if overlapping := next((taken[n] for n in span if n in taken), None):
                yield spec_fault(
                    gmi, "mig", shown, f"it overlaps {overlapping} on GPU {device.index}",
                    "Use another place, or a smaller profile.",
                )  # fmt: skip
                continue
            taken.update(dict.fromkeys(span, shown))
            missing.append(place)
        if (gmi.mem_bytes or 0) > mem_bytes:
            yield spec_fault(
                gmi, "mem_bytes", gmi.mem_bytes,
                f"{shown} has {mem_bytes / _GIB:.1f} GiB", "Use a larger profile, or ask for less.",
            )  # fmt: skip
    if missing and not hardware.allow_create:
        commands = " && ".join(commands_for(device, missing))
        yield Fault(
            f"GPU {device.index}: mig", [f"{slot.profile} at {slot.start}" for slot in missing],
            "these instances do not exist, and none are made without hardware.allow_create",
            f"Set it (needs root and an idle GPU), or run: {commands}",
        )  # fmt: skip


_Shares: TypeAlias = dict[str, Callable[[Device, Specs, HardwareConfig], Iterator[Fault]]]
_ON_CORES: Final[_Shares] = {"cpu": _unlimited}
_ON_GPUS: Final[_Shares] = {
    "direct": _unlimited,
    "mps": _mps,
    "green": _green,
    "mig": _mig,
}
_SHARES: Final = _ON_CORES | _ON_GPUS


def gmi_faults(layout: Layout, num_env: int) -> list[Fault]:
    """Lists faults of the GMIs: roles that the template lacks or without peers, wrong num_env.

    `num_env` is the config's, which every simulator has.
    """
    template = TEMPLATES.get(layout.template)
    if template is None:
        remedy = f"Use one of {', '.join(TEMPLATES)}."
        return [Fault("layout.template", layout.template, "there is no such template", remedy)]
    faults = list(_roles(template, layout)) or list(template.peer_faults(layout, num_env))
    return [*faults, *_environments(layout, num_env)]


def _roles(template: Template, layout: Layout) -> Iterator[Fault]:
    for gmi in layout.gmis:
        if gmi.roles not in template.gmis:
            kinds = " or ".join(", ".join(roles) for roles in template.gmis)
            yield spec_fault(
                gmi, "roles", list(gmi.roles), f"a GMI of template {template.name} has {kinds}",
                "Use these, or another template.",
            )  # fmt: skip


def _environments(layout: Layout, num_env: int) -> Iterator[Fault]:
    for gmi in layout.gmis:
        simulates = "simulator" in gmi.roles
        if simulates and gmi.num_env != num_env:
            yield spec_fault(
                gmi, "num_env", gmi.num_env, f"env.num_env is {num_env}, and GMIs do not differ "
                "in it: one step would wait for the largest",
                "Leave it out, or change env.num_env.",
            )  # fmt: skip
        elif not simulates and gmi.num_env:
            yield spec_fault(gmi, "num_env", gmi.num_env, "it simulates nothing", "Leave it out.")
