"""Draws a layout, with characters and as an SVG, and words its shares, links and channels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from gmi_drl.comm.links.links import LINK_KINDS, LinkKind
from gmi_drl.comm.plan.project import stages_of
from gmi_drl.placement import Device, GmiSpec, Layout, counted, format_cores, reducing
from gmi_drl.placement.faults import device_name
from gmi_drl.placement.mig import instance_at, profiles_of
from gmi_drl.placement.slicing import groups_of, num_groups
from gmi_drl.placement.templates import TEMPLATES
from gmi_drl.placement.topology import NETWORK

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import ReductionPlan

_BAR: Final = 24  # characters of a whole device ...
_LEAST: Final = 8  # ... and what is still readable


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
        f"{100 * device.share:.3g} % for this run" if device.share < 1 else "",
        f"cores {format_cores(device.cores)}" if device.kind == "gpu" and device.cores else "",
        f"NUMA {device.numa_node}" if device.numa_node is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def reduction_steps(layout: Layout, plan: ReductionPlan) -> list[Exchange]:
    """Lists who reduces gradients with whom, in the order it is done; [] when nobody has to.

    Each host first reduces as planned, and then the first trainer of each host with the others.
    """
    if layout.hosts == 1:
        return _steps_within(layout, plan)
    steps: list[Exchange] = []
    hosts = [[gmi.gmi_id for gmi in layout.on_host(host)] for host in range(layout.hosts)]
    for host, ids in enumerate(hosts):
        for step in _steps_within(layout.of_host(host), plan):
            steps.append(Exchange(step.name, tuple(ids[i] for i in step.sources)))
    leaders = tuple(
        next(i for i in ids if "trainer" in layout.gmi(i).roles)
        for ids in hosts
        if any("trainer" in layout.gmi(i).roles for i in ids)
    )
    return [*steps, Exchange(NETWORK, leaders)] if len(leaders) > 1 else steps


def _steps_within(layout: Layout, plan: ReductionPlan) -> list[Exchange]:
    mpl = reducing(layout)
    if sum(map(len, mpl)) < 2:
        return []
    links = next((row.links for row in plan.rows if row.strategy == plan.strategy), ())
    inside: LinkKind = "ipc" if any(key.kind == "ipc" for key in links) else "host"
    steps: list[Exchange] = []
    for stage in stages_of(plan.strategy, mpl, inside):
        if stage.kind != "ring_bcast":  # along the rings that are there already
            last = "last " if steps and plan.strategy == "mrr" else ""
            steps += [Exchange(last + LINK_KINDS[stage.kind], group) for group in stage.groups]
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
    """Returns a GMI's share in words, as a part of the device, and where that begins.

    None: it has no limit, and lies after the one before.
    """
    if gmi.mig is not None:
        instance = instance_at(device, gmi.mig)
        total = max((profile.size for profile in profiles_of(device)), default=8)
        size = 1 if instance is None else instance.size
        return f"{gmi.mig.profile} at {gmi.mig.start}", size / total, gmi.mig.start / total
    if device.kind == "cpu":
        own, count = len(gmi.cores), max(1, len(device.cores))
        is_listed = gmi.cores and gmi.cores[0] in device.cores
        begin = device.cores.index(gmi.cores[0]) / count if is_listed else None
        return f"{own} of {counted(len(device.cores), 'core')}", own / count, begin
    if gmi.backend == "green" and (groups := num_groups(device)):
        own = groups_of(gmi.sm_percent, groups)
        return f"{own} of {groups} SM groups", own / groups, None
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
    bar = max(_LEAST, min(_BAR, width - 3 - sum(w + 2 for w in widths if w)))
    for device, ids in zip(layout.topology.devices, layout.mpl, strict=True):
        name = f"{_device_label(layout, device)}  {device.name}"
        details = device_text(device)
        lines.append(name + (f": {details}" if details else ""))
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


def _device_label(layout: Layout, device: Device) -> str:
    """Names a device, and of several hosts its own."""
    return f"host {device.host}, " * (layout.hosts > 1) + device_name(device)


def _bar(span: Span, whole: int) -> str:
    if span.shared:
        return "▒" * whole
    begin = min(whole - 1, round(span.begin * whole))
    end = max(begin + 1, round((span.begin + span.width) * whole))
    return ("░" * begin + "█" * (end - begin)).ljust(whole, "░")[:whole]


_ROLES: Final = {"simulator": "#4c78a8", "agent": "#e8871e", "trainer": "#4b9b5a"}
_INK, _PALE, _LINE, _GROUND = "#1f2933", "#66737f", "#cfd6dd", "#f5f7f9"
_RING, _MEMORY, _ARROW = "#4b9b5a", "#d9ecdc", "#7a5ea8"
# Pixels.
_LEFT, _TOP, _CARD, _GAP, _PAD = 190, 92, 278, 18, 16
_HEAD, _ROW, _LANE = 62, 62, 48
_FEW, _READABLE = 10, 8  # GMIs on a device whose numbers fit on a lane; the radius of a number


def draw_layout(layout: Layout, plan: ReductionPlan) -> str:
    """Returns the SVG. All cards are as wide; a GMI's bar is its part of the device."""
    most = max(map(len, layout.mpl))
    stations = _stations(layout)
    lanes = _lanes([*reduction_steps(layout, plan), *channel_groups(layout)], stations)
    cards_end = _TOP + _HEAD + most * _ROW + 8
    height = cards_end + 34 + _LANE * len(lanes)
    width = max(_LEFT + len(layout.mpl) * (_CARD + _GAP) + _PAD, 640)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="Inter, Segoe UI, Helvetica, Arial, sans-serif">',
        f"<title>{escape(_title(layout))}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="4.5" '
        f'markerHeight="4.5" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{_ARROW}"/>'
        "</marker></defs>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_PAD + 4, 38, _title(layout), 20, weight=600),
        _text(_PAD + 4, 62, _subtitle(layout, plan), 13, _PALE),
        *_legend(width),
    ]
    spans = spans_of(layout)
    for device, ids in zip(layout.topology.devices, layout.mpl, strict=True):
        x = _LEFT + device.index * (_CARD + _GAP)
        name = _device_label(layout, device)
        parts += _card(name, device, [layout.gmi(i) for i in ids], spans, x, cards_end - _TOP)
    radius = 11 if most <= _FEW else 4.0
    for row, lane in enumerate(lanes):
        y = cards_end + 34 + row * _LANE
        name = _cut(lane[0].name, 26)
        parts.append(_text(_LEFT - 14, y + 4, name, 12.5, _PALE, anchor="end"))
        for exchange in lane:
            colour, up = (_ARROW, 6) if exchange.targets else (_RING, 0)
            parts += (_channel if exchange.targets else _reduction)(exchange, stations, y)
            parts += [_station(i, stations[i], y - up, colour, radius) for i in exchange.gmis]
    return "\n".join([*parts, "</svg>", ""])


def _title(layout: Layout) -> str:
    devices = len(layout.topology.devices)
    where = f"{devices} group{'s' * (devices > 1)} of cores"
    if layout.topology.devices[0].kind == "gpu":
        where = counted(devices, "GPU")
    backends = ", ".join(dict.fromkeys(gmi.backend for gmi in layout.gmis))
    hosts = f" of {layout.hosts} hosts" * (layout.hosts > 1)
    gmis = counted(len(layout.gmis), "GMI")
    return f"{layout.template}: {gmis} on {where}{hosts}, backend {backends}"


def _subtitle(layout: Layout, plan: ReductionPlan) -> str:
    total = sum(gmi.num_env for gmi in layout.gmis)
    reduction = f"reduction {plan.strategy}" if layout.holding("trainer") else "nothing is trained"
    return f"{counted(total, 'environment')}, {reduction}"


def _legend(width: int) -> list[str]:
    parts, x = [], width - _PAD - 96 * len(_ROLES)
    for role, colour in _ROLES.items():
        parts.append(f'<rect x="{x}" y="53" width="11" height="11" rx="3" fill="{colour}"/>')
        parts.append(_text(x + 16, 62.5, role, 12.5, _PALE))
        x += 96
    return parts


def _card(
    name: str, device: Device, gmis: list[GmiSpec], spans: dict[int, Span], x: int, height: int
) -> list[str]:
    parts = [
        f'<rect x="{x}" y="{_TOP}" width="{_CARD}" height="{height}" rx="10" fill="{_GROUND}" '
        f'stroke="{_LINE}"/>',
        f'<text x="{x + _PAD}" y="{_TOP + 26}" font-size="15" font-weight="600" fill="{_INK}">'
        f'{name}<tspan dx="9" font-size="12.5" font-weight="400" fill="{_PALE}">'
        f"{escape(_cut(device.name, 26))}</tspan></text>",
        _text(x + _PAD, _TOP + 45, _cut(device_text(device), 48), 11, _PALE),
    ]
    for row, gmi in enumerate(gmis):
        parts += _gmi(gmi, device, spans[gmi.gmi_id], x + _PAD, _TOP + _HEAD + row * _ROW)
    if not gmis:
        parts.append(_text(x + _PAD, _TOP + _HEAD + 20, "no GMI", 12.5, _PALE))
    return parts


def _gmi(gmi: GmiSpec, device: Device, span: Span, x: int, y: int) -> list[str]:
    inner = _CARD - 2 * _PAD
    begin, bar_width = x + span.begin * inner, max(4.0, span.width * inner)
    height = 12 / len(gmi.roles)
    solid = 0.45 if span.shared else 1
    parts = [
        _text(x, y + 13, f"GMI {gmi.gmi_id}", 13, weight=600),
        _text(x + inner, y + 13, " + ".join(gmi.roles), 11.5, _PALE, anchor="end"),
        f'<rect x="{x}" y="{y + 20}" width="{inner}" height="12" rx="3" fill="#e3e8ed"/>',
    ]
    for row, role in enumerate(gmi.roles):
        parts.append(
            f'<rect x="{begin:.1f}" y="{y + 20 + row * height:.1f}" width="{bar_width:.1f}" '
            f'height="{height:.1f}" fill="{_ROLES[role]}" opacity="{solid}"/>'
        )
    cores = "" if device.kind == "gpu" else f"cores {format_cores(gmi.cores)}"
    words = [share_text(gmi, device) + (", shared" if span.shared else "")]
    words += [memory_text(gmi, device), f"{gmi.num_env:,} env" if gmi.num_env else "", cores]
    return [*parts, _text(x, y + 46, _cut(" · ".join(filter(None, words)), 48), 11.5, _PALE)]


def _stations(layout: Layout) -> dict[int, float]:
    """Finds where the lanes have each GMI: below its device, beside the others of it."""
    inner = _CARD - 2 * _PAD
    return {
        i: _LEFT + device * (_CARD + _GAP) + _PAD + (n + 0.5) * inner / len(ids)
        for device, ids in enumerate(layout.mpl)
        for n, i in enumerate(ids)
    }


def _lanes(exchanges: Sequence[Exchange], stations: dict[int, float]) -> list[list[Exchange]]:
    """Puts exchanges that have the same name and lie side by side on one lane."""
    lanes: list[list[Exchange]] = []
    for exchange in exchanges:
        last = lanes[-1][-1] if lanes else None
        if last is not None and last.name == exchange.name:
            end = max(stations[i] for i in last.gmis)
            if min(stations[i] for i in exchange.gmis) > end + 40:
                lanes[-1].append(exchange)
                continue
        lanes.append([exchange])
    return lanes


def _reduction(step: Exchange, stations: dict[int, float], y: int) -> list[str]:
    """Draws a closed track for a ring, a filled band for memory that all share."""
    xs = [stations[i] for i in step.gmis]
    ring = step.name.endswith("ring")
    style = f'fill="none" stroke="{_RING}" stroke-width="2.5"' if ring else f'fill="{_MEMORY}"'
    return [
        f'<rect x="{min(xs) - 17:.1f}" y="{y - 15}" width="{max(xs) - min(xs) + 34:.1f}" '
        f'height="30" rx="15" {style}/>'
    ]


def _channel(group: Exchange, stations: dict[int, float], y: int) -> list[str]:
    """Draws a line under all ends, with an arrow up to each that receives."""
    sources, targets = [stations[i] for i in group.sources], [stations[i] for i in group.targets]
    rail, ends = y + 20, sources + targets
    parts = [_line(f"M{min(ends):.1f} {rail}H{max(ends):.1f}")]
    for xs, receives in ((sources, group.answered), (targets, True)):
        parts += [_line(f"M{x:.1f} {rail}V{y + 7}", receives) for x in xs]
    return parts


def _line(path: str, tip: bool = False) -> str:
    end = ' marker-end="url(#tip)"' if tip else ""
    return f'<path d="{path}" stroke="{_ARROW}" stroke-width="2" fill="none"{end}/>'


def _station(gmi_id: int, x: float, y: float, colour: str, radius: float) -> str:
    """Draws a GMI on a lane; its number where there is room."""
    circle = (
        f'<circle cx="{x:.1f}" cy="{y}" r="{radius}" fill="#ffffff" stroke="{colour}" '
        'stroke-width="2"/>'
    )
    if radius < _READABLE:
        return circle
    return circle + _text(x, y + 4, str(gmi_id), 11.5, weight=600, anchor="middle")


def _text(
    x: float, y: float, text: str, size: float, colour: str = _INK, weight: int = 400,
    anchor: str = "start",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
