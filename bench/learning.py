#!/usr/bin/env python3
"""Trains tasks times seeds, with Stable-Baselines3 beside ours if asked for.

Claim: after the same number of steps our runs reach the published returns of `learning_tasks.py`,
and those of SB3 run in the same job on the same machine. A *cell* is one (task, seed, system);
what is compared is the mean return of 20 evaluation episodes of the policy's mean action after
training, as a median over seeds; the return while training (last 100 episodes) stands beside it,
for that is what most published figures are.

    bench/learning.py --peer sb3 --python /path/to/python-with-sb3 --seeds 5 --jobs 2 --resume

Finished cells are in bench/results/learning.json: `--resume` goes on from there, `--report` only
writes the pages anew: docs/learning.md and a curve per task in docs/learning/.

Cells that take hours are not lost when the program is stopped, if their runs are kept:

    bench/learning.py --tasks HalfCheetah-v5-sac --seeds 3 --keep runs/learning --resume

The run of a cell is then in FOLDER/<task>-<seed>/, with a checkpoint after each fortieth of its
iterations: about every five minutes where it takes three hours. The same command goes on from the
newest checkpoint, and only reads a run that is finished. Seconds and steps/s of such a cell are of
training alone, which writes its checkpoints: without the pause, and without iterations that were
made again. The CPU seconds of a cell that was interrupted are not known (null). The peer's cells
and those trained from Python are not kept.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import statistics
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from cells import Cell, Cells, evaluations, thinned
from jobs import STOP, Job, JobError, importable, run_ours, run_peer, run_rl
from learning_page import write_curves, write_page
from learning_tasks import TASKS
from report import commit, emit, machine, parser, spread_of

BENCH = Path(__file__).resolve().parent
RESULTS = BENCH / "results" / "learning.json"
_HEARTBEAT = timedelta(minutes=1)


def say(text: str) -> None:
    """Prints a line for people."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def train(
    cell: Cell, options: argparse.Namespace, cores: list[int], progress: dict[Cell, str]
) -> Job:
    """Runs one cell to its end, on one core."""
    task, cores = TASKS[cell.task], cores[:1]
    timeout = timedelta(minutes=options.timeout_minutes)
    steps = options.steps or task.steps
    if cell.system == "sb3":
        settings = replace(task.sb3, seed=cell.seed, steps=steps, vec="dummy")
        return run_peer(options.python, "sb3.py", settings, timeout, cores)

    def show(taken: int) -> None:
        progress[cell] = f"{taken:,} of {steps:,} steps"

    settings = replace(task.ours, seed=cell.seed, steps=steps)
    if task.rl is not None:
        return run_rl(settings, task.rl, task.agents, timeout, cores, task.algorithm, task.wrappers)
    return run_ours(
        settings, timeout, task.agents, cores, task.algorithm, show, wrappers=task.wrappers,
        sections=task.sections, gmis=task.gmis, resume=options.resume,
        keep=options.keep and options.keep / f"{cell.task}-{cell.seed}",
    )  # fmt: skip


def record(cell: Cell, job: Job, steps: int | None, origin: dict[str, Any]) -> dict[str, Any]:
    """Returns a finished cell as the results file keeps it."""
    task = TASKS[cell.task]
    if job.evaluation is None:
        raise JobError("the run ended without an evaluation; its run.json has no eval_return")
    settings = task.sb3 if cell.system == "sb3" else task.ours
    extra = {"algorithm": task.algorithm} if cell.system == "ours" and task.algorithm else {}
    if cell.system == "ours" and task.sections:
        extra["sections"] = task.sections
    if task.rl is not None:
        extra["rl"] = task.rl
    if task.wrappers:
        extra["wrappers"] = list(task.wrappers)
    return {
        **asdict(cell),
        "steps": job.steps,
        "seconds": round(job.seconds, 1),
        "steps_per_s": round(job.steps_per_s, 1),
        "cpu_seconds_per_1000_steps": job.cpu_s_per_1000_steps,
        "evaluation": job.evaluation,
        "curve": thinned(job.curve),
        "settings": {**asdict(settings), "seed": cell.seed, "steps": steps or task.steps, **extra},
        "versions": job.versions,
        **origin,
    }


class Schedule:
    """Runs cells `jobs` at a time, each on cores of its own, and reports the progress."""

    def __init__(self, cells: Cells, options: argparse.Namespace) -> None:
        self.cells, self.options = cells, options
        self.free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        cores = sorted(os.sched_getaffinity(0))
        for number in range(options.jobs):
            self.free.put(cores[number :: options.jobs])
        self.origin = {"machine": machine(), "commit": commit()}
        self.started: dict[Cell, float] = {}
        self.taken: dict[Cell, str] = {}
        self.left: list[Cell] = []
        self.failed: list[Cell] = []

    def run(self, todo: list[Cell]) -> list[Cell]:
        """Trains all cells, and returns those that failed; an early stop leaves no process."""
        self.left = list(todo)
        with ThreadPoolExecutor(self.options.jobs) as pool:
            pending = {pool.submit(self._train, cell): cell for cell in todo}
            try:
                while pending:
                    ready, _ = wait(pending, _HEARTBEAT.total_seconds(), FIRST_COMPLETED)
                    for future in ready:
                        self._finish(pending.pop(future), future, len(todo))
                    if not ready:
                        self._heartbeat()
            except BaseException:
                STOP.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return self.failed

    def _train(self, cell: Cell) -> Job:
        cores = self.free.get_nowait()  # there are as many entries as threads, so one is free
        self.started[cell] = time.monotonic()
        say(f"{cell}: started; its first core is {cores[0]}")
        try:
            return train(cell, self.options, cores, self.taken)
        finally:
            self.free.put(cores)

    def _finish(self, cell: Cell, future: Future[Job], total: int) -> None:
        self.left.remove(cell)
        self.started.pop(cell, None)
        label = f"[{total - len(self.left)}/{total}] {cell}"
        try:
            finished = record(cell, future.result(), self.options.steps, self.origin)
        except JobError as error:
            self.failed.append(cell)
            say(f"{label}: FAILED: {error}")
            return
        self.cells.add(finished)
        result = f"evaluation {finished['evaluation']['mean']:.1f}, {finished['seconds']:.0f} s"
        say(f"{label}: {result}; {len(self.left)} to go")

    def _heartbeat(self) -> None:
        for cell, began in list(self.started.items()):
            since = timedelta(seconds=int(time.monotonic() - began))
            say(f"    {cell}: {self.taken.get(cell, 'training')}, {since}")


def parse() -> argparse.Namespace:
    """Returns the options from the command line."""
    options_of = parser(__doc__, results=RESULTS, docs=BENCH.parent / "docs")
    add = options_of.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    add("--seeds", type=int, default=5, help="how many: 0, 1, 2 ...")
    add("--peer", choices=("sb3",), help="also train this peer")
    add("--only-peer", action="store_true", help="train the peer alone")
    add("--python", default=sys.executable, help="interpreter that has the peer")
    add("--jobs", type=int, default=1, help="cells at a time, sharing the cores")
    add("--steps", type=int, help="instead of the task's own, for a trial")
    # Four times what the longest one takes.
    add("--timeout-minutes", type=float, default=720.0, help="of one cell, each time it is started")
    add("--resume", action="store_true", help="skip what is finished, and go on in --keep")
    add("--keep", type=Path, metavar="FOLDER", help="keep runs here")
    add("--report", action="store_true", help="only write the pages anew")
    options = options_of.parse_args()
    cores = len(os.sched_getaffinity(0))
    if not 1 <= options.jobs <= cores:
        options_of.error(f"--jobs {options.jobs}: one core each and {cores} here.")
    if options.only_peer and not options.peer:
        options_of.error("--only-peer needs --peer sb3")
    return options


def wanted(options: argparse.Namespace, cells: Cells) -> list[Cell]:
    """Returns the cells to train, seed by seed, so that every task has a result early."""
    systems = [] if options.only_peer else ["ours"]
    if options.peer:
        problem = importable(options.python, "sb3.py", "dummy")
        if problem is None:
            systems.append(options.peer)
        else:
            say(f"skipped {options.peer}: {options.python} says: {problem}")
    requested = [
        Cell(task, seed, system)
        for seed in range(options.seeds)
        for task in options.tasks
        for system in systems
        if system == "ours" or TASKS[task].sb3 is not None
    ]
    if not options.resume:
        return requested
    return [cell for cell in requested if not _finished(cell, cells, options.steps)]


def _finished(cell: Cell, cells: Cells, steps: int | None) -> bool:
    """Tells whether the cell is finished with this many steps, as a trial has fewer."""
    record = cells.records.get(cell)
    return record is not None and record["settings"]["steps"] == (steps or TASKS[cell.task].steps)


def publish(cells: Cells, options: argparse.Namespace) -> None:
    """Writes the page and the pictures, and prints one JSON line per task on standard output."""
    drawn = write_curves(cells, options.docs / "learning")
    write_page(cells, options.docs / "learning.md", drawn)
    for task in TASKS:
        returns, peers = (evaluations(cells.of(task, system)) for system in ("ours", "sb3"))
        if not returns:
            continue
        middle = statistics.median(returns)
        peer = statistics.median(peers) if peers else None
        emit(
            "learning", f"{task}/sb3" if peers else f"{task}/evaluation",
            value=middle, unit="return", peer=peer,
            # negative returns have no ratio
            ratio=middle / peer if peer and peer > 0 and middle > 0 else None,
            repeats=len(returns), spread=spread_of(returns, 3),
            peer_spread=spread_of(peers, 3) if peers else None, reference=TASKS[task].reference,
            dry=bool(options.steps or options.results != RESULTS),
        )  # fmt: skip


def main() -> int:
    """Trains the requested cells, then publishes; returns 1 if a cell failed."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cells = Cells(options.results)
    failed = []
    if not options.report:
        todo = wanted(options, cells)
        say(f"{len(todo)} cells to train, {options.jobs} at a time; {len(cells.records)} finished")
        failed = Schedule(cells, options).run(todo)
    publish(cells, options)
    for cell in failed:
        say(f"{cell}: failed; run again with --resume")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
