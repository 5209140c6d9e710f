#!/usr/bin/env python3
"""Runs the paper's experiments here, as one command that can be stopped and continued.

    bench/gpu/suite/suite.py [--minutes 8] [--env Ant-v5] [--only training serving ...]
    bench/gpu/suite/suite.py --only training --ladder 4096 16384 --gmis 4 8 --backends direct
    bench/gpu/suite/suite.py --dry          the same on CPU cores, small
    bench/gpu/suite/suite.py --report FILE  tables and pictures of a results file

Experiments: serving and sync training by k GMIs of a GPU under direct, mps and green against one
exclusive process at its own best num_env; throughput and memory against num_env; the tuner's own
choice, beside the best of these; precisions; kernels launched one by one; reductions; MCC against
UCC and async against sync; return against wall-clock; start of GMIs and what they leave behind;
several devices. Everything is a real launch. A cell is one of them, some seconds long, in a process
of its own with a deadline; finished cells are kept and not run again while machine, code and
versions are the same, whichever cells a command asks for. Cells for which the minutes did not
suffice are listed; the same command continues with them.

With --ladder, k GMIs are compared with one process at each of these total numbers of environments,
otherwise at the number that is best for one process. Shares under mps: `mps` is 1/k of the SMs for
each, `mps-x2` twice that, `mps-uncapped` all SMs for each.

Results: bench/results/gpu/<machine>/suite.json and pictures beside it (--dry: in
runs/bench/gpu/dry-cpu, which git ignores, and which says nothing of a GPU). JSON lines on standard
output, tables on standard error. The exit code is 0 also where there is no GPU, 1 if a cell
crashed, hung or left something behind, and 2 if a package is missing, if results are not of one
suite or cannot be written, or if another suite adds to them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import report

from gmi_drl.gmi import DiscoveryError, discover
from gmi_drl.gmi.discover import look
from gmi_drl.launcher.colocated_runs import busy_cores
from gmi_drl.placement.reduction import STRATEGIES
from gmi_drl.roles.envs import check_env, choose_adapter
from gmi_drl.runtime.cache_files import locked
from gpu.suite.cell_process import ENDS_S, cell_lock, measured
from gpu.suite.plan import Open, answers, cells, resolved
from gpu.suite.rows import failures
from gpu.suite.stage import EXPERIMENTS, SHARES, Cell, Stage, dry_stage, gpu_stage
from gpu.suite.store import MixedSuites, NotASuite, Store, identity
from gpu.suite.tables import show

_WARP: Final = "Ant-v5"  # the default environment where adapter warp can run it
_TORCH: Final = "BallBalance-v0"
_ENDING: Final = timedelta(seconds=ENDS_S + 10)  # for a cell of a killed suite that is still ending
_LOOK_S: Final = 0.2  # to measure the load of others before each cell
_HANGS: Final = 2  # cells of a backend and share; after so many hangs the rest is left out
_LEAST_S: Final = 6.0  # for a cell of a kind that has not been run yet


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        if options.report is not None:
            store = Store.read(options.report)
            show(store, None if options.no_pictures else options.report.parent)
            return 0
        return _suite(options)
    except MixedSuites as error:
        say(f"not compared: {error}")
        return 2
    except (NotASuite, report.Unwritable) as error:
        say(str(error))
        return 2


def _suite(options: argparse.Namespace) -> int:
    setup = _dry(options) if options.dry else _gpu(options)
    if setup is None:
        return 0
    stage, folder, about = setup
    stage = stage.narrowed(options.ladder, options.gmis, options.backends, options.one_network)
    stage = dataclasses.replace(stage, reduction=options.reduction)
    faults = list(check_env(stage.env, stage.adapter))
    if options.backends and not stage.shares:
        names = ", ".join(options.backends)
        reasons = "; ".join(f"{name}: {why}" for name, why in stage.unusable.items()) or "not here"
        faults.append(f"--backends {names}; none of these can be used: {reasons}. Name another.")
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 2
    results = options.results or (report.DRY_RESULTS if options.dry else report.GPU_RESULTS)
    path = results / folder / "suite.json"
    kept = options.kept or path.parent / ".kept"
    name = f"process {os.getpid()}"
    with locked(kept / "suite.lock", timedelta(0), name) as lock:
        if not lock.held and lock.holder:
            text = f"{path}: {lock.holder} adds to it. Wait for its end, or give other --results."
            print(text, file=sys.stderr)
            return 2
        store, note = Store.open(path, identity(stage, about), kept)
        if note:
            say(note)
        for earlier in options.given:
            if (file := earlier / folder / "suite.json").exists():
                say(store.take(file))
        return _measure(options, stage, store)


def _measure(options: argparse.Namespace, stage: Stage, store: Store) -> int:
    with locked(cell_lock(store.kept), _ENDING, on_wait=_tell_wait) as lock:
        if not lock.held and lock.holder:
            title = f"{store.path}: cell {lock.holder}"
            say(f"{title} of a suite that was killed does not end. End it.")
            return 2
    todo = cells(stage, options.repeats, options.only)
    keys = {cell.key for cell in todo}
    if options.retry:
        for key, _, _ in failures(store.records):
            if key in keys:
                store.records.pop(key, None)
    store.write()  # fails before anything is measured
    run(store, stage, todo, 60 * options.minutes)
    show(store, None if options.no_pictures else store.path.parent)
    say(
        f"results: {store.path}; their tables again: bench/gpu/suite/suite.py --report {store.path}"
    )
    # A refusal is a result, unless it is of a reduction that was asked for by name.
    named = options.reduction != "auto"
    failed = [
        (key, why)
        for key, kind, why in failures(store.records)
        if key in keys and (kind != "refused" or named)
    ]
    if failed:
        say(f"{len(failed)} cells failed; the first, {failed[0][0]}: {failed[0][1]}")
    return int(bool(failed))


def run(store: Store, stage: Stage, todo: Sequence[Cell], budget_s: float) -> None:
    """Measures cells that are missing until the budget is used; records which were not run."""
    end_s = time.monotonic() + budget_s
    store.not_run, hangs = [], Counter[str]()
    for cell in todo:
        if cell.key in store.records and answers(store.records[cell.key], cell):
            continue
        left_s = end_s - time.monotonic()
        try:
            filled = resolved(cell, store.records)
        except Open as open_:
            _leave_out(store, cell, str(open_))
            continue
        share = _share_of(cell)
        if hangs[share] >= _HANGS:
            _leave_out(store, cell, f"{_HANGS} cells of {share} hung in this command")
            continue
        if left_s < _usual_s(cell, store.records):
            _leave_out(store, cell, "no time left")
            continue
        others = round(busy_cores(os.sched_getaffinity(0), _LOOK_S), 2)

        def tell(took_s: float, key: str = cell.key) -> None:
            say(f"{max(0.0, end_s - time.monotonic()):4.0f} s left  {key}: {took_s:.0f} s so far")

        record = measured(filled, stage.settings, min(cell.deadline_s, left_s), store.kept, tell)
        record |= {"others_cores": others, "at": report.utc_now()}
        if record.get("failed") == "hang" and left_s < cell.deadline_s:
            _leave_out(store, cell, f"not done in the {left_s:.0f} s that were left")
            continue
        hangs[share] += record.get("failed") == "hang"
        store.add(record)
        say(f"{max(0.0, end_s - time.monotonic()):4.0f} s left  {cell.key}: {_outcome(record)}")
    store.write()


def _share_of(cell: Cell) -> str:
    """Returns how its GMIs share a GPU; cells with the same share probably hang alike."""
    times = cell.what.get("sm_overcommit")
    return f"{cell.what.get('backend', 'no backend')}{'' if times is None else f' x {times:g}'}"


def _leave_out(store: Store, cell: Cell, why: str) -> None:
    store.not_run.append({"key": cell.key, "why": why})


def _usual_s(cell: Cell, records: Mapping[str, Mapping[str, Any]]) -> float:
    """Returns the median seconds of a cell of this kind."""
    known = [float(r["wall_s"]) for r in records.values() if r["kind"] == cell.kind]
    return statistics.median(known) if known else _LEAST_S + float(cell.what.get("seconds", 0.0))


def _outcome(record: Mapping[str, Any]) -> str:
    if "failed" in record:
        return f"{record['failed']}: {str(record['why']).splitlines()[0][:200]}"
    if "choice" in record:
        gmis, num_env = record["choice"]["gmis"], record["choice"]["num_env"]
        return f"{gmis} GMIs, {num_env:,} each, by {record['profiles']} measurements"
    if "steps_per_s" in record:
        return f"{record['steps_per_s']:,.0f} steps/s"
    if "return_mean" in record:
        return f"return {record['return_mean']:.1f} after {record['steps']:,} steps"
    if "compiled_s" in record:
        return f"kernels there in {record['compiled_s']:.0f} s"
    return "measured"


def _gpu(options: argparse.Namespace) -> tuple[Stage, str, list[str]] | None:
    """Returns the stage of this machine's GPUs, its folder and the driver; None without one."""
    try:
        topology = discover()
    except DiscoveryError as error:
        print(f"GPUs cannot be asked, nothing measured: {error}")
        return None
    device = topology.devices[0]
    if device.kind != "gpu":
        print("no GPU here: nothing measured (--dry runs the same, small, on CPU cores)")
        return None
    for gpu in topology.devices:
        if gpu.processes:
            held_gib = gpu.held_bytes / 2**30
            say(f"GPU {gpu.index}: {len(gpu.processes)} processes of others, {held_gib:.1f} GiB")
    adapter = options.adapter
    env = options.env or (_TORCH if check_env(_WARP, "warp") else _WARP)
    if adapter == "auto":
        adapter = choose_adapter(env) if check_env(env, "warp") else "warp"
    number = len(topology.devices)
    name = report.slug(device.name) + (f"-x{number}" if number > 1 else "")
    driver = look().driver
    return gpu_stage(env, adapter, topology, check_env), name, [f"driver {driver}"]


def _dry(options: argparse.Namespace) -> tuple[Stage, str, list[str]]:
    env = options.env or _TORCH
    adapter = choose_adapter(env) if options.adapter == "auto" else options.adapter
    return dry_stage(env, adapter, sorted(os.sched_getaffinity(0)), check_env), "dry-cpu", []


def _tell_wait(holder: str) -> None:
    say(f"waiting for the end of cell {holder}, of a suite that was killed")


def say(text: str) -> None:
    """Prints a line for people; where that fails, as on a full disk, the suite continues."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__, minutes=8.0)
    add, folders = parser.add_argument, {"type": Path, "metavar": "FOLDER"}
    add("--dry", action="store_true", help="on CPU cores, small")
    add("--env", help=f"default: {_WARP} by adapter warp, else {_TORCH}")
    add("--adapter", default="auto", help="of the environment")
    add("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    add("--ladder", nargs="+", type=_count(1), default=[], metavar="N",
        help="num_env of one process, at each of which training and serving compare")  # fmt: skip
    add("--gmis", nargs="+", type=_count(2), default=[], metavar="K", help="of a device")
    add("--backends", nargs="+", choices=SHARES, default=[])
    add("--one-network", action="store_true", help="the environment's own, and not a second one")
    add("--reduction", choices=("auto", *STRATEGIES), default="auto",
        help="of gradients (comm.reduction); another one is another suite")  # fmt: skip
    add("--repeats", type=int, default=3, help="of every cell, if there is time")
    add("--retry", action="store_true", help="failed cells are run again")
    add("--results", **folders, help=report.RESULTS_HELP)
    add("--given", nargs="+", default=[], **folders,
        help="with results of earlier commands, whose cells are taken in")  # fmt: skip
    add("--kept", **folders,
        help="for locks and what cells go on from; default: .kept beside the results")  # fmt: skip
    add("--no-pictures", action="store_true", help="which need matplotlib")
    add("--report", type=Path, metavar="FILE", help="of this file; runs nothing")
    return parser.parse_args(arguments)


def _count(least: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers of at least `least`."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no whole number of {least} or more")
        return int(text)

    return number


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
