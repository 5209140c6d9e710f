"""Draws a search: how all trials learned, and what their values had to do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.placement import Config, RangeConfig
from gmi_drl.selector.record.search_folder import key_of, start_of
from gmi_drl.selector.search.ranges import text_of
from gmi_drl.selector.search.search_view import short
from gmi_drl.selector.search.trial_run import RunKey

_MOST: Final = 8  # ranges that have a panel, the first
_GREY, _BEST, _COPY = "#bbbbbb", "#d62728", "#444444"
_COLOURS: Final = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#bcbd22")
Line = Mapping[str, Any]


def draw_search(path: Path, config: Config, lines: Sequence[Line], best: RunKey) -> Path:
    """Writes the picture of a search's record and returns its path; `best` is drawn above all."""
    from matplotlib.figure import Figure  # half a second, needed only here

    assert config.search is not None
    ranges = dict(list(config.search.ranges.items())[:_MOST])
    ended = {key_of(line): line for line in lines if line["kind"] == "ended"}
    ancestry = _ancestry(ended, best)
    height = max(4.5, 2.2 * min(4, len(ranges)) + 1.6 * max(0, len(ranges) - 4))
    figure = Figure(figsize=(12, height), layout="constrained")
    grid = figure.add_gridspec(len(ranges), 2, width_ratios=(1.2, 1.0))
    curves = figure.add_subplot(grid[:, 0])
    population = config.search.algorithm == "pbt"
    _draw_curves(curves, ended, ancestry, population)
    # Within, the curves of many trials leave no free place.
    figure.legend(loc="outside lower left", ncols=6, fontsize="small")
    curves.set_title(f"{config.run.name}: {config.env.id}, {len({k[0] for k in ended})} trials")
    for row, (key, span) in enumerate(ranges.items()):
        axis = figure.add_subplot(grid[row, 1])
        if population:
            _draw_lineage(axis, key, span, ended, ancestry)
            if not row:
                axis.set_title("values over time; dotted: from another member")
        else:
            _draw_values(axis, key, span, ended, best)
            if not row:
                axis.set_title("what values led to; larger dots trained longer")
        _scale(axis, span, "y" if population else "x")
    figure.savefig(path, dpi=130)
    return path


def _ancestry(ended: Mapping[RunKey, Line], best: RunKey) -> list[RunKey]:
    """Returns the runs that the best one came from, oldest first, itself last."""
    ancestry: list[RunKey] = []
    key: RunKey | None = best
    while key is not None and key in ended:
        ancestry.append(key)
        key = start_of(ended[key])
    return ancestry[::-1]


def _joined(line: Line, ended: Mapping[RunKey, Line]) -> tuple[list[int], list[float]]:
    """Returns the curve of a run, from the last point of what it went on from."""
    points = [tuple(point) for point in line["points"]]
    start = start_of(line)
    if start is not None and start in ended and ended[start]["points"]:
        points.insert(0, tuple(ended[start]["points"][-1]))
    return [p[0] for p in points], [p[1] for p in points]


def _draw_curves(
    axis: Any, ended: Mapping[RunKey, Line], ancestry: Sequence[RunKey], population: bool
) -> None:
    from matplotlib.ticker import EngFormatter

    for key, line in ended.items():
        colour = _GREY if population else _COLOURS[line["bracket"] % len(_COLOURS)]
        first = not population and key == min(
            k for k, other in ended.items() if other["bracket"] == line["bracket"]
        )
        label = f"bracket {line['bracket'] + 1}" if first else None
        axis.plot(*_joined(line, ended), color=colour, alpha=0.7, linewidth=1.0, label=label)
    for key in ancestry:
        label = f"best: trial {ancestry[-1][0]}" if key == ancestry[-1] else None
        axis.plot(*_joined(ended[key], ended), color=_BEST, linewidth=2.2, label=label)
    axis.set(xlabel="environment steps", ylabel="return (mean of the last 100 episodes)")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.grid(alpha=0.3)


def _draw_values(
    axis: Any, key: str, span: RangeConfig, ended: Mapping[RunKey, Line], best: RunKey
) -> None:
    """Draws the return each value led to; larger dots trained longer."""
    longest = max(line["steps"] for line in ended.values())
    for run, line in sorted(ended.items(), key=lambda item: item[1]["steps"]):
        if line["return_mean"] is None:
            continue
        colour, alpha, zorder = _COLOURS[line["bracket"] % len(_COLOURS)], 0.6, 2
        if run == best:
            colour, alpha, zorder = _BEST, 1.0, 3
        place, size = _axis_value(line["values"][key], span), 10 + 60 * line["steps"] / longest
        axis.scatter(
            [place], [line["return_mean"]], s=size, color=colour, alpha=alpha, zorder=zorder
        )
    axis.set(xlabel=short(key), ylabel="return")
    axis.margins(y=0.12)  # for dots at the top and the bottom
    axis.grid(alpha=0.3)


def _draw_lineage(
    axis: Any, key: str, span: RangeConfig, ended: Mapping[RunKey, Line], ancestry: Sequence[RunKey]
) -> None:
    """Draws a value of each member over time; dotted: it went on from another."""
    from matplotlib.ticker import EngFormatter

    for run, line in ended.items():
        start = start_of(line)
        parent = ended[start] if start in ended and start is not None else None
        begin = 0 if parent is None else parent["reached"]
        value = _axis_value(line["values"][key], span)
        colour, width = (_BEST, 2.2) if run in ancestry else (_GREY, 1.0)
        zorder = 3 if run in ancestry else 2
        pen = {"linewidth": width, "zorder": zorder}
        axis.plot([begin, line["reached"]], [value] * 2, color=colour, **pen)
        if parent is not None:
            old = _axis_value(parent["values"][key], span)
            copied = start is not None and start[0] != run[0]
            if copied or old != value:
                colour, dots = (_BEST if run in ancestry else _COPY), (":" if copied else "-")
                axis.plot([begin, begin], [old, value], color=colour, linestyle=dots, **pen)
    axis.set(xlabel="environment steps", ylabel=short(key))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.grid(alpha=0.3)


def _axis_value(value: Any, span: RangeConfig) -> float:
    """Returns a value as a number on an axis: of a choice its place in the list."""
    if span.choice is None:
        return float(value)
    return float(span.choice.index(value))


def _scale(axis: Any, span: RangeConfig, which: str) -> None:
    """Draws the axis of a range: logarithmic, or with the values of a choice."""
    if span.log_uniform is not None:
        getattr(axis, f"set_{which}scale")("log")
    elif span.choice is not None:
        places = range(len(span.choice))
        getattr(axis, f"set_{which}ticks")(places, [text_of(value) for value in span.choice])
        getattr(axis, f"set_{which}lim")(-0.5, len(span.choice) - 0.5)
