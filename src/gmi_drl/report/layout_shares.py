"""What the pictures of a layout show: where each GMI lies on its device, and what joins GMIs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gmi_drl.comm.plan.links import LinkKind
from gmi_drl.comm.plan.project import stages_of
from gmi_drl.placement import Device, GmiSpec, Layout, counted, format_cores, reducing
from gmi_drl.placement.green import groups_of, num_groups
from gmi_drl.placement.mig.tables import profiles_of
from gmi_drl.placement.templates import TEMPLATES

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import ReductionPlan

# What people call the links of a reduction.
KINDS: Final[dict[LinkKind, str]] = {
    "host": "shared memory",
    "ring": "ring",
    "ring_bcast": "broadcast by ring",
    "ipc": "GPU memory",
}


@dataclass(frozen=True)
class Span:
    """A GMI's place on its device: the part of its SMs (or cores) from `begin` on, 0 to 1."""

    begin: float
    width: float
    shared: bool = False  # with the others of the device, without a limit


@dataclass(frozen=True)
class Bond:
    """GMIs that reduce gradients together in one step."""

    name: str  # "ring", "shared memory", "GPU memory"
    members: tuple[int, ...]


@dataclass(frozen=True)
class Way:
    """A channel, or several alike."""

    carries: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    back: bool  # whether the targets answer


def spans_of(layout: Layout) -> dict[int, Span]:
    """The place of each GMI, by gmi_id; those of a device lie side by side."""
    found: dict[int, Span] = {}
    for device, ids in zip(layout.topology.devices, layout.mpl, strict=True):
        gmis = [layout.gmi(i) for i in ids]
        widths = [_width(gmi, device) for gmi in gmis]
        scale = max(1.0, sum(width or 0.0 for width in widths))  # more than all: each may be idle
        begin = 0.0
        for gmi, width in zip(gmis, widths, strict=True):
            if width is None:
                found[gmi.gmi_id] = Span(0.0, 1.0, shared=len(gmis) > 1)
                continue
            start = _start(gmi, device)
            found[gmi.gmi_id] = Span(begin if start is None else start, width / scale)
            begin += width / scale
    return found


def share_text(gmi: GmiSpec, device: Device) -> str:
    """A GMI's share in words: "50 % of SMs", "3g.71gb at 4", "2 of 8 cores"."""
    if gmi.mig is not None:
        return f"{gmi.mig.profile} at {gmi.mig.start}"
    if gmi.backend == "cpu":
        return f"{len(gmi.cores)} of {counted(len(device.cores), 'core')}"
    if gmi.backend == "green" and (groups := num_groups(device)):
        return f"{groups_of(gmi.sm_percent, groups)} of {groups} SM groups"
    return "all SMs" if gmi.sm_percent is None else f"{gmi.sm_percent} % of SMs"


def memory_text(gmi: GmiSpec, device: Device) -> str:
    """Its memory, or "" where there is no limit."""
    mem_bytes = gmi.mem_bytes
    if mem_bytes is None and gmi.mig is not None:
        have = {(its.profile, its.start): its.mem_bytes for its in device.mig}
        new = {its.name: its.mem_bytes for its in profiles_of(device)}
        mem_bytes = have.get((gmi.mig.profile, gmi.mig.start), new.get(gmi.mig.profile))
    return "" if mem_bytes is None else f"{mem_bytes / 2**30:.1f} GiB"


def device_text(device: Device) -> str:
    """What a device has: SMs, memory, what others hold of it, cores, NUMA node."""
    parts = [
        f"{device.sm_count} SMs" if device.sm_count else "",
        f"{device.mem_bytes / 2**30:.0f} GiB" if device.mem_bytes else "",
        f"{device.held_bytes / 2**30:.1f} held by others" if device.held_bytes else "",
        f"cores {format_cores(device.cores)}" if device.kind == "gpu" and device.cores else "",
        f"NUMA {device.numa_node}" if device.numa_node is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def bonds_of(layout: Layout, plan: ReductionPlan) -> list[Bond]:
    """Who reduces gradients with whom, in the order it is done; [] when nobody has to."""
    mpl = reducing(layout)
    if sum(map(len, mpl)) < 2:
        return []
    links = next((row.links for row in plan.rows if row.strategy == plan.strategy), ())
    inside: LinkKind = "ipc" if any(key.kind == "ipc" for key in links) else "host"
    stages = stages_of(plan.strategy, mpl, inside)
    bonds: list[Bond] = []
    for stage in stages:
        if stage.kind != "ring_bcast":  # along the rings that are there already
            last = "last " if bonds and plan.strategy == "mrr" else ""
            bonds += [Bond(last + KINDS[stage.kind], group) for group in stage.groups]
    return bonds


def ways_of(layout: Layout) -> list[Way]:
    """What GMIs send each other beside gradients, those with the same peers together."""
    template = TEMPLATES[layout.template]
    to: dict[int, list[int]] = {}
    pairs = [(source.gmi_id, target.gmi_id) for source, target in template.channels(layout)]
    back = template.channels_answer
    for source, target in pairs[: len(pairs) // 2] if back else pairs:  # the way there comes first
        to.setdefault(source, []).append(target)
    seen: dict[tuple[int, ...], list[int]] = {}
    for source, targets in to.items():
        seen.setdefault(tuple(targets), []).append(source)
    return [
        Way(template.carries, tuple(sources), targets, back) for targets, sources in seen.items()
    ]


def gmis_text(ids: Sequence[int]) -> str:
    """GMIs as people write them: "GMI 3", "GMIs 0-2,5"."""
    return f"GMI{'s' * (len(ids) > 1)} {format_cores(ids)}"


def _width(gmi: GmiSpec, device: Device) -> float | None:
    """The part of the device that is a GMI's, None without a limit."""
    if gmi.backend == "cpu":
        return len(gmi.cores) / max(1, len(device.cores))
    if gmi.mig is not None:
        return _slices(gmi, device)[1]
    if gmi.backend == "green" and (groups := num_groups(device)):
        return groups_of(gmi.sm_percent, groups) / groups
    return None if gmi.sm_percent is None else gmi.sm_percent / 100


def _start(gmi: GmiSpec, device: Device) -> float | None:
    """Where it lies, if that is known; None: after the one before."""
    if gmi.mig is not None:
        return _slices(gmi, device)[0]
    if gmi.backend == "cpu" and gmi.cores and gmi.cores[0] in device.cores:
        return device.cores.index(gmi.cores[0]) / len(device.cores)
    return None


def _slices(gmi: GmiSpec, device: Device) -> tuple[float, float]:
    assert gmi.mig is not None
    have = {(its.profile, its.start): its.size for its in device.mig}
    profiles = {its.name: its.size for its in profiles_of(device)}
    size = have.get((gmi.mig.profile, gmi.mig.start), profiles.get(gmi.mig.profile, 1))
    whole = max([8 if not profiles else 0, *profiles.values()])
    return gmi.mig.start / whole, size / whole
