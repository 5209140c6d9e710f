"""Measures figure 11a: chains of tasks continue while all workers are killed, three times.

The paper runs chains of 100 ms tasks while nodes are taken away; here the tasks take 20 ms and
every worker process that has answered since the last loss gets SIGKILL at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rows.base import GET_S, Side, noop, warm_up

from .base import COLORS, Curves, Figure, Headline, Series, plot

_CHAINS = 4
_TASK_S = 0.02
_PHASE_S = 3.0  # between losses, before the first and after the last
_LOSSES = 3
_BIN_S = 0.25
_LABELS = {"ours": "ours", "ray": "Ray"}
_AGAIN = ", run again"


def link(before: tuple[int, int], log: str) -> tuple[int, int]:
    """Logs that this task of a chain began, and returns its number and process."""
    with open(log, "ab", buffering=0) as stream:
        stream.write(b".")
    time.sleep(_TASK_S)
    return before[0] + 1, os.getpid()


def _measure(name: str, quick: bool) -> Series:
    side = Side(name, quick)
    with side.running(), tempfile.TemporaryDirectory() as folder:
        return _chains(side, name, Path(folder) / "begun", _PHASE_S / (4 if quick else 1))


def _chains(side: Side, name: str, log: Path, phase_s: float) -> Series:
    task = side.task(link, max_retries=10)
    warm_up(side, side.task(noop))
    chains = {task.remote((0, 0), str(log)): 0 for _ in range(_CHAINS)}
    pids: set[int] = set()
    finished_s: list[float] = []
    losses, begin = 0, time.perf_counter()
    while (now := time.perf_counter() - begin) < (_LOSSES + 1) * phase_s:
        if now > (losses + 1) * phase_s and losses < _LOSSES:
            losses += 1
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pids.clear()
        ready, _ = side.api.wait(list(chains), num_returns=1, timeout=GET_S)
        for ref in ready:
            length = chains.pop(ref)
            number, pid = side.get(ref)
            if number != length + 1:
                raise RuntimeError(f"link {length + 1} of a chain says that it is {number}.")
            pids.add(pid)
            finished_s.append(time.perf_counter() - begin)
            chains[task.remote(ref, str(log))] = number
    side.get(list(chains))
    rerun = log.stat().st_size - len(finished_s) - len(chains)
    return {
        _LABELS[name]: _rate(finished_s, (_LOSSES + 1) * phase_s),
        _LABELS[name] + _AGAIN: [(float(_LOSSES), float(rerun))],
    }


def _rate(finished_s: list[float], end_s: float) -> list[tuple[float, float]]:
    bins = [0] * int(end_s / _BIN_S)
    for time_s in finished_s:
        if time_s < end_s:
            bins[min(int(time_s / _BIN_S), len(bins) - 1)] += 1
    return [((i + 0.5) * _BIN_S, count / _BIN_S) for i, count in enumerate(bins)]


def _draw(curves: Curves, picture: Any) -> None:
    axes = picture.subplots()
    for name, label in _LABELS.items():
        if label in curves:
            rerun = curves[label + _AGAIN].y[0]
            plot(axes, curves[label], f"{label} ({rerun:g} tasks run again)", COLORS[name], "-")
            end_s = curves[label].x[-1] + _BIN_S / 2
    for loss in range(1, _LOSSES + 1):
        loss_s = loss * end_s / (_LOSSES + 1)
        axes.axvline(loss_s, color="red", linewidth=1, linestyle=":")
        axes.annotate("all workers killed", (loss_s, 0), (3, 3), fontsize=7, color="red",
                      textcoords="offset points")  # fmt: skip
    axes.set(xlabel="time (s)", ylabel="tasks a second", ylim=(0, None))
    axes.set_title(f"{_CHAINS} chains of {_TASK_S * 1e3:g} ms tasks on 2 CPUs")
    axes.legend(fontsize="small", loc="center right")


FIGURE = Figure(
    "11a", "recovery", (7, 4), {name: partial(_measure, name) for name in _LABELS}, _draw,
    Headline(
        "chain_tasks_through_three_losses", "1/s", *_LABELS.values(),
        lambda curve: sum(curve.y) / len(curve.y),
    ),
)  # fmt: skip
