#!/usr/bin/env python3
"""Measures launches that share one GPU: how many updates and steps a second they reach together.

    bench/gpu/seeds.py [--config FILE] [--counts 1 2 4 8] [--ways slices mps] [--seconds 12]
    bench/gpu/seeds.py --dry                 on CPU cores, small: shows that it works

Claim: what trains with many small kernels (SAC: 256 rows an update) leaves most of a GPU idle, and
launches that share it by `gmi-drl launch --seeds K --parallel K` train K seeds in much less than K
times the time of one. Ways: `mps` is that command; `slices` is as many independent commands at the
same time with backend direct, whose kernels take turns.

A cell is one way with one count. Its window of --seconds begins when all launches have made
updates; what each launch writes to its metrics.jsonl within the window counts. A launch has the
same number of CPU cores in every cell. `ratio`: all of a cell's updates a second over those of one
launch alone, which has the whole GPU, outside MPS.

`gpu_activity`: the share of the window in which a kernel ran, as NVML reports it.

Results: bench/results/gpu/<machine>/seeds.json, written after each cell, and one JSON line each.
Rows of cells that are not measured stay, and an earlier row of one launch alone is the baseline.
The exit code is 1 if a cell failed, whose row says why, and 2 if results cannot be written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report

from gmi_drl.gmi import nvml as driver
from gmi_drl.launcher.folder.run_folder import last_metrics as last_metrics_of
from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gpu.suite.store import DRY_NOTE

WAYS: Final = ("slices", "mps")
CONFIG: Final[dict[str, Any]] = {
    "version": 1,
    "run": {"seed": 1, "total_steps": 10**9, "eval_episodes": 0},
    "env": {"id": "HalfCheetah-v5", "adapter": "mujoco", "num_env": 8},
    "algorithm": {
        "name": "sac", "network": [256, 256], "horizon": 8, "batch_size": 256,
        "learning_rate": 3e-4, "replay_capacity": 1_000_000, "replay_start": 1000,
        "random_steps": 1000,
    },
}  # fmt: skip
DRY: Final[dict[str, Any]] = {
    "env": {"id": "Pendulum-v1", "num_env": 2},
    "algorithm": CONFIG["algorithm"] | {"network": [16], "batch_size": 32, "replay_capacity": 5000},
}
_ALONE: Final = "seeds/slices/1"
_MOST: Final = 8  # launches of a cell; cores are divided among at least so many
_FIRST_S: Final = 90.0  # until all launches have made updates
_END_S: Final = 15.0  # for launches that were asked to stop, which write a checkpoint


class CellError(Exception):
    """A cell could not be measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    machine = "dry-cpu" if options.dry else report.slug(name_of_gpu())
    results = options.results or (report.DRY_RESULTS if options.dry else report.GPU_RESULTS)
    path = results / machine / "seeds.json"
    rows: list[dict[str, Any]] = []
    try:
        kept_rows = json.loads(path.read_text()) if path.exists() else []
        report.keep(path, json.dumps(kept_rows, indent=1) + "\n")  # if not, nothing is measured
        alone = next((row.get("value") for row in kept_rows if row["name"] == _ALONE), None)
        for count in options.counts:
            for way in options.ways if count > 1 else WAYS[:1]:
                fields = {"name": f"seeds/{way}/{count}", "unit": "updates/s"}
                fields["seconds"] = options.seconds
                row = row_of(fields, partial(_measured, way, count, options), options.dry)
                if "value" in row:
                    alone = row["value"] if count == 1 else alone
                    row["ratio"] = alone and round(row["value"] / alone, 3)
                rows.append(row)
                kept_rows = [old for old in kept_rows if old["name"] != row["name"]] + [row]
                report.keep(path, json.dumps(kept_rows, indent=1) + "\n")
                print(json.dumps({"bench": "gpu_seeds", **row}), flush=True)
    except report.Unwritable as error:
        print(error, file=sys.stderr)
        return 2
    return int(any("failed" in row for row in rows))


def row_of(
    about: dict[str, Any], measure: Callable[[], dict[str, Any]], dry: bool
) -> dict[str, Any]:
    """Returns the row of a cell: what it measures, or `failed` with the reason."""
    row = about | {"machine": report.machine(), "commit": report.commit()}
    row |= {"note": DRY_NOTE} if dry else {}
    try:
        return row | measure()
    except CellError as error:
        return row | {"failed": str(error)}


def name_of_gpu() -> str:
    import torch

    return torch.cuda.get_device_name(0)


def _measured(way: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a cell and returns its measurements; its launches are ended in any case."""
    folder = Path(tempfile.mkdtemp(prefix="gmi-drl-seeds-"))
    log = folder / "log"
    with log.open("wb") as file:
        launches = [
            subprocess.Popen(
                [sys.executable, "-m", "gmi_drl", "launch", "--plain", *arguments],
                stdout=file, stderr=subprocess.STDOUT, process_group=0,
            )
            for arguments in _commands(way, count, folder, options)
        ]  # fmt: skip
    try:
        first_metrics = _progress(folder, count, launches, log)
        begin = time.perf_counter()
        activity = _activity(options.seconds)
        last, seconds = last_metrics(folder), time.perf_counter() - begin
        if any(launch.poll() is not None for launch in launches):
            raise CellError(f"a launch has ended: {_tail(log)}")
    finally:
        _end(launches)
        shutil.rmtree(folder, ignore_errors=True)
    rates = [
        (last[run]["updates"] - row["updates"]) / (last[run]["time_s"] - row["time_s"])
        for run, row in first_metrics.items()
        if last[run]["time_s"] > row["time_s"]
    ]
    steps = sum(last[run]["steps"] - row["steps"] for run, row in first_metrics.items()) / seconds
    if len(rates) < count:
        raise CellError(f"{count - len(rates)} launches made nothing in {options.seconds} s")
    return {
        "value": round(sum(rates), 1),
        "spread": [round(min(rates), 1), round(max(rates), 1)],  # of a launch
        "steps_per_s": round(steps, 1),
        "gpu_activity": activity,
    }


def _commands(way: str, count: int, folder: Path, options: argparse.Namespace) -> list[list[str]]:
    """Returns the words of each `gmi-drl launch`: one of all seeds, or one for each."""
    config = json.loads(options.config.read_text()) if options.config else CONFIG
    config = config | (DRY if options.dry else {})
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // max(_MOST, *options.counts))

    def written(place: int, backend: str, pinned: list[int]) -> str:
        path = folder / f"{place}.yaml"
        run = config["run"] | {"name": str(place), "folder": str(folder / "runs"), "seed": place}
        hardware = {"backend": backend, "cores": pinned} | ({} if options.dry else {"num_gpus": 1})
        path.write_text(json.dumps(config | {"run": run, "hardware": hardware}))
        return str(path)

    if way == "mps" and count > 1:
        path = written(1, "cpu" if options.dry else "mps", cores[: share * count])
        return [[path, "--seeds", str(count), "--parallel", str(count)]]
    backend = "cpu" if options.dry else "direct"
    return [[written(i + 1, backend, cores[i * share : (i + 1) * share])] for i in range(count)]


def last_metrics(folder: Path, runs: str = "runs/*/*/metrics.jsonl") -> dict[Path, dict[str, Any]]:
    """Returns the last complete line of each run's metrics."""
    metrics = {path: last_metrics_of(path) for path in sorted(folder.glob(runs))}
    return {path: line for path, line in metrics.items() if line}


def _progress(
    folder: Path, count: int, launches: Sequence[subprocess.Popen[bytes]], log: Path
) -> dict[Path, dict[str, Any]]:
    """Waits until all launches have made some updates; returns the last line of each."""
    deadline = time.monotonic() + _FIRST_S
    while time.monotonic() < deadline:
        metrics = last_metrics(folder)
        if len(metrics) == count and all(row.get("updates", 0) > 200 for row in metrics.values()):
            return metrics
        if any(launch.poll() is not None for launch in launches):
            raise CellError(f"a launch has ended: {_tail(log)}")
        time.sleep(0.2)
    raise CellError(f"not all have made updates within {_FIRST_S:g} s: {_tail(log)}")


def _activity(seconds: float) -> float | None:
    """Waits and returns the share of time in which kernels ran; None if NVML does not report it."""
    end, samples = time.perf_counter() + seconds, []
    with contextlib.ExitStack() as stack:
        nvml = handle = None
        with contextlib.suppress(Exception):  # without a driver it only waits
            nvml = stack.enter_context(driver.nvml_session())
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
        while (remaining_s := end - time.perf_counter()) > 0:
            if nvml is not None and handle is not None:
                utilization = driver.query(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
                samples += [] if utilization is None else [utilization.gpu / 100]
            time.sleep(min(0.2, remaining_s))
    return round(sum(samples) / len(samples), 3) if samples else None


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:]


def _end(launches: Sequence[subprocess.Popen[bytes]]) -> None:
    for launch in launches:
        if launch.poll() is None:
            launch.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _END_S
    for launch in launches:
        try:
            launch.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            launch.kill()
            launch.wait()


def parser_of(text: str | None, counts: Sequence[int]) -> argparse.ArgumentParser:
    """Returns a parser with the options that benchmarks of a shared GPU have in common."""
    parser = report.parser(text)
    parser.add_argument("--counts", type=int, nargs="+", default=list(counts))
    parser.add_argument("--dry", action="store_true", help="on CPU cores, small")
    parser.add_argument("--results", type=Path, help=report.RESULTS_HELP)
    return parser


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, [1, 2, 4, 8])
    parser.add_argument("--config", type=Path, help="JSON of another config than SAC's")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=12.0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with terminate_as_interrupt():  # SIGTERM ends the launches of the cell, too
        raise SystemExit(main())
