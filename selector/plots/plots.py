"""A tune as a picture: throughput, what was tried, memory, where the time goes, and the races."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl.selector.record.findings import Findings
from gmi_drl.selector.record.summary import headline, is_sure, sureness, why
from gmi_drl.selector.tune.race import curves_of

from .drawing import INK, PALE, pens_of
from .panels import draw_throughput, draw_tried
from .panels_below import draw_memory, draw_races, draw_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gmi_drl.selector.record.record import Recorded

NAME: Final = "tuning"
_WIDTH: Final = 11.0  # inches
_CHARACTERS: Final = 162  # of the sentence on a line of that width


def draw(recorded: Recorded, folder: Path) -> list[Path]:
    """Write `tuning.png` and `tuning.svg` into `folder`; none when nothing ran."""
    findings = recorded.findings()
    if not findings.all:
        return []
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    # The same record gives the same SVG, and its words can be found and copied.
    with matplotlib.rc_context({"svg.hashsalt": NAME, "svg.fonttype": "none"}):
        figure = figure_of(recorded, findings)
        for kind, more in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
            path = folder / f"{NAME}.{kind}"
            figure.savefig(path, **more)
            made.append(path)
    return made


def figure_of(recorded: Recorded, findings: Findings) -> Figure:
    """The figure, not yet written."""
    from matplotlib.figure import Figure  # half a second, needed only here
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    pens = pens_of(findings)
    races = curves_of(recorded)
    text = textwrap.fill(
        f"{why(recorded)} {sureness(recorded)}", _CHARACTERS, break_on_hyphens=False
    )
    head = 0.62 + 0.165 * (1 + text.count("\n"))
    lanes = 0.85 + 0.21 * len(findings.rows)
    heights = [3.6 + lanes, 3.2, *([2.9] if races else [])]
    whole = head + sum(heights)
    room = ConstrainedLayoutEngine(rect=(0.006, 0.0, 0.984, 1.0 - head / whole))
    figure = Figure(figsize=(_WIDTH, whole), layout=room)
    figure.text(
        0.012, 1 - 0.14 / whole, headline(recorded), va="top", fontsize=15,
        fontweight="bold" if is_sure(recorded) else "normal", color=INK,
    )  # fmt: skip
    figure.text(0.012, 1 - 0.5 / whole, text, va="top", fontsize=9, color=PALE, linespacing=1.25)
    parts = figure.subfigures(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    throughput, tried = parts[0].subplots(2, height_ratios=[3.6, lanes])
    draw_throughput(throughput, findings, pens)
    draw_tried(tried, findings, pens)
    memory, time = parts[1].subplots(1, 2)
    draw_memory(memory, findings, pens)
    draw_time(time, findings)
    if races:
        draw_races(parts[2].subplots(), races, findings, pens)
    return figure
