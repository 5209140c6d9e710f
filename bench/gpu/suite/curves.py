"""Draws throughput against num_env and what the tuner measured; holds what pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gmi_drl.selector.plots.drawing import INK, titled

from .rows import Row
from .stage import BASELINE

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7f7f7f")
MARKERS: Final = "osDv^P<>"


def draw_num_env(figure: Any, rows: Sequence[Row]) -> None:
    """A column a network: throughput above, memory below, against environments in all."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure.set_size_inches(1.0 + 4.0 * len(networks), 5.6)
    axes = figure.subplots(2, len(networks), squeeze=False, sharex="col",
                           height_ratios=[3, 2])  # fmt: skip
    memory = "device_bytes" if all("device_bytes" in row for row in rows) else "host_bytes"
    for (top, low), network in zip(axes.T, networks, strict=True):
        for place, side in enumerate(dict.fromkeys(row["side"] for row in rows)):
            its = sorted(
                (row for row in rows if (row["network"], row["side"]) == (network, side)),
                key=lambda row: row["num_env"],
            )
            totals = [row["num_env"] * row["gmis"] for row in its]
            style = {"color": COLOURS[place], "marker": MARKERS[place], "markersize": 5}
            values = [row["value"] for row in its]
            errors = errors_of(its, "value", "spread")
            label = "one process" if side == BASELINE else f"{its[0]['gmis']} GMIs"
            top.errorbar(totals, values, yerr=errors, capsize=2.5, label=label, **style)
            low.plot(totals, [row[memory] / 2**30 for row in its], **style)
            if all("gmi_mem_bytes" in row for row in its) and its[0]["gmis"] > 1:
                each = [row["gmi_mem_bytes"] / 2**30 for row in its]
                low.plot(totals, each, label="each GMI", linestyle="--", **style)
                limits = {row["gmi_mem_bytes"] / row["gmi_mem_share"] for row in its
                          if row.get("gmi_mem_share")}  # fmt: skip
                if limits:
                    low.axhline(min(limits) / 2**30, color=style["color"], linestyle=":")
        _powers(low, sorted({row["num_env"] * row["gmis"] for row in rows}))
        low.set_xlabel("environments in all")
        titled(top, f"network {network}")
        titled(low, "")
        top.set_ylim(0, None)
        most = max(max(row[memory], row.get("gmi_mem_bytes", 0)) for row in rows)
        low.set_ylim(0, 1.15 * most / 2**30)
        top.yaxis.set_major_formatter(_engineering())
    axes[0, 0].set_ylabel("training steps/s")
    axes[1, 0].set_ylabel("GPU memory, GiB" if memory == "device_bytes" else "host memory, GiB")
    axes[0, 0].legend(frameon=False, fontsize=8.5)
    if axes[1, 0].get_legend_handles_labels()[0]:
        axes[1, 0].legend(frameon=False, fontsize=8.5)


def draw_tuner(figure: Any, rows: Sequence[Row]) -> None:
    """A panel a question: what the tuner measured, a line for each number of GMIs, its choice."""
    figure.set_size_inches(1.0 + 3.6 * len(rows), 3.6)
    axes = figure.subplots(1, len(rows), squeeze=False)[0]
    for axis, row in zip(axes, rows, strict=True):
        for place, gmis in enumerate(sorted({one["gmis"] for one in row["candidates"]})):
            its = [(one["num_env"] * gmis, one["steps_per_s"]) for one in row["candidates"]
                   if one["gmis"] == gmis]  # fmt: skip
            axis.plot(
                *zip(*sorted(its), strict=True),
                color=COLOURS[place % len(COLOURS)],
                marker=MARKERS[place % len(MARKERS)],
                markersize=5,
                label=f"{gmis} GMI{'' if gmis == 1 else 's'}",
            )
        axis.plot([row["num_env"] * row["gmis"]], [row["value"]], "o", markersize=13,
                  markerfacecolor="none", color=INK, label="choice")  # fmt: skip
        totals = {one["num_env"] * one["gmis"] for one in row["candidates"]}
        _powers(axis, sorted(total for total in totals if total.bit_count() == 1))
        axis.tick_params(axis="x", labelrotation=60)
        axis.set_ylim(0, None)
        axis.yaxis.set_major_formatter(_engineering())
        axis.set_xlabel("environments in all")
        titled(axis, f"{row['network']}, up to {row['cap']:,}")
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("training steps/s")


def errors_of(rows: Sequence[Row], key: str, spread: str) -> list[list[float]]:
    """How far down and up the repeats go; nothing is drawn for one repeat."""
    pairs = [
        (row[key] - row[spread][0], row[spread][1] - row[key]) if row["repeats"] > 1
        else (float("nan"), float("nan"))
        for row in rows
    ]  # fmt: skip
    return [list(side) for side in zip(*pairs, strict=True)]


def _powers(axis: Any, totals: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(totals, labels=[f"{total:,}" for total in totals])
    axis.minorticks_off()


def _engineering() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep=" ")
