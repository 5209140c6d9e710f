"""The lower panels of a tune's picture: memory, where the time goes, and the races."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gmi_drl.selector.record.findings import Findings, candidate_text, told_apart
from gmi_drl.selector.tune.candidate import Candidate

from .drawing import INK, PALE, Pens, ladder, titled

_PHASES: Final = {
    "simulate": "#0072B2", "infer": "#56B4E9", "send": "#CC79A7", "wait": "#d9dee3",
    "train": "#E69F00", "reduce": "#009E73",
}  # fmt: skip
_OTHER: Final = "#a3adb8"
_NARROW: Final = 0.06  # shares below this have no room for a number


def draw_memory(axis: Any, findings: Findings, pens: Pens) -> None:
    """GiB against num_env, and what there is."""
    device = any(f.measured.device_bytes is not None for f in findings.all)
    most = 0.0
    limits = []
    for row, its in findings.rows.items():
        pen = pens[row]
        used = [f.gib for f in its]
        axis.plot(
            [f.candidate.num_env for f in its], used, color=pen.colour, marker=pen.marker,
            linestyle=pen.line, markersize=4, linewidth=1.5, zorder=3,
        )  # fmt: skip
        most = max([most, *used])
        limits += [f.gib / f.measured.memory for f in its if f.measured.memory > 0]
    if findings.winner is not None:
        axis.plot(
            [findings.winner.candidate.num_env], [findings.winner.gib], "*", markersize=15,
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
    ladder(axis, findings, most=7)


def draw_time(axis: Any, findings: Findings) -> None:
    """The phases of winner, runner-up and what they are held against, as shares of their time."""
    bars = told_apart(findings)
    shown: dict[str, None] = {}
    for place, (name, finding) in enumerate(bars):
        left = 0.0
        for phase, share in finding.measured.phases.items():
            colour = _PHASES.get(phase, _OTHER)
            axis.barh(place, 100 * share, 0.6, 100 * left, color=colour, edgecolor="white")
            if share >= _NARROW:
                axis.text(
                    100 * (left + share / 2), place, f"{100 * share:.0f} %", ha="center",
                    va="center", fontsize=8, color="white" if phase == "simulate" else INK,
                )  # fmt: skip
            left += share
            if share >= 0.005:
                shown[phase] = None
        axis.text(
            0, place - 0.36, f"{name}: {candidate_text(finding.candidate, findings.rows)}, "
            f"{finding.measured.steps_per_s:,.0f} steps/s", fontsize=8.5, va="bottom", color=INK,
        )  # fmt: skip
    from matplotlib.patches import Patch

    axis.legend(
        handles=[Patch(color=_PHASES.get(phase, _OTHER), label=phase) for phase in shown],
        loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=6, fontsize=8, frameon=False,
        handlelength=1.0, columnspacing=1.2,
    )  # fmt: skip
    axis.set(xlim=(0, 100), ylim=(max(3, len(bars)) - 0.5, -0.75), xlabel="")
    axis.set_yticks([])
    axis.xaxis.set_major_formatter("{x:.0f} %")
    axis.spines["left"].set_visible(False)
    titled(axis, "Where the time goes, mean over GMIs")


def draw_races(
    axis: Any, races: Sequence[Mapping[str, Any]], findings: Findings, pens: Pens
) -> None:
    """Return against seconds of training: all finalists have had the same time."""
    curves: dict[Candidate, list[tuple[float, float]]] = {}
    for race in sorted(races, key=lambda race: int(race["round"])):
        if race["points"]:
            curves[race["candidate"]] = [(float(s), float(r)) for s, r in race["points"]]
    lines = ("-", "--", ":", "-.")
    for place, (candidate, points) in enumerate(curves.items()):
        pen = pens.get(candidate.row)
        axis.plot(
            [s for s, _ in points], [r for _, r in points], lines[place % len(lines)],
            color=pen.colour if pen else PALE, linewidth=1.8,
            label=candidate_text(candidate, findings.rows),
        )  # fmt: skip
        if findings.winner is not None and candidate == findings.winner.candidate:
            axis.plot(*points[-1], "*", markersize=15, color=INK, markeredgecolor="white", zorder=4)
    axis.set(xlabel="seconds of training", ylabel="return")
    axis.legend(fontsize=8, frameon=False, loc="best")
    axis.grid(alpha=0.25)
    titled(axis, "Return at equal time")
