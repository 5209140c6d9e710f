"""Draws what all panels of a tune share: colours, the pen of each row, and the num_env axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gmi_drl.selector.record.results import TuneResults
from gmi_drl.selector.tune.candidate import DeviceSplit, row_text

INK: Final = "#1f2933"
PALE: Final = "#66737f"
_LINE: Final = "#9aa5b1"
# Okabe and Ito's colours, which colour-blind readers can tell apart, without their yellow (too
# pale on white) and black (which is for the winner).
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7f7f7f")
_MARKERS: Final = "osDv^P<>"
_LINES: Final = ("-", "--", ":", "-.")
_ROOM: Final = 1.35  # factor beyond the largest num_env, for words beside what failed there


@dataclass(frozen=True)
class Pen:
    """How a row is drawn, in every panel alike."""

    colour: str
    marker: str
    line: str
    label: str


Pens: TypeAlias = Mapping[DeviceSplit, Pen]


def pens_of(results: TuneResults) -> Pens:
    """A colour for each GMI count; rows of one count differ by line and marker."""
    counts = sorted({row.gmi_per_gpu for row in results.rows})
    pens: dict[DeviceSplit, Pen] = {}
    for place, row in enumerate(results.rows):
        colour = _COLOURS[counts.index(row.gmi_per_gpu) % len(_COLOURS)]
        alike = sum(other.colour == colour for other in pens.values())
        pens[row] = Pen(
            colour,
            _MARKERS[place % len(_MARKERS)],
            _LINES[alike % len(_LINES)],
            row_text(row, results.rows),
        )
    return pens


def titled(axis: Any, text: str) -> None:
    """A panel's heading, and its lines pale."""
    axis.set_title(text, loc="left", fontsize=10.5, fontweight="bold", color=INK)
    for spine in axis.spines.values():
        spine.set_color(_LINE)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(color=_LINE, labelcolor=INK, labelsize=9)


def ladder(axis: Any, results: TuneResults, most: int = 10) -> None:
    """num_env by powers of two, as numbers; the same range in every panel.

    `most`: so many numbers have room.
    """
    from matplotlib.ticker import NullLocator

    all_of = [f.candidate.num_env for f in results.all]
    all_of += [f.candidate.num_env for f in results.failures]
    all_of += [s.candidate.num_env for s in (results.chosen.skipped if results.chosen else ())]
    low, high = min(all_of), max(all_of)
    axis.set_xscale("log", base=2)
    axis.set_xlim(low / 1.15, high * _ROOM)
    powers = [2**e for e in range(low.bit_length() - 1, high.bit_length() + 1) if low <= 2**e]
    ticks = [power for power in powers if power <= high] or [low]
    every = -(-len(ticks) // most)
    ticks = ticks[::every]
    axis.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("num_env of each GMI")
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
