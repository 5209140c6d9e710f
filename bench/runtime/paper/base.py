"""Defines a figure: parts that measure, each in a fresh process, and a picture of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]
Series = dict[str, list[Point]]  # the measurements of one part in one round, by label

COLORS = {"ours": "#1f77b4", "ray": "#ff7f0e", "peer": "#2ca02c", "other": "#9467bd"}


@dataclass(frozen=True)
class Curve:
    """Holds the median over rounds at each x, with the lowest and highest."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]

    def at(self, x: float) -> float:
        return self.y[self.x.index(x)]


Curves = dict[str, Curve]


@dataclass(frozen=True)
class Headline:
    """Describes the one number of a figure: a number of our curve, and of the peer's."""

    what: str
    unit: str
    ours: str  # the label of a curve
    peer: str
    of: Callable[[Curve], float]
    smaller_is_better: bool = False

    def fields(self, curves: Curves) -> dict[str, Any]:
        """Returns the fields of a row; `ratio` is ours over the peer's, larger is better."""
        if not {self.ours, self.peer} <= curves.keys():  # a part has failed
            return {"value": None, "unit": "", "peer": None, "ratio": None, "what": "failed"}
        ours, peer = (self.of(curves[label]) for label in (self.ours, self.peer))
        pair = (peer, ours) if self.smaller_is_better else (ours, peer)
        ratio = pair[0] / pair[1] if pair[1] else None
        return {"value": ours, "unit": self.unit, "peer": peer, "ratio": ratio, "what": self.what}


@dataclass(frozen=True)
class Figure:
    """Describes a figure: how it is measured, drawn and summarised.

    Each of `parts` is called in a process of its own; its argument tells whether it is a smoke
    test. `draw` gets the curves and matplotlib's figure.
    """

    number: str
    name: str
    size: tuple[float, float]
    parts: Mapping[str, Callable[[bool], Series]]
    draw: Callable[[Curves, Any], None]
    headline: Headline


def merge(rounds: Sequence[Series]) -> Curves:
    """Merges rounds of the same measurement into curves; an x may be missing in some."""
    curves: Curves = {}
    for label in dict.fromkeys(label for series in rounds for label in series):
        values_at: dict[float, list[float]] = {}
        for series in rounds:
            for x, y in series.get(label, ()):
                values_at.setdefault(x, []).append(y)
        columns = [values_at[x] for x in sorted(values_at)]
        curves[label] = Curve(
            sorted(values_at),
            [statistics.median(column) for column in columns],
            [min(column) for column in columns],
            [max(column) for column in columns],
        )
    return curves


def plot(axes: Any, curve: Curve, label: str, color: str, style: str = "o-") -> None:
    """Draws a line with its band."""
    axes.plot(curve.x, curve.y, style, color=color, label=label, markersize=4, linewidth=1.6)
    axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)


def size_axis(axes: Any, sizes: Sequence[float]) -> None:
    """Makes a logarithmic axis of bytes, with a name at every size or every second one."""
    axes.set_xscale("log")
    step = 1 if len(sizes) < 7 else 2
    axes.set_xticks(list(sizes)[::step], [size_text(size) for size in list(sizes)[::step]])
    axes.minorticks_off()


def size_text(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:g} B"
