"""Measures figure 9: how quickly objects of 1 KB to 256 MB are stored.

The paper has 15 GB/s and 18,000 objects a second on 16 cores; here one process writes. The limit
is a copy into memory that has been touched before, by one thread.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from rows.base import Side

from .base import COLORS, Curves, Figure, Headline, Series, plot, size_axis

_SIZES = tuple(1_000 * 4**k for k in range(10))  # 1 KB ... 262 MB
_LABELS = {"ours": "ours", "ray": "Ray", "memcpy": "warm memcpy"}
_MEASURE_S = 1.0


def _puts_per_s(put: Any, nbytes: int, quick: bool) -> float:
    """Returns objects a second; each is dropped when the next is stored."""
    value = np.ones(nbytes, np.uint8)
    for _ in range(3):
        ref = put(value)
    limit_s, number = _MEASURE_S / (20 if quick else 1), 0
    begin = time.perf_counter()
    while (spent_s := time.perf_counter() - begin) < limit_s or number < 3:
        ref = put(value)  # noqa: F841 - which drops the one before
        number += 1
    return number / spent_s


def _store(name: str, quick: bool) -> Series:
    side = Side(name, quick)
    with side.running():
        return {_LABELS[name]: [(size, _puts_per_s(side.api.put, size, quick)) for size in _SIZES]}


def _memcpy(quick: bool) -> Series:
    points = []
    for size in _SIZES:
        copy = partial(np.copyto, np.ones(size, np.uint8))
        points.append((float(size), _puts_per_s(copy, size, quick)))
    return {_LABELS["memcpy"]: points}


def _draw(curves: Curves, picture: Any) -> None:
    left, right = picture.subplots(1, 2)
    colors = dict(zip(_LABELS.values(), (COLORS["ours"], COLORS["ray"], "grey"), strict=True))
    for label, curve in curves.items():
        scaled = type(curve)(
            curve.x,
            *(
                [y * x / 1e9 for x, y in zip(curve.x, values, strict=True)]
                for values in (curve.y, curve.low, curve.high)
            ),
        )
        plot(left, scaled, label, colors[label])
        plot(right, curve, label, colors[label])
    for axes, quantity in ((left, "GB a second"), (right, "objects a second")):
        size_axis(axes, _SIZES)
        axes.set(yscale="log", xlabel="size of an object", ylabel=quantity)
        axes.tick_params(axis="x", labelrotation=45)
        axes.legend(fontsize="small")
    picture.suptitle("Storing objects, one process")


FIGURE = Figure(
    "9", "store", (9, 4),
    {"ours": partial(_store, "ours"), "ray": partial(_store, "ray"), "memcpy": _memcpy}, _draw,
    Headline(
        "store_66MB", "GB/s", _LABELS["ours"], _LABELS["ray"],
        lambda curve: _SIZES[-2] / 1e9 * curve.at(_SIZES[-2]),
    ),
)  # fmt: skip
