"""Draws a tune: throughput, what was tried, memory, where the time goes, and the races."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gmi_drl.selector.record.report import headline, is_sure, sureness, why
from gmi_drl.selector.record.results import CandidateResult, TuneResults, compared
from gmi_drl.selector.tune.candidate import Candidate, DeviceSplit, candidate_text, row_text
from gmi_drl.selector.tune.race import curves_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gmi_drl.selector.record.record import TuneRecord

NAME: Final = "tuning"
INK: Final = "#1f2933"
PALE: Final = "#66737f"
_LINE: Final = "#9aa5b1"
# Okabe and Ito's colours, which colour-blind readers can tell apart, without their yellow (too
# pale on white) and black (which is for the winner).
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7f7f7f")
_MARKERS: Final = "osDv^P<>"
_LINES: Final = ("-", "--", ":", "-.")
_ROOM: Final = 1.35  # factor beyond the largest num_env, for words beside what failed there
_WIDTH: Final = 11.0  # inches
_CHARACTERS: Final = 162  # of the summary on a line of that width
_PHASES: Final = {
    "simulate": "#0072B2", "infer": "#56B4E9", "send": "#CC79A7", "wait": "#d9dee3",
    "train": "#E69F00", "reduce": "#009E73",
}  # fmt: skip
_OTHER: Final = "#a3adb8"
_NARROW: Final = 0.06  # shares below this have no room for a number


@dataclass(frozen=True)
class Pen:
    """Says how a row is drawn, in every panel alike."""

    colour: str
    marker: str
    line: str
    label: str


Pens: TypeAlias = Mapping[DeviceSplit, Pen]


def pens_of(results: TuneResults) -> Pens:
    """Returns a colour for each GMI count; rows of one count differ by line and marker."""
    counts = sorted({row.gmi_per_gpu for row in results.rows})
    pens: dict[DeviceSplit, Pen] = {}
    for place, row in enumerate(results.rows):
        colour = _COLOURS[counts.index(row.gmi_per_gpu) % len(_COLOURS)]
        alike = sum(other.colour == colour for other in pens.values())
        marker, line = _MARKERS[place % len(_MARKERS)], _LINES[alike % len(_LINES)]
        pens[row] = Pen(colour, marker, line, row_text(row, results.rows))
    return pens


def titled(axis: Any, text: str) -> None:
    """Draws a panel's heading, and its lines pale."""
    axis.set_title(text, loc="left", fontsize=10.5, fontweight="bold", color=INK)
    for spine in axis.spines.values():
        spine.set_color(_LINE)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(color=_LINE, labelcolor=INK, labelsize=9)


def ladder(axis: Any, results: TuneResults, most: int = 10) -> None:
    """Sets the axis of num_env: `most` powers of two at most, the same range in every panel."""
    from matplotlib.ticker import NullLocator

    sizes = [f.candidate.num_env for f in results.all]
    sizes += [candidate.num_env for candidate in results.failures]
    sizes += [s.candidate.num_env for s in (results.chosen.skipped if results.chosen else ())]
    low, high = min(sizes), max(sizes)
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


def draw(record: TuneRecord, folder: Path) -> list[Path]:
    """Writes `tuning.png` and `tuning.svg` into `folder`; none when nothing ran."""
    results = record.results()
    if not results.all:
        return []
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    # The same record gives the same SVG, and its words can be found and copied.
    with matplotlib.rc_context({"svg.hashsalt": NAME, "svg.fonttype": "none"}):
        figure = _figure_of(record, results)
        for kind, options in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
            path = folder / f"{NAME}.{kind}"
            figure.savefig(path, **options)
            paths.append(path)
    return paths


def _figure_of(record: TuneRecord, results: TuneResults) -> Figure:
    """Draws the figure, not yet written."""
    from matplotlib.figure import Figure  # half a second, needed only here
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    pens = pens_of(results)
    races = curves_of(record)
    text = textwrap.fill(f"{why(record)} {sureness(record)}", _CHARACTERS, break_on_hyphens=False)
    head = 0.62 + 0.165 * (1 + text.count("\n"))
    lanes = 0.85 + 0.21 * len(results.rows)
    heights = [3.6 + lanes, 3.2, *([2.9] if races else [])]
    total = head + sum(heights)
    room = ConstrainedLayoutEngine(rect=(0.006, 0.0, 0.984, 1.0 - head / total))
    figure = Figure(figsize=(_WIDTH, total), layout=room)
    figure.text(
        0.012, 1 - 0.14 / total, headline(record), va="top", fontsize=15,
        fontweight="bold" if is_sure(record) else "normal", color=INK,
    )  # fmt: skip
    figure.text(0.012, 1 - 0.5 / total, text, va="top", fontsize=9, color=PALE, linespacing=1.25)
    parts = figure.subfigures(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    throughput, tried = parts[0].subplots(2, height_ratios=[3.6, lanes])
    _draw_throughput(throughput, results, pens)
    _draw_tried(tried, results, pens)
    memory, time = parts[1].subplots(1, 2)
    _draw_memory(memory, results, pens)
    _draw_time(time, results)
    if races:
        _draw_races(parts[2].subplots(), races, results, pens)
    return figure


def _draw_throughput(axis: Any, results: TuneResults, pens: Pens) -> None:
    """Draws steps/s against num_env, a line a row; knees, winner and runner-up marked."""
    from matplotlib.ticker import EngFormatter

    for row, row_results in results.rows.items():
        if not row_results:
            continue
        pen = pens[row]
        rates = [f.measured.steps_per_s for f in row_results]
        axis.errorbar(
            [f.candidate.num_env for f in row_results], rates,
            yerr=[f.measured.error * f.measured.steps_per_s for f in row_results],
            color=pen.colour, marker=pen.marker, linestyle=pen.line, label=pen.label,
            markersize=5, linewidth=1.7, capsize=2.5, elinewidth=1.0, zorder=3,
        )  # fmt: skip
    knees = [result for row in results.rows if (result := results.knee(row)) is not None]
    if knees:
        axis.plot(
            [f.candidate.num_env for f in knees], [f.measured.steps_per_s for f in knees], "o",
            markersize=12, markerfacecolor="none", markeredgecolor=PALE, markeredgewidth=1.3,
            label="saturated from here on", zorder=4,
        )  # fmt: skip
    _mark(axis, results.runner_up, "D", 12, "none", "runner-up")
    _mark(axis, results.winner, "*", 19, INK, "winner")
    top = max(f.measured.steps_per_s * (1 + f.measured.error) for f in results.all)
    axis.set(ylabel="environment steps/s", ylim=(0, 1.17 * top))
    axis.yaxis.set_major_formatter(EngFormatter(sep=" "))
    titled(axis, "Throughput, all GMIs together")
    handles, labels = axis.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: hasattr(handles[place], "get_marker"))
    axis.legend(
        [handles[i] if hasattr(handles[i], "get_marker") else handles[i][0] for i in order],
        [labels[i] for i in order],
        loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=9, frameon=False, labelspacing=0.7,
    )  # fmt: skip
    ladder(axis, results)
    axis.set_xlabel("")
    axis.tick_params(labelbottom=False)
    winner = results.winner
    if winner is None:
        return
    num_env = winner.candidate.num_env
    low, high = axis.get_xlim()
    side = "left" if num_env > (low * high) ** 0.5 else "right"
    axis.annotate(
        f"{candidate_text(winner.candidate, results.rows)}: {winner.measured.steps_per_s:,.0f}",
        (num_env, winner.measured.steps_per_s), (6 if side == "left" else -6, 13),
        textcoords="offset points", ha="right" if side == "left" else "left", fontsize=9,
        fontweight="bold", color=INK, zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0},
    )  # fmt: skip


def _mark(
    axis: Any, result: CandidateResult | None, marker: str, size: float, face: str, label: str
) -> None:
    if result is None:
        return
    axis.plot(
        [result.candidate.num_env], [result.measured.steps_per_s], marker, markersize=size,
        markerfacecolor=face, markeredgecolor="white" if face != "none" else INK,
        markeredgewidth=1.2, label=label, zorder=5,
    )  # fmt: skip


def _draw_tried(axis: Any, results: TuneResults, pens: Pens) -> None:
    """Draws a lane a row: what was measured, what failed and why, what was left out."""
    skipped = results.chosen.skipped if results.chosen else ()
    for lane, (row, row_results) in enumerate(results.rows.items()):
        pen = pens[row]
        left_out = [s.candidate.num_env for s in skipped if s.candidate.row == row]
        ran = [f.candidate.num_env for f in row_results]
        axis.plot(left_out, [lane] * len(left_out), "o", markersize=3.2, color="#cbd2d9", zorder=2)
        axis.plot(ran, [lane] * len(ran), pen.marker, markersize=5.5, color=pen.colour, zorder=3)
        for candidate, failed in results.failures.items():
            if candidate.row != row:
                continue
            num_env = candidate.num_env
            axis.plot([num_env], [lane], "X", markersize=7.5, color=INK, zorder=4)
            axis.annotate(
                failed.reason, (num_env, lane), (7, 0), textcoords="offset points",
                va="center", fontsize=8, color=INK, zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    lanes = len(results.rows)
    axis.set_yticks(range(lanes), [pens[row].label for row in results.rows], fontsize=8.5)
    axis.set_ylim(lanes - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    titled(axis, "What was tried  (cross: failed, grey: left out)")
    ladder(axis, results)
    axis.spines["left"].set_visible(False)


def _draw_memory(axis: Any, results: TuneResults, pens: Pens) -> None:
    """Draws GiB against num_env, and what there is."""
    device = any(f.measured.device_bytes is not None for f in results.all)
    most = 0.0
    limits = []
    for row, row_results in results.rows.items():
        pen = pens[row]
        used = [f.gib for f in row_results]
        axis.plot(
            [f.candidate.num_env for f in row_results], used, color=pen.colour, marker=pen.marker,
            linestyle=pen.line, markersize=4, linewidth=1.5, zorder=3,
        )  # fmt: skip
        most = max([most, *used])
        limits += [f.gib / f.measured.memory for f in row_results if f.measured.memory > 0]
    if results.winner is not None:
        axis.plot(
            [results.winner.candidate.num_env], [results.winner.gib], "*", markersize=15,
            color=INK, markeredgecolor="white", zorder=4,
        )  # fmt: skip
    where = "of the fullest device" if device else "of the host"
    titled(axis, f"Memory {where}")
    axis.set(ylabel="GiB")
    # A share of host's memory may be the larger one: what the device has is not below any of these.
    limit = (max if device else min)(limits, default=None)
    top = 1.12 * most
    if limit is not None and limit < 3 * most:
        axis.axhline(limit, color="#D55E00", linewidth=1.4, zorder=2)
        axis.annotate(
            f"limit {limit:,.1f} GiB", (0, limit), (4, 3), fontsize=8.5, color="#a34700",
            xycoords=("axes fraction", "data"), textcoords="offset points",
        )  # fmt: skip
        top = max(top, 1.12 * limit)
    elif limit is not None:
        axis.annotate(
            f"limit {limit:,.1f} GiB: far above", (0, 1), (4, -12), fontsize=8.5, color="#a34700",
            xycoords="axes fraction", textcoords="offset points",
        )  # fmt: skip
        top = 1.3 * most
    axis.set_ylim(0, top)
    ladder(axis, results, most=7)


def _draw_time(axis: Any, results: TuneResults) -> None:
    """Draws the phases of winner, runner-up and what they are held against, as shares of time."""
    bars = compared(results)
    drawn: dict[str, None] = {}
    for place, (name, result) in enumerate(bars):
        left = 0.0
        for phase, share in result.measured.phases.items():
            colour = _PHASES.get(phase, _OTHER)
            axis.barh(place, 100 * share, 0.6, 100 * left, color=colour, edgecolor="white")
            if share >= _NARROW:
                axis.text(
                    100 * (left + share / 2), place, f"{100 * share:.0f} %", ha="center",
                    va="center", fontsize=8, color="white" if phase == "simulate" else INK,
                )  # fmt: skip
            left += share
            if share >= 0.005:
                drawn[phase] = None
        axis.text(
            0, place - 0.36, f"{name}: {candidate_text(result.candidate, results.rows)}, "
            f"{result.measured.steps_per_s:,.0f} steps/s", fontsize=8.5, va="bottom", color=INK,
        )  # fmt: skip
    from matplotlib.patches import Patch

    axis.legend(
        handles=[Patch(color=_PHASES.get(phase, _OTHER), label=phase) for phase in drawn],
        loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=6, fontsize=8, frameon=False,
        handlelength=1.0, columnspacing=1.2,
    )  # fmt: skip
    axis.set(xlim=(0, 100), ylim=(max(3, len(bars)) - 0.5, -0.75), xlabel="")
    axis.set_yticks([])
    axis.xaxis.set_major_formatter("{x:.0f} %")
    axis.spines["left"].set_visible(False)
    titled(axis, "Where the time goes, mean over GMIs")


def _draw_races(
    axis: Any, races: Sequence[Mapping[str, Any]], results: TuneResults, pens: Pens
) -> None:
    """Draws return against seconds of training: all finalists have had the same time."""
    curves: dict[Candidate, list[tuple[float, float]]] = {}
    for race in sorted(races, key=lambda race: int(race["round"])):
        if race["points"]:
            curves[race["candidate"]] = [(float(s), float(r)) for s, r in race["points"]]
    for place, (candidate, points) in enumerate(curves.items()):
        pen = pens.get(candidate.row)
        axis.plot(
            [s for s, _ in points], [r for _, r in points], _LINES[place % len(_LINES)],
            color=pen.colour if pen else PALE, linewidth=1.8,
            label=candidate_text(candidate, results.rows),
        )  # fmt: skip
        if results.winner is not None and candidate == results.winner.candidate:
            axis.plot(*points[-1], "*", markersize=15, color=INK, markeredgecolor="white", zorder=4)
    axis.set(xlabel="seconds of training", ylabel="return")
    axis.legend(fontsize=8, frameon=False, loc="best")
    axis.grid(alpha=0.25)
    titled(axis, "Return at equal time")
