"""Draws a layout with characters, and says what its pictures show: shares, links, channels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gmi_drl.comm.plan.links import LinkKind
from gmi_drl.comm.plan.project import stages_of
from gmi_drl.placement import Device, GmiSpec, Layout, counted, format_cores, reducing
from gmi_drl.placement.faults import device_name
from gmi_drl.placement.mig import instance_at, profiles_of
from gmi_drl.placement.slicing import groups_of, num_groups
from gmi_drl.placement.templates import TEMPLATES

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import ReductionPlan

_BAR: Final = 24  # characters of a whole device ...
_LEAST: Final = 8  # ... and what is still readable
# What people call the links of a reduction.
KINDS: Final[dict[LinkKind, str]] = {
    "host": "shared memory",
    "ring": "ring",
    "ring_bcast": "broadcast by ring",
    "ipc": "GPU memory",
}


@dataclass(frozen=True)
class Span:
    """Places a GMI on its device: its part of the SMs (or cores) from `begin` on, 0 to 1."""

    begin: float
    width: float
    shared: bool = False  # with the others of the device, without a limit


@dataclass(frozen=True)
class Exchange:
    """Names GMIs that send each other something: a step of a reduction, or channels alike."""

    name: str  # "ring", "shared memory", "GPU memory"; or what the channels carry
    sources: tuple[int, ...]
    targets: tuple[int, ...] = ()  # none: the sources reduce gradients among themselves
    answered: bool = False  # whether the targets send something back

    @property
    def gmis(self) -> tuple[int, ...]:
        """Lists all that take part."""
        return self.sources + self.targets


def spans_of(layout: Layout) -> dict[int, Span]:
    """Places each GMI on its device, by gmi_id; those of a device lie side by side."""
    spans: dict[int, Span] = {}
    for device, ids in zip(layout.topology.devices, layout.mpl, strict=True):
        gmis = [layout.gmi(i) for i in ids]
        parts = [_part_of(gmi, device) for gmi in gmis]
        scale = max(1.0, sum(width or 0.0 for _, width, _ in parts))  # more: each may be idle
        end = 0.0
        for gmi, (_, width, begin) in zip(gmis, parts, strict=True):
            if width is None:
                spans[gmi.gmi_id] = Span(0.0, 1.0, shared=len(gmis) > 1)
                continue
            spans[gmi.gmi_id] = Span(end if begin is None else begin, width / scale)
            end += width / scale
    return spans


def share_text(gmi: GmiSpec, device: Device) -> str:
    """Words a GMI's share: "50 % of SMs", "3g.71gb at 4", "2 of 8 cores"."""
    return _part_of(gmi, device)[0]


def memory_text(gmi: GmiSpec, device: Device) -> str:
    """Words a GMI's memory; "" where there is no limit."""
    mem_bytes = gmi.mem_bytes
    if mem_bytes is None and gmi.mig and (instance := instance_at(device, gmi.mig)):
        mem_bytes = instance.mem_bytes
    return "" if mem_bytes is None else f"{mem_bytes / 2**30:.1f} GiB"


def device_text(device: Device) -> str:
    """Lists what a device has: SMs, memory, what others hold of it, cores, NUMA node."""
    parts = [
        f"{device.sm_count} SMs" if device.sm_count else "",
        f"{device.mem_bytes / 2**30:.0f} GiB" if device.mem_bytes else "",
        f"{device.held_bytes / 2**30:.1f} held by others" if device.held_bytes else "",
        f"cores {format_cores(device.cores)}" if device.kind == "gpu" and device.cores else "",
        f"NUMA {device.numa_node}" if device.numa_node is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def reduction_steps(layout: Layout, plan: ReductionPlan) -> list[Exchange]:
    """Lists who reduces gradients with whom, in the order it is done; [] when nobody has to."""
    mpl = reducing(layout)
    if sum(map(len, mpl)) < 2:
        return []
    links = next((row.links for row in plan.rows if row.strategy == plan.strategy), ())
    inside: LinkKind = "ipc" if any(key.kind == "ipc" for key in links) else "host"
    steps: list[Exchange] = []
    for stage in stages_of(plan.strategy, mpl, inside):
        if stage.kind != "ring_bcast":  # along the rings that are there already
            last = "last " if steps and plan.strategy == "mrr" else ""
            steps += [Exchange(last + KINDS[stage.kind], group) for group in stage.groups]
    return steps


def channel_groups(layout: Layout) -> list[Exchange]:
    """Lists what GMIs send each other beside gradients, those with the same peers together."""
    template = TEMPLATES[layout.template]
    targets_of: defaultdict[int, list[int]] = defaultdict(list)
    pairs = [(source.gmi_id, target.gmi_id) for source, target in template.channels(layout)]
    answered = template.channels_answer
    # The way there comes first.
    for source, target in pairs[: len(pairs) // 2] if answered else pairs:
        targets_of[source].append(target)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for source, targets in targets_of.items():
        groups[tuple(targets)].append(source)
    return [
        Exchange(template.carries, tuple(sources), to, answered) for to, sources in groups.items()
    ]


def gmis_text(ids: Sequence[int]) -> str:
    """Words GMIs as people write them: "GMI 3", "GMIs 0-2,5"."""
    return f"GMI{'s' * (len(ids) > 1)} {format_cores(ids)}"


def _part_of(gmi: GmiSpec, device: Device) -> tuple[str, float | None, float | None]:
    """A GMI's share in words, as a part of the device, and where that begins.

    None: it has no limit, and lies after the one before.
    """
    if gmi.mig is not None:
        instance = instance_at(device, gmi.mig)
        whole = max((profile.size for profile in profiles_of(device)), default=8)
        size = 1 if instance is None else instance.size
        return f"{gmi.mig.profile} at {gmi.mig.start}", size / whole, gmi.mig.start / whole
    if device.kind == "cpu":
        has, count = len(gmi.cores), max(1, len(device.cores))
        known = gmi.cores and gmi.cores[0] in device.cores
        begin = device.cores.index(gmi.cores[0]) / count if known else None
        return f"{has} of {counted(len(device.cores), 'core')}", has / count, begin
    if gmi.backend == "green" and (groups := num_groups(device)):
        has = groups_of(gmi.sm_percent, groups)
        return f"{has} of {groups} SM groups", has / groups, None
    if gmi.sm_percent is None:
        return "all SMs", None, None
    return f"{gmi.sm_percent} % of SMs", gmi.sm_percent / 100, None


def layout_lines(layout: Layout, plan: ReductionPlan, width: int = 100) -> list[str]:
    """Draws a layout, a line each. A GMI's bar shows the part of the device it has.

    Bars are shortened so that lines fit in `width` columns, as far as that goes.
    """
    spans, lines = spans_of(layout), []
    cells = {}
    for gmi in layout.gmis:
        device = layout.topology.devices[gmi.gpu_id]
        words = f"GMI {gmi.gmi_id}", share_text(gmi, device), memory_text(gmi, device)
        cells[gmi.gmi_id] = (*words, "+".join(gmi.roles))
    widths = [max(len(row[i]) for row in cells.values()) for i in range(4)]
    bar = max(_LEAST, min(_BAR, width - 3 - sum(each + 2 for each in widths if each)))
    for device, ids in zip(layout.topology.devices, layout.mpl, strict=True):
        name = f"{device_name(device)}  {device.name}"
        what = device_text(device)
        lines.append(name + (f": {what}" if what else ""))
        if not ids:
            lines.append("└─ no GMI")
        for i in ids:
            corner = "└─" if i == ids[-1] else "├─"
            row = "  ".join(
                cell.ljust(width) for cell, width in zip(cells[i], widths, strict=True) if width
            )
            lines.append(f"{corner} {_bar(spans[i], bar)}  {row}".rstrip())
    reduces = [f"{step.name} of {gmis_text(step.gmis)}" for step in reduction_steps(layout, plan)]
    sends = [
        f"{gmis_text(group.sources)} to {gmis_text(group.targets)}: {group.name}"
        for group in channel_groups(layout)
    ]
    for title, texts in (("gradients", reduces), ("channels", sends)):
        lines += [f"{title if not n else '':<10} {text}" for n, text in enumerate(texts)]
    return lines


def _bar(span: Span, whole: int) -> str:
    if span.shared:
        return "▒" * whole
    begin = min(whole - 1, round(span.begin * whole))
    end = max(begin + 1, round((span.begin + span.width) * whole))
    return ("░" * begin + "█" * (end - begin)).ljust(whole, "░")[:whole]
