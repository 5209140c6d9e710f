"""The upper panels of a tune's picture: throughput, and what was tried."""

from __future__ import annotations

from typing import Any

from gmi_drl.selector.record.findings import Finding, Findings, candidate_text

from .drawing import INK, PALE, Pens, ladder, titled


def draw_throughput(axis: Any, findings: Findings, pens: Pens) -> None:
    """Steps/s against num_env, a line a row; knees, winner and runner-up marked."""
    from matplotlib.ticker import EngFormatter

    for row, its in findings.rows.items():
        if not its:
            continue
        pen = pens[row]
        rates = [f.measured.steps_per_s for f in its]
        axis.errorbar(
            [f.candidate.num_env for f in its], rates,
            yerr=[f.measured.error * f.measured.steps_per_s for f in its],
            color=pen.colour, marker=pen.marker, linestyle=pen.line, label=pen.label,
            markersize=5, linewidth=1.7, capsize=2.5, elinewidth=1.0, zorder=3,
        )  # fmt: skip
    knees = [finding for row in findings.rows if (finding := findings.knee(row)) is not None]
    if knees:
        axis.plot(
            [f.candidate.num_env for f in knees], [f.measured.steps_per_s for f in knees], "o",
            markersize=12, markerfacecolor="none", markeredgecolor=PALE, markeredgewidth=1.3,
            label="saturated from here on", zorder=4,
        )  # fmt: skip
    _mark(axis, findings.runner_up, "D", 12, "none", "runner-up")
    _mark(axis, findings.winner, "*", 19, INK, "winner")
    top = max(f.measured.steps_per_s * (1 + f.measured.error) for f in findings.all)
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
    ladder(axis, findings)
    axis.set_xlabel("")
    axis.tick_params(labelbottom=False)
    if findings.winner is not None:
        _say_winner(axis, findings.winner, findings)


def _say_winner(axis: Any, winner: Finding, findings: Findings) -> None:
    num_env = winner.candidate.num_env
    low, high = axis.get_xlim()
    side = "left" if num_env > (low * high) ** 0.5 else "right"
    axis.annotate(
        f"{candidate_text(winner.candidate, findings.rows)}: {winner.measured.steps_per_s:,.0f}",
        (num_env, winner.measured.steps_per_s), (6 if side == "left" else -6, 13),
        textcoords="offset points", ha="right" if side == "left" else "left", fontsize=9,
        fontweight="bold", color=INK, zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0},
    )  # fmt: skip


def _mark(
    axis: Any, finding: Finding | None, marker: str, size: float, face: str, label: str
) -> None:
    if finding is None:
        return
    axis.plot(
        [finding.candidate.num_env], [finding.measured.steps_per_s], marker, markersize=size,
        markerfacecolor=face, markeredgecolor="white" if face != "none" else INK,
        markeredgewidth=1.2, label=label, zorder=5,
    )  # fmt: skip


def draw_tried(axis: Any, findings: Findings, pens: Pens) -> None:
    """A lane a row: what was measured, what failed and why, what was left out."""
    skipped = findings.chosen.skipped if findings.chosen else ()
    for lane, (row, its) in enumerate(findings.rows.items()):
        pen = pens[row]
        out = [s.candidate.num_env for s in skipped if s.candidate.row == row]
        ran = [f.candidate.num_env for f in its]
        axis.plot(out, [lane] * len(out), "o", markersize=3.2, color="#cbd2d9", zorder=2)
        axis.plot(ran, [lane] * len(ran), pen.marker, markersize=5.5, color=pen.colour, zorder=3)
        for failure in findings.failures:
            if failure.candidate.row != row:
                continue
            num_env = failure.candidate.num_env
            axis.plot([num_env], [lane], "X", markersize=7.5, color=INK, zorder=4)
            axis.annotate(
                failure.failed.reason, (num_env, lane), (7, 0), textcoords="offset points",
                va="center", fontsize=8, color=INK, zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    lanes = len(findings.rows)
    axis.set_yticks(range(lanes), [pens[row].label for row in findings.rows], fontsize=8.5)
    axis.set_ylim(lanes - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    titled(axis, "What was tried  (cross: failed, grey: left out)")
    ladder(axis, findings)
    axis.spines["left"].set_visible(False)
