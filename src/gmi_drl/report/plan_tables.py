"""A plan as tables: the templates, the layout drawn, and for the reduction both answers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.comm.plan.project import duration_text
from gmi_drl.launcher.view.tables import print_table
from gmi_drl.placement import counted
from gmi_drl.placement.reduction import reducing

from .layout_shares import KINDS
from .layout_text import layout_lines

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.comm.plan.links import LinkKey
    from gmi_drl.comm.plan.plan import ReductionPlan
    from gmi_drl.launcher.plan.template_choice import TemplateRow
    from gmi_drl.placement import Layout

_LEAST: Final = 30  # columns of text that are still readable


def print_reduction(console: Console, plan: ReductionPlan, layout: Layout) -> None:
    """What reduces gradients, and the numbers it was chosen by."""
    count = sum(map(len, reducing(layout)))
    rows = [["used", f"{plan.strategy}: {plan.why}"]]
    if count < 2:
        _print(console, "Reduction", ["what", "value"], rows)
        return
    size = f"{plan.numel:,} numbers, {plan.nbytes / 1024:,.0f} KiB"
    rows += [
        ["by measured links", plan.fastest or "not known: links are not measured"],
        ["by Algorithm 1", f"{plan.paper}: {plan.paper_why}"],
        ["gradient", f"{size}, sent as {plan.wire}"],
        *(["note", note] for note in plan.notes),
    ]
    _print(console, f"Reduction among {counted(count, 'GMI')}", ["what", "value"], rows)
    _print(
        console,
        "Strategies (time of one reduction)",
        ["strategy", "Table 2", "measured", "runs on, or why not"],
        [
            [
                row.strategy,
                _time(row.paper_s),
                _time(row.measured_s),
                row.why_not or " + ".join(map(_name, row.links)),
            ]
            for row in plan.rows
        ],
    )
    if plan.links:
        _print(
            console,
            "Links (alpha + bytes / bandwidth)",
            ["link", "alpha", "bandwidth", "error of the fit"],
            [
                [
                    _name(key),
                    duration_text(link.alpha_s),
                    "-" if math.isinf(link.bandwidth) else f"{link.bandwidth / 1e9:.3g} GB/s",
                    f"{100 * link.residual:.0f} %",
                ]
                for key, link in sorted(plan.links.items())
            ],
        )


def print_templates(console: Console, mode: str, rows: Sequence[TemplateRow]) -> None:
    """What the papers' model says of each template of the mode."""
    _print(
        console,
        f"Templates of mode {mode} (throughput by the paper's constants)",
        ["template", "relative", "why"],
        [
            [
                f"{row.template}{' (this)' if row.chosen else ''}",
                "-" if row.relative is None else f"{row.relative:.2f}",
                row.why + (f"; not with this config: {row.why_not}" if row.why_not else ""),
            ]
            for row in rows
        ],
    )


def print_layout(console: Console, layout: Layout, plan: ReductionPlan, reason: str | None) -> None:
    """The layout drawn, and why its backend was chosen."""
    console.out(f"Layout ({reason})" if reason else "Layout", highlight=False)
    for line in layout_lines(layout, plan, console.width - 2):
        console.out(f"  {line}", highlight=False)


def _name(key: LinkKey) -> str:
    return f"{KINDS[key.kind]} {str(key).partition(' ')[2]}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)


def _print(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """A table whose last column is folded to the width there is, in a terminal and elsewhere."""
    if console.is_terminal:
        print_table(console, title, columns, rows)
        return
    before = sum(max(len(row[i]) for row in (columns, *rows)) + 2 for i in range(len(columns) - 1))
    width = max(_LEAST, console.width - before - 2)
    folded = []
    for row in rows:
        lines = textwrap.wrap(row[-1], width, break_on_hyphens=False) or [""]
        for number, line in enumerate(lines):
            folded.append([*(row[:-1] if not number else [""] * (len(row) - 1)), line])
    print_table(console, title, columns, folded)
