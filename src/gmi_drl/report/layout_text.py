"""A layout drawn with characters: devices, the GMIs on them, and what joins GMIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gmi_drl.placement import GmiSpec, Layout
from gmi_drl.placement.faults import device_name

from .layout_shares import (
    Span,
    bonds_of,
    device_text,
    gmis_text,
    memory_text,
    share_text,
    spans_of,
    ways_of,
)

if TYPE_CHECKING:
    from gmi_drl.comm.plan.plan import ReductionPlan

_BAR: Final = 24  # characters of a whole device ...
_LEAST: Final = 8  # ... and what is still readable


def layout_lines(layout: Layout, plan: ReductionPlan, width: int = 100) -> list[str]:
    """The drawing, a line each. A GMI's bar shows the part of the device it has.

    Bars are shortened so that lines fit in `width` columns, as far as that goes.
    """
    spans, lines = spans_of(layout), []
    cells = {gmi.gmi_id: _cells(layout, gmi) for gmi in layout.gmis}
    widths = [max(len(its[i]) for its in cells.values()) for i in range(4)]
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
    reduces = [f"{bond.name} of {gmis_text(bond.members)}" for bond in bonds_of(layout, plan)]
    sends = [
        f"{gmis_text(way.sources)} to {gmis_text(way.targets)}: {way.carries}"
        for way in ways_of(layout)
    ]
    for title, its in (("gradients", reduces), ("channels", sends)):
        lines += [f"{title if not n else '':<10} {line}" for n, line in enumerate(its)]
    return lines


def _cells(layout: Layout, gmi: GmiSpec) -> tuple[str, str, str, str]:
    device = layout.topology.devices[gmi.gpu_id]
    return (
        f"GMI {gmi.gmi_id}",
        share_text(gmi, device),
        memory_text(gmi, device),
        "+".join(gmi.roles),
    )


def _bar(span: Span, whole: int) -> str:
    if span.shared:
        return "▒" * whole
    begin = min(whole - 1, round(span.begin * whole))
    end = max(begin + 1, round((span.begin + span.width) * whole))
    return ("░" * begin + "█" * (end - begin)).ljust(whole, "░")[:whole]
