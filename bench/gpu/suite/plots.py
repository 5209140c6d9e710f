"""Draws a suite's pictures: the paper's figures 7 to 10 and its Table 7, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.selector.plots.tune_picture import INK, PALE, titled

from .rows import Row
from .stage import BASELINE
from .store import DRY_NOTE, Store

_WARNS: Final = "#B04A00"
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7f7f7f")
_MARKERS: Final = "osDv^P<>"


def draw(store: Store, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draws the pictures for which there are rows, in `folder`."""
    import matplotlib
    from matplotlib.figure import Figure

    head = store.head
    lines: list[tuple[str, dict[str, Any]]]
    lines = [(f"{head['machine']}; commit {head['commit']}", {"fontsize": 7, "color": PALE})]
    if "note" in head:
        lines.insert(0, (DRY_NOTE, {"fontsize": 8, "color": _WARNS, "fontweight": "bold"}))
    drawn: list[tuple[str, list[Any], Callable[[Any, Any], None]]] = [
        ("throughput", _of(rows, "training", "serving"), _throughput),
        ("num_env", _of(rows, "num_env"), _draw_num_env),
        ("tuner", [row for row in rows if "candidates" in row], _draw_tuner),
        ("reduction", _of(rows, "reduction"), _reduction),
        ("learning", _curves(store), _learning),
    ]
    paths = []
    for name, data, paint in drawn:
        if not data:
            continue
        with matplotlib.rc_context({"font.size": 9, "text.color": INK}):
            figure = Figure(figsize=(6.4, 3.6), layout="constrained")
            paint(figure, data)
            for line, (text, style) in enumerate(lines):
                inches = 0.05 + 0.17 * line
                figure.text(0.01, -inches / figure.get_figheight(), text, va="top", **style)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
        paths.append(path)
    return paths


def _of(rows: Sequence[Row], *experiments: str) -> list[Row]:
    selected = [r for r in rows if r["experiment"] in experiments and r["block"] != "ladder"]
    return [row for row in selected if "eager" not in row["side"]]


def _curves(store: Store) -> list[Any]:
    return [r for r in store.records.values() if r["kind"] == "curve" and "failed" not in r]


def _learning(figure: Any, records: Sequence[Any]) -> None:
    """Draws return against seconds of training, a line for each repeat, a colour for each side."""
    axis = figure.subplots()
    for place, side in enumerate(dict.fromkeys(record["side"] for record in records)):
        for number, record in enumerate(r for r in records if r["side"] == side):
            gmis, num_env = record["what"]["gmis"], record["what"]["num_env"]
            system = "one process" if side == BASELINE else f"{gmis} GMIs"
            seconds, _, returns = zip(*record["points"], strict=True)
            axis.plot(
                seconds,
                returns,
                color=_COLOURS[place],
                linewidth=1.4,
                label=None if number else f"{system}, num_env {num_env:,}",
            )
    axis.set_xlabel("seconds of training")
    axis.set_ylabel("mean return of the last episodes")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8.5)
    titled(axis, "return against wall-clock")


def _throughput(figure: Any, rows: Sequence[Row]) -> None:
    """Draws ratios over the exclusive process by k, a bar for each backend."""
    experiments = [e for e in ("training", "serving") if any(r["experiment"] == e for r in rows)]
    sides = list(dict.fromkeys(
        (row["side"], _environments(row)) for row in rows if row["side"] != BASELINE
    ))  # fmt: skip
    crowded = len(sides) > 2
    figure.set_size_inches(1.0 + (4.0 + 0.4 * max(0, len(sides) - 2)) * len(experiments), 4.2)
    axes = figure.subplots(1, len(experiments), squeeze=False, sharey=True)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        shown = [r for r in rows if r["experiment"] == experiment and r["side"] != BASELINE]
        counts = sorted({row["gmis"] for row in shown})
        width = 0.8 / max(1, len(sides))
        for place, (side, shared) in enumerate(sides):
            bars = [r for r in shown if (r["side"], _environments(r)) == (side, shared)]
            x = [counts.index(r["gmis"]) + (place - (len(sides) - 1) / 2) * width for r in bars]
            errors = _errors_of(bars, "ratio", "ratio_spread")
            axis.bar(
                x,
                [r["ratio"] for r in bars],
                0.9 * width,
                yerr=errors,
                capsize=2,
                color=_COLOURS[place % len(_COLOURS)],
                label=f"{side}, {shared}",
                error_kw={"ecolor": INK, "linewidth": 0.8},
            )
            for center, row in zip(x, bars, strict=True):
                axis.annotate(
                    f"{row['ratio']:.2f}",
                    (center, row["ratio_spread"][1]),
                    (0, 3),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7 if crowded else 8,
                    color=INK,
                    rotation=90 if crowded else 0,
                )
        axis.axhline(1.0, color=PALE, linewidth=0.9, linestyle="--")
        axis.set_xticks(range(len(counts)), labels=[str(k) for k in counts])
        axis.set_xlim(-0.7, max(0, len(counts) - 1) + 0.7)
        axis.margins(y=0.15)
        axis.set_xlabel("GMIs of a device")
        titled(axis, experiment)
    axes[0].set_ylabel("steps/s over one exclusive process")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2,
                  frameon=False, fontsize=8.5)  # fmt: skip


def _environments(row: Row) -> str:
    """Returns "as many environments in each" or "4096 in all", from the block's name."""
    return str(row["block"].partition(", ")[2] or "as many environments in all")


def _reduction(figure: Any, rows: Sequence[Row]) -> None:
    """Draws microseconds against bytes: a panel for each shape, a line for strategy and backend."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    blocks = sorted({row["block"] for row in rows}, key=lambda b: [int(n) for n in b.split(" x ")])
    figure.set_size_inches(1.8 + 3.4 * len(blocks), 3.6)
    axes = figure.subplots(1, len(blocks), squeeze=False, sharey=True)[0]
    lines = list(dict.fromkeys((row["side"], row["strategy"]) for row in rows))
    for axis, block in zip(axes, blocks, strict=True):
        for place, line in enumerate(lines):
            points = [r for r in rows if (r["block"], r["side"], r["strategy"]) == (block, *line)]
            points = sorted(points, key=lambda row: row["nbytes"])
            axis.plot(
                [row["nbytes"] / 1e6 for row in points],
                [row["value"] for row in points],
                color=_COLOURS[place % len(_COLOURS)],
                marker=_MARKERS[place % len(_MARKERS)],
                markersize=5,
                label=" ".join(line[::-1]),
            )
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_xscale("log")
        sizes = sorted({row["nbytes"] / 1e6 for row in rows})
        axis.set_xticks(sizes, labels=[f"{size:g}" for size in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.set_xlabel("gradient, MB")
        devices, gmis = block.split(" x ")
        devices = f"{devices} device{'s' if devices != '1' else ''}"
        titled(axis, f"{devices}, {gmis} GMI{'s' if gmis != '1' else ''} on each")
    axes[0].set_ylabel("time of a reduction, us")
    handles = {label: handle for axis in axes for handle, label in
               zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False,
                  fontsize=8.5)  # fmt: skip


def _draw_num_env(figure: Any, rows: Sequence[Row]) -> None:
    """Draws throughput and memory against environments in all, a column for each network."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure.set_size_inches(1.0 + 4.0 * len(networks), 5.6)
    axes = figure.subplots(2, len(networks), squeeze=False, sharex="col",
                           height_ratios=[3, 2])  # fmt: skip
    memory = "device_bytes" if all("device_bytes" in row for row in rows) else "host_bytes"
    for (top, low), network in zip(axes.T, networks, strict=True):
        for place, side in enumerate(dict.fromkeys(row["side"] for row in rows)):
            side_rows = sorted(
                (row for row in rows if (row["network"], row["side"]) == (network, side)),
                key=lambda row: row["num_env"],
            )
            totals = [row["num_env"] * row["gmis"] for row in side_rows]
            style = {"color": _COLOURS[place], "marker": _MARKERS[place], "markersize": 5}
            values = [row["value"] for row in side_rows]
            errors = _errors_of(side_rows, "value", "spread")
            label = "one process" if side == BASELINE else f"{side_rows[0]['gmis']} GMIs"
            top.errorbar(totals, values, yerr=errors, capsize=2.5, label=label, **style)
            low.plot(totals, [row[memory] / 2**30 for row in side_rows], **style)
            if all("gmi_mem_bytes" in row for row in side_rows) and side_rows[0]["gmis"] > 1:
                memory_gib = [row["gmi_mem_bytes"] / 2**30 for row in side_rows]
                low.plot(totals, memory_gib, label="each GMI", linestyle="--", **style)
                limits = {row["gmi_mem_bytes"] / row["gmi_mem_share"] for row in side_rows
                          if row.get("gmi_mem_share")}  # fmt: skip
                if limits:
                    low.axhline(min(limits) / 2**30, color=style["color"], linestyle=":")
        _powers(low, sorted({row["num_env"] * row["gmis"] for row in rows}))
        low.set_xlabel("environments in all")
        titled(top, f"network {network}")
        titled(low, "")
        top.set_ylim(0, None)
        peak_bytes = max(max(row[memory], row.get("gmi_mem_bytes", 0)) for row in rows)
        low.set_ylim(0, 1.15 * peak_bytes / 2**30)
        top.yaxis.set_major_formatter(_engineering())
    axes[0, 0].set_ylabel("training steps/s")
    axes[1, 0].set_ylabel("GPU memory, GiB" if memory == "device_bytes" else "host memory, GiB")
    axes[0, 0].legend(frameon=False, fontsize=8.5)
    if axes[1, 0].get_legend_handles_labels()[0]:
        axes[1, 0].legend(frameon=False, fontsize=8.5)


def _draw_tuner(figure: Any, rows: Sequence[Row]) -> None:
    """Draws the tuner's measurements and choice: a panel for each question, a line for each k."""
    figure.set_size_inches(1.0 + 3.6 * len(rows), 3.6)
    axes = figure.subplots(1, len(rows), squeeze=False)[0]
    for axis, row in zip(axes, rows, strict=True):
        for place, gmis in enumerate(sorted({c["gmis"] for c in row["candidates"]})):
            points = [(c["num_env"] * gmis, c["steps_per_s"]) for c in row["candidates"]
                      if c["gmis"] == gmis]  # fmt: skip
            axis.plot(
                *zip(*sorted(points), strict=True),
                color=_COLOURS[place % len(_COLOURS)],
                marker=_MARKERS[place % len(_MARKERS)],
                markersize=5,
                label=f"{gmis} GMI{'' if gmis == 1 else 's'}",
            )
        axis.plot([row["num_env"] * row["gmis"]], [row["value"]], "o", markersize=13,
                  markerfacecolor="none", color=INK, label="choice")  # fmt: skip
        totals = {c["num_env"] * c["gmis"] for c in row["candidates"]}
        _powers(axis, sorted(total for total in totals if total.bit_count() == 1))
        axis.tick_params(axis="x", labelrotation=60)
        axis.set_ylim(0, None)
        axis.yaxis.set_major_formatter(_engineering())
        axis.set_xlabel("environments in all")
        titled(axis, f"{row['network']}, up to {row['cap']:,}")
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("training steps/s")


def _errors_of(rows: Sequence[Row], key: str, spread: str) -> list[list[float]]:
    """Returns how far the repeats reach down and up; NaN for one repeat, so nothing is drawn."""
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
