"""Draws a layout as an SVG: a card for each device, below a lane for each reduction and channel."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from gmi_drl.placement import Device, GmiSpec, Layout, counted, format_cores
from gmi_drl.placement.faults import device_name

from .layout_text import (
    Exchange,
    Span,
    channel_groups,
    device_text,
    memory_text,
    reduction_steps,
    share_text,
    spans_of,
)

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import ReductionPlan

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
        parts += _card(device, [layout.gmi(i) for i in ids], spans, x, cards_end - _TOP)
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
    gmis, devices = len(layout.gmis), len(layout.topology.devices)
    kind = "GPU" if layout.topology.devices[0].kind == "gpu" else "group of cores"
    many = "GPUs" if kind == "GPU" else "groups of cores"
    backends = ", ".join(dict.fromkeys(gmi.backend for gmi in layout.gmis))
    return (
        f"{layout.template}: {gmis} GMI{'s' * (gmis > 1)} on {devices} "
        f"{kind if devices == 1 else many}, backend {backends}"
    )


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
    device: Device, gmis: list[GmiSpec], spans: dict[int, Span], x: int, height: int
) -> list[str]:
    parts = [
        f'<rect x="{x}" y="{_TOP}" width="{_CARD}" height="{height}" rx="10" fill="{_GROUND}" '
        f'stroke="{_LINE}"/>',
        f'<text x="{x + _PAD}" y="{_TOP + 26}" font-size="15" font-weight="600" fill="{_INK}">'
        f'{device_name(device)}<tspan dx="9" font-size="12.5" font-weight="400" fill="{_PALE}">'
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
    begin, wide = x + span.begin * inner, max(4.0, span.width * inner)
    height = 12 / len(gmi.roles)
    solid = 0.45 if span.shared else 1
    parts = [
        _text(x, y + 13, f"GMI {gmi.gmi_id}", 13, weight=600),
        _text(x + inner, y + 13, " + ".join(gmi.roles), 11.5, _PALE, anchor="end"),
        f'<rect x="{x}" y="{y + 20}" width="{inner}" height="12" rx="3" fill="#e3e8ed"/>',
    ]
    for row, role in enumerate(gmi.roles):
        parts.append(
            f'<rect x="{begin:.1f}" y="{y + 20 + row * height:.1f}" width="{wide:.1f}" '
            f'height="{height:.1f}" fill="{_ROLES[role]}" opacity="{solid}"/>'
        )
    cores = "" if device.kind == "gpu" else f"cores {format_cores(gmi.cores)}"
    words = [share_text(gmi, device) + (", shared" if span.shared else "")]
    words += [memory_text(gmi, device), f"{gmi.num_env:,} env" if gmi.num_env else "", cores]
    return [*parts, _text(x, y + 46, _cut(" · ".join(filter(None, words)), 48), 11.5, _PALE)]


def _stations(layout: Layout) -> dict[int, float]:
    """Where the lanes have each GMI: below its device, beside the others of it."""
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
        before = lanes[-1][-1] if lanes else None
        if before is not None and before.name == exchange.name:
            end = max(stations[i] for i in before.gmis)
            if min(stations[i] for i in exchange.gmis) > end + 40:
                lanes[-1].append(exchange)
                continue
        lanes.append([exchange])
    return lanes


def _reduction(step: Exchange, stations: dict[int, float], y: int) -> list[str]:
    """A closed track for a ring, a filled band for memory that all share."""
    xs = [stations[i] for i in step.gmis]
    ring = step.name.endswith("ring")
    style = f'fill="none" stroke="{_RING}" stroke-width="2.5"' if ring else f'fill="{_MEMORY}"'
    return [
        f'<rect x="{min(xs) - 17:.1f}" y="{y - 15}" width="{max(xs) - min(xs) + 34:.1f}" '
        f'height="30" rx="15" {style}/>'
    ]


def _channel(group: Exchange, stations: dict[int, float], y: int) -> list[str]:
    """A line under all ends, with an arrow up to each that receives."""
    here, there = [stations[i] for i in group.sources], [stations[i] for i in group.targets]
    rail, ends = y + 20, here + there
    parts = [_line(f"M{min(ends):.1f} {rail}H{max(ends):.1f}")]
    for xs, receives in ((here, group.answered), (there, True)):
        parts += [_line(f"M{x:.1f} {rail}V{y + 7}", receives) for x in xs]
    return parts


def _line(path: str, tip: bool = False) -> str:
    end = ' marker-end="url(#tip)"' if tip else ""
    return f'<path d="{path}" stroke="{_ARROW}" stroke-width="2" fill="none"{end}/>'


def _station(gmi_id: int, x: float, y: float, colour: str, radius: float) -> str:
    """A GMI on a lane; its number where there is room."""
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
