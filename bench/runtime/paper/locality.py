"""Measures figure 8a: a task's latency against the size of its input, and where the input lies.

The paper: with locality-aware placement latency does not depend on the size, without it grows by
one to two orders of magnitude. Here the devices of one host share memory; a third curve, in which
every call is given the bytes themselves, shows what moving them costs.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from rows.base import Side, api, noop, seconds, warm_up
from rows.objects import last_item, ones

from .base import COLORS, Curves, Figure, Headline, Series, plot, size_axis

_SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
SAME, OTHER, MOVED = "on the task's device", "on the other device", "given with the call"
RAY = "Ray, in its object store"


def _latency_s(side: Side, nbytes: int, task: Any, argument: Any) -> float:
    def call() -> None:
        side.get(task.remote(argument))

    call()
    call()
    repeats = max(5, side.count(min(300, 3_000_000_000 // nbytes)))
    return statistics.median(seconds(call) for _ in range(repeats))


def _ours(quick: bool) -> Series:
    side = Side("ours", quick)
    runtime = api("ours")
    runtime.init(num_cpus=2, devices=2)
    series: Series = {SAME: [], OTHER: [], MOVED: []}
    try:
        for device in (0, 1):
            warm_up(side, side.task(noop, device=device))
        for nbytes in _SIZES:
            ref = side.task(ones, device=0).remote(nbytes)
            side.get(side.task(last_item).remote(ref))
            for label, device in ((SAME, 0), (OTHER, 1)):
                task = side.task(last_item, device=device)
                series[label].append((nbytes, _latency_s(side, nbytes, task, ref)))
            task, array = side.task(last_item, device=0), np.ones(nbytes, np.uint8)
            series[MOVED].append((nbytes, _latency_s(side, nbytes, task, array)))
            del ref
    finally:
        runtime.shutdown()
    return series


def _ray(quick: bool) -> Series:
    side, points = Side("ray", quick), []
    with side.running():
        warm_up(side, side.task(noop))
        task = side.task(last_item)
        for nbytes in _SIZES:
            ref = side.task(ones).remote(nbytes)
            points.append((float(nbytes), _latency_s(side, nbytes, task, ref)))
            del ref
    return {RAY: points}


def _draw(curves: Curves, picture: Any) -> None:
    axes = picture.subplots()
    styles = {
        SAME: ("ours", "o-"),
        OTHER: ("other", "s--"),
        MOVED: ("peer", "^-"),
        RAY: ("ray", "o-"),
    }
    for label, curve in curves.items():
        color, style = styles[label]
        plot(axes, curve, label, COLORS[color], style)
    size_axis(axes, _SIZES)
    axes.set(yscale="log", xlabel="size of the input", ylabel="task latency (s)")
    axes.set_title("One task at a time, its input ...")
    axes.legend(fontsize="small")


FIGURE = Figure(
    "8a", "locality", (6, 4), {"ours": _ours, "ray": _ray}, _draw,
    Headline(
        "latency_100MB_by_reference", "s", SAME, RAY, lambda curve: curve.at(_SIZES[-1]),
        smaller_is_better=True,
    ),
)  # fmt: skip
