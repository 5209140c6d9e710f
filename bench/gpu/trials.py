#!/usr/bin/env python3
"""Measures a search whose trials share one GPU: how long it takes, by their number.

    bench/gpu/trials.py [--counts 1 4 8] [--steps 16000] [--trials 8]
    bench/gpu/trials.py --dry                on CPU cores, small: shows that it works

Claim: a search over what trains with many small kernels (SAC: 256 rows an update) takes much less
time with `search.trials_per_device: K` than one trial after another. Each cell is a `gmi-drl
search` by PBT of so many members that train once to their end: the same work in each.

`value`: seconds of the whole command, starts included. `ratio`: those of the cell of one trial at a
time over this cell's. `updates`: of all trials. Where the GPU has MPS the trials are its clients.

Results: bench/results/gpu/<machine>/trials.json, written after each cell, and one JSON line each.
The exit code is 1 if a cell failed, whose row says why, and 2 if results cannot be written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report

from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gpu.seeds import CONFIG, DRY, CellError, last_metrics, name_of_gpu, parser_of, row_of

_LIMIT_S: Final = 300.0  # of a cell
_END_S: Final = 15.0  # for a search that was asked to stop


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    machine = "dry-cpu" if options.dry else report.slug(name_of_gpu())
    results = options.results or (report.DRY_RESULTS if options.dry else report.GPU_RESULTS)
    path = results / machine / "trials.json"
    rows: list[dict[str, Any]] = []
    try:
        for count in options.counts:
            about = {"name": f"trials/{count}", "unit": "s", "trials": options.trials}
            row = row_of(about, partial(_measured, count, options), options.dry)
            rows.append(row)
            alone = next((r["value"] for r in rows if r.get("at_once") == 1), None)
            if alone and "value" in row:
                row["ratio"] = round(alone / row["value"], 3)
            report.keep(path, json.dumps(rows, indent=1) + "\n")
            print(json.dumps({"bench": "gpu_trials", **row}), flush=True)
    except report.Unwritable as error:
        print(error, file=sys.stderr)
        return 2
    return int(any("failed" in row for row in rows))


def _measured(count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a search with `count` trials at a time, and returns its measurements."""
    with tempfile.TemporaryDirectory(prefix="gmi-drl-trials-") as name:
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text(json.dumps(_config(count, folder, options)))
        words = [sys.executable, "-m", "gmi_drl", "search", "--plain", str(config)]
        begin = time.perf_counter()
        with (folder / "log").open("wb") as log:
            search = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, process_group=0)
            try:
                code = search.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise CellError(f"it took more than {_LIMIT_S:g} s") from None
            finally:
                report.end(search, _END_S)
        seconds = time.perf_counter() - begin
        metrics = last_metrics(folder, "searches/*/*/trials/*/*/metrics.jsonl")
        if code or len(metrics) < options.trials:
            tail = (folder / "log").read_text(errors="replace")[-1500:]
            raise CellError(f"exit code {code}, {len(metrics)} trials with metrics: {tail}")
        return {
            "value": round(seconds, 1),
            "at_once": count,
            "updates": sum(row["updates"] for row in metrics.values()),
            "steps": sum(row["steps"] for row in metrics.values()),
        }


def _config(count: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    config = CONFIG | (DRY if options.dry else {})
    search = {
        "algorithm": "pbt", "population": options.trials, "interval_steps": options.steps,
        "folder": str(folder / "searches"), "trials_at_once": count,
        "ranges": {"algorithm.learning_rate": {"log_uniform": [1e-4, 1e-3]}},
    }  # fmt: skip
    hardware: dict[str, Any] = {"backend": "cpu"}
    if not options.dry:
        search["trials_per_device"] = count
        hardware = {"num_gpus": 1}
    run = {"name": "trials", "seed": 1, "total_steps": options.steps}
    return {**config, "run": run, "hardware": hardware, "search": search}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, [1, 4, 8])
    parser.add_argument("--steps", type=int, default=16_000, help="environment steps of a trial")
    parser.add_argument("--trials", type=int, default=8)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with terminate_as_interrupt():  # SIGTERM ends the search of the cell, too
        raise SystemExit(main())
