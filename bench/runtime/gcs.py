#!/usr/bin/env python3
"""Measures the control store: its cost, its memory, and what a client sees of a dead replica.

Claims: a put costs its caller less than a microsecond, and a row, written and indexed, less than
10 us of processor time, however many there are already; memory stays flat under a million tasks
(the paper's figure 10b: with flushing, under 50 million); a client of a replicated store waits
less than 30 ms at the longest while a member dies and another joins (figure 10a).

Rows:
    put/dict                   the caller's cost of a put, against setting an item of a dict
    written/executemany        processor time of a row, in the file, against plain executemany, with
                               all the other rows there already
    growth/first               the same for the last tenth of all rows, against the first tenth
    memory/kept                private memory (USS) that the rows add, against keeping them all
    reconfiguration/steady     longest wait for an acknowledgement while members are killed and
                               join, against the longest while nothing happens

    bench/runtime/gcs.py --rows 1000000 --rounds 3 --seconds 6

It draws docs/runtime/gcs_flushing.png and docs/runtime/gcs_reconfiguration.png.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from matplotlib.figure import Figure
from report import emit_pairs, parser

from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import TaskRow

FIGURES = Path(__file__).parents[2] / "docs" / "runtime"
MB = 1e6
MOST_WAITING = 20_000  # backlog at which the driver makes submitters wait
MEMBERS = ("head", "middle", "tail")
SAMPLE_S = 0.01

_ids = random.Random(3)
_spec = _ids.randbytes(150)


def task(number: int) -> TaskRow:
    """Returns the row of an empty task as the driver makes it."""
    return TaskRow(
        _ids.randbytes(16), "task", "empty", b"p" * 16, b"", number, b"f" * 16, b"", 1, _spec,
        "finished", 0, 4_321, 1.7e9, 1.7e9 + 0.1, 1.7e9 + 0.2, 1, "",
    )  # fmt: skip


def put_all(store: Gcs, rows: Sequence[TaskRow]) -> float:
    """Puts rows, and waits while the backlog is long; returns the seconds of the puts alone."""
    put_s = 0.0
    for begin in range(0, len(rows), 1_000):
        part = rows[begin : begin + 1_000]
        begun_s = time.thread_time()
        for row in part:
            store.put(row)
        put_s += time.thread_time() - begun_s
        while store.backlog > MOST_WAITING:
            time.sleep(0.002)
    return put_s


def costs(count: int, folder: Path) -> dict[str, float]:
    """Returns microseconds of a put, and of a row in the file at the beginning and at the end."""
    costs_us: dict[str, float] = {}
    tenth = count // 10
    with contextlib.closing(Gcs(folder / "cost.sqlite")) as store:
        for _ in range(10):
            rows = [task(number) for number in range(tenth)]
            begun_s = time.process_time()
            put_s = put_all(store, rows)
            store.flush(120)
            written_s = time.process_time() - begun_s - put_s
            costs_us["put"] = put_s / tenth * 1e6
            costs_us.setdefault("first", written_s / tenth * 1e6)
            costs_us["last"] = written_s / tenth * 1e6

    rows_by_id: dict[bytes, TaskRow] = {}
    begun_s = time.thread_time()
    for row in rows:
        rows_by_id[row.id] = row
    costs_us["dict"] = (time.thread_time() - begun_s) / tenth * 1e6
    costs_us["executemany"] = plain(folder / "plain.sqlite", count) / tenth * 1e6
    return costs_us


def plain(path: Path, count: int) -> float:
    """Returns the processor seconds of the last tenth by executemany, in batches, with an index."""
    columns = ", ".join(TaskRow._fields)
    marks = ", ".join("?" * len(TaskRow._fields))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=NORMAL")
        file.execute(f"CREATE TABLE tasks ({columns})")
        file.execute("CREATE UNIQUE INDEX tasks_id ON tasks (id)")
        spent_s = 0.0
        for _ in range(10):
            rows = [task(number) for number in range(count // 10)]
            begun_s = time.process_time()
            for begin in range(0, len(rows), 3_000):
                file.execute("BEGIN")
                part = rows[begin : begin + 3_000]
                file.executemany(f"INSERT OR REPLACE INTO tasks VALUES ({marks})", part)
                file.execute("COMMIT")
            spent_s = time.process_time() - begun_s
        return spent_s


def memory(count: int, flush: bool) -> list[tuple[int, float]]:
    """Returns this process's USS in bytes by number of task rows, in the store or in a dict."""
    process = psutil.Process()
    rows_by_id: dict[bytes, TaskRow] = {}
    points = []
    with tempfile.TemporaryDirectory() as folder:
        store = Gcs(Path(folder) / "gcs.sqlite")
        for done in range(0, count + 1, max(1, count // 20)):
            if done:
                for begin in range(0, count // 20, 1_000):
                    rows = [task(n) for n in range(min(1_000, count // 20 - begin))]
                    if flush:
                        put_all(store, rows)
                    else:
                        rows_by_id.update((row.id, row) for row in rows)
            store.flush(120)
            points.append((done, float(process.memory_full_info().uss)))
        store.close()
    return points


def in_a_process(count: int, mode: str) -> list[tuple[int, float]]:
    """Runs `memory` in a fresh interpreter, so that it has no memory of earlier work."""
    command = [sys.executable, __file__, "--rows", str(count), "--memory", mode]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(number, uss) for number, uss in json.loads(completed.stdout)]


def reconfigure(seconds: float, victim: str, folder: Path) -> dict[str, Any]:
    """Returns the waits for acknowledgements of puts one by one, with a member killed half way."""
    with contextlib.closing(Gcs(folder / f"{victim}.sqlite", shards=1, replicas=3)) as store:
        chains = store.chains
        while len(chains.members()[0]) < 3:
            time.sleep(0.01)
        for number in range(2_000):
            store.put(task(number))
        store.flush()
        waits: list[tuple[float, float]] = []
        begun_s = time.perf_counter()
        killed_s = joined_s = 0.0
        dead = 0
        number = 0
        while (now_s := time.perf_counter() - begun_s) < seconds:
            if not killed_s and now_s > seconds / 2:
                dead = chains.members()[0][MEMBERS.index(victim)]
                os.kill(dead, signal.SIGKILL)
                killed_s = now_s
            row = task(number)
            number += 1
            asked_s = time.perf_counter()
            store.put(row)
            store.sync()
            waits.append((now_s, time.perf_counter() - asked_s))
            if killed_s and not joined_s:
                members = chains.members()[0]
                if dead not in members and len(members) == 3:
                    joined_s = now_s
        return {"waits": waits, "killed_s": killed_s, "joined_s": joined_s or seconds}


def longest(run: dict[str, Any], reconfiguring: bool) -> float:
    """Returns the longest wait from the kill until the new member joined, or before the kill."""
    from_s, to_s = (run["killed_s"], run["joined_s"]) if reconfiguring else (0, run["killed_s"])
    return max(wait_s for at_s, wait_s in run["waits"] if from_s <= at_s <= to_s)


def draw_flushing(flushed: list[tuple[int, float]], kept: list[tuple[int, float]]) -> None:
    figure, axes = _axes("task rows put, in thousands", "private memory, MB")
    for points, label in ((kept, "all rows kept"), (flushed, "flushed to the file")):
        axes.plot([n / 1e3 for n, _ in points], [uss / MB for _, uss in points], label=label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _save(figure, "gcs_flushing")


def draw_reconfiguration(runs: dict[str, dict[str, Any]]) -> None:
    """Draws the longest wait in each 10 ms, around the time of the kill."""
    figure, axes = _axes("seconds after the kill", "longest wait in 10 ms, ms")
    for victim, run in runs.items():
        bins: dict[int, float] = {}
        for at_s, wait_s in run["waits"]:
            place = int((at_s - run["killed_s"]) / SAMPLE_S // 1)
            bins[place] = max(bins.get(place, 0.0), wait_s)
        places = sorted(place for place in bins if abs(place * SAMPLE_S) <= 1.0)
        axes.plot(
            [place * SAMPLE_S for place in places],
            [bins[place] * 1e3 for place in places],
            label=f"{victim} killed",
            linewidth=0.8,
        )
    axes.axhline(30, color="grey", linestyle=":", linewidth=0.8)
    axes.text(-1.0, 30.5, "the paper's 30 ms", fontsize=8, color="grey")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _save(figure, "gcs_reconfiguration")


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure = Figure(figsize=(6.4, 3.6), dpi=110)
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, name: str) -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(FIGURES / f"{name}.png")


def report(
    name: str, unit: str, ours: Sequence[float], theirs: Sequence[float], **more: Any
) -> None:
    ratio = statistics.median(theirs) / statistics.median(ours)
    emit_pairs("gcs", name, unit, ours, theirs, digits=4, ratio=ratio, **more)


def main() -> None:
    options_of = parser(__doc__, rows=1_000_000, rounds=3)
    options_of.add_argument("--seconds", type=float, default=6.0, help="of each reconfiguration")
    options_of.add_argument("--memory", choices=("flushed", "kept"), help="that alone, as JSON")
    arguments = options_of.parse_args()
    if arguments.memory:
        print(json.dumps(memory(arguments.rows, arguments.memory == "flushed")))
        return

    samples: dict[str, list[float]] = {}
    waits: dict[str, dict[str, Any]] = {}
    calm: list[float] = []
    mending: list[float] = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, value in costs(arguments.rows, Path(folder)).items():
                samples.setdefault(name, []).append(value)
            for victim in MEMBERS:
                waits[victim] = reconfigure(arguments.seconds, victim, Path(folder))
                calm.append(longest(waits[victim], reconfiguring=False) * 1e3)
                mending.append(longest(waits[victim], reconfiguring=True) * 1e3)
    flushed, kept = (in_a_process(arguments.rows, mode) for mode in ("flushed", "kept"))

    rows = arguments.rows
    report("put/dict", "us", samples["put"], samples["dict"], rows=rows)
    report("written/executemany", "us", samples["last"], samples["executemany"], rows=rows)
    report("growth/first", "us", samples["last"], samples["first"], rows=rows)
    added = [max(uss for _, uss in points) - points[0][1] for points in (flushed, kept)]
    points_mb = {
        f"{mode}_mb": {str(n): round(uss / MB, 1) for n, uss in points[:: len(points) // 4]}
        for mode, points in (("flushed", flushed), ("kept", kept))
    }
    report("memory/kept", "MB", [added[0] / MB], [added[1] / MB], rows=rows, **points_mb)
    report("reconfiguration/steady", "ms", mending, calm, worst=round(max(mending), 3), replicas=3)
    draw_flushing(flushed, kept)
    draw_reconfiguration(waits)


if __name__ == "__main__":
    main()
