"""Measures figure 8b: tasks a second against the number of devices, with a core each.

The paper has 1.8 million empty tasks a second on 100 nodes, in proportion to their number. The
driver needs a core too: on n cores the last device cannot add a whole one.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from rows.base import Side, noop, seconds, warm_up

from .base import COLORS, Curves, Figure, Headline, Series, plot

_LABELS = {
    ("ours", "noop"): "ours, tasks that do nothing",
    ("ours", "1 ms"): "ours, 1 ms tasks",
    ("ray", "noop"): "Ray, tasks that do nothing",
    ("ray", "1 ms"): "Ray, 1 ms tasks",
}


def compute_1_ms() -> None:
    """Takes a millisecond of processor time."""
    end = time.thread_time() + 1e-3
    while time.thread_time() < end:
        pass


def device_counts() -> list[int]:
    """Returns 1, 2, 4, ... up to the number of cores."""
    cores = len(os.sched_getaffinity(0))
    return [1 << i for i in range(cores.bit_length()) if 1 << i <= cores]


def _measure(name: str, quick: bool) -> Series:
    side = Side(name, quick)
    series: Series = {_LABELS[name, kind]: [] for kind in ("noop", "1 ms")}
    for devices in device_counts():
        if name == "ours":
            side.api.init(num_cpus=devices, devices=devices)
        else:
            side.init(num_cpus=devices)
        try:
            for kind, function, number in (("noop", noop, 10_000), ("1 ms", compute_1_ms, 3_000)):
                task, number = side.task(function), side.count(number)
                warm_up(side, task)
                spent_s = seconds(partial(_all, side, task, number))
                series[_LABELS[name, kind]].append((devices, number / spent_s))
        finally:
            side.api.shutdown()
    return series


def _all(side: Side, task: object, number: int) -> None:
    side.get([task.remote() for _ in range(number)])


def _draw(curves: Curves, picture: Any) -> None:
    axes = picture.subplots()
    for (side, kind), label in _LABELS.items():
        if label in curves:
            plot(axes, curves[label], label, COLORS[side], "o-" if kind == "noop" else "s--")
    counts = device_counts()
    axes.plot(counts, [1e3 * n for n in counts], ":", color="grey", label="1,000 a core and second")
    axes.set(yscale="log", xlabel="devices (one core each)", ylabel="tasks a second")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_title(f"Submitted by one driver on {counts[-1]} cores")
    axes.legend(fontsize="small")


FIGURE = Figure(
    "8b", "throughput", (6, 4), {name: partial(_measure, name) for name in ("ours", "ray")}, _draw,
    Headline(
        "noop_tasks_all_devices", "1/s", _LABELS["ours", "noop"], _LABELS["ray", "noop"],
        lambda curve: curve.y[-1],
    ),
)  # fmt: skip
