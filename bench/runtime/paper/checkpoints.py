"""Measures figure 11b: methods of a killed actor that run again, with and without checkpoints.

The paper: 500 with a checkpoint, 10,000 without. Ray itself runs none again, because it begins
from `__init__`: there the state is lost.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from rows.base import Side, seconds

from .base import COLORS, Curve, Curves, Figure, Headline, Series, plot

_DONE = tuple(range(130, 1_041, 130))  # methods before the kill: never just after a checkpoint
_EVERY = {"no checkpoint": 0, "a checkpoint every 100": 100, "a checkpoint every 10": 10}
_TIME = ", s"


class Walker:
    """Has state that only its methods make, and logs every method that runs."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.steps = 0

    def step(self) -> int:
        with open(self.log, "ab", buffering=0) as stream:
            stream.write(b".")
        end = sum(range(20_000))  # about a millisecond
        self.steps += 1 if end else 0
        return self.steps

    def pid(self) -> int:
        return os.getpid()

    def save(self) -> Any:
        return self.steps

    def restore(self, state: Any) -> None:
        self.steps = state


def _one(side: Side, log: Path, every: int, done: int) -> tuple[int, float]:
    """Returns how many methods ran again, and the seconds from the kill to the next answer."""
    log.write_bytes(b"")
    options = {"checkpoint_every": every} if every else {}
    actor = side.actor(Walker, max_restarts=1, **options).remote(str(log))
    pid = side.get(actor.pid.remote())
    side.get([actor.step.remote() for _ in range(done)])

    def recover() -> None:
        os.kill(pid, signal.SIGKILL)
        if (steps := side.get(actor.step.remote())) != done + 1:
            raise RuntimeError(f"the actor counts {steps} steps; it should be {done + 1}.")

    spent_s = seconds(recover)
    side.api.kill(actor)
    return log.stat().st_size - done - 1, spent_s


def _measure(label: str, quick: bool) -> Series:
    side, series = Side("ours", quick), {label: [], label + _TIME: []}
    with side.running(), tempfile.TemporaryDirectory() as folder:
        for done in _DONE[:: 3 if quick else 1]:
            rerun, spent_s = _one(side, Path(folder) / "log", _EVERY[label], done)
            series[label].append((done, rerun))
            series[label + _TIME].append((done, spent_s))
    return series


def _draw(curves: Curves, picture: Any) -> None:
    left, right = picture.subplots(1, 2)
    for label, color in zip(_EVERY, (COLORS["ray"], COLORS["ours"], COLORS["peer"]), strict=True):
        if label in curves:
            plot(left, curves[label], label, color)
            spent: Curve = curves[label + _TIME]
            plot(right, spent, label, color)
    left.set(ylabel="methods run again")
    right.set(ylabel="from the kill to the next answer (s)")
    for axes in (left, right):
        axes.set(xlabel="methods done before the kill", ylim=(0, None))
        axes.legend(fontsize="small")
    picture.suptitle("An actor is killed and goes on where it was")


FIGURE = Figure(
    "11b", "checkpoints", (9, 4), {label: partial(_measure, label) for label in _EVERY}, _draw,
    Headline(
        "mean_methods_run_again_with_checkpoints", "methods", *list(_EVERY)[1::-1],
        lambda curve: statistics.mean(curve.y), smaller_is_better=True,
    ),
)  # fmt: skip
