"""Launches runs of a mode one after the other, timed by their metrics.

The fork server is started once, so that no run spends time on imports.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs import BENCH, on_cores
from report import metrics_of, say

import gmi_drl
from gmi_drl import runtime
from gmi_drl.launcher.start.preload import PRELOAD

Rates = dict[str, float]
_barrier: Any = None  # in a process of `at_once`: the barrier


def lines_of(config: Mapping[str, Any], warmup: int = 1) -> list[dict[str, Any]]:
    """Launches a run, and returns its lines of metrics: at least two after the first `warmup`."""
    if not runtime.is_initialized():
        runtime.init(PRELOAD)
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        run_config = {**config, "run": {**config["run"], "folder": folder, "name": "bench"}}
        lines = metrics_of(gmi_drl.launch(run_config, view="none").folder)
    if len(lines) < warmup + 2:
        raise SystemExit(f"{len(lines)} lines of metrics, {warmup} of them warm-up: run longer.")
    return lines


def launched(config: Mapping[str, Any], warmup: int = 1) -> Rates:
    """Launches a run; returns predictions and training samples a second after line `warmup`."""
    lines = lines_of(config, warmup)
    first, last = lines[warmup - 1], lines[-1]
    rate = (last["steps"] - first["steps"]) / (last["time_s"] - first["time_s"])
    rates = dict.fromkeys(("steps_per_s", "predictions_per_s", "training_samples_per_s"), rate)
    if "predictions_per_s" in last:  # agents apart from trainers
        predicted = [line["predictions_per_s"] for line in lines[warmup:]]
        rates["predictions_per_s"] = statistics.median(predicted)
        lag = [line["policy_lag_mean"] for line in lines[warmup:]]
        rates["policy_lag"] = statistics.fmean(lag)
    return rates


def ask_peer(
    script: str,
    *,
    python: str = sys.executable,
    cores: Sequence[int] | None = None,
    **settings: Any,
) -> Rates:
    """Runs a script of bench/peers with these settings; returns the JSON line that it ends with."""
    command = on_cores(cores, [python, str(BENCH / "peers" / script), json.dumps(settings)])
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if completed.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{completed.stderr[-2000:]}")
    return json.loads(completed.stdout.splitlines()[-1])


def in_turn(entries: Mapping[str, Callable[[], Rates]], rounds: int) -> dict[str, list[Rates]]:
    """Runs every entry once a round, so that a machine that slows down slows all of them."""
    results: dict[str, list[Rates]] = {name: [] for name in entries}
    for number in range(rounds):
        for name, run in entries.items():
            rates = run()
            results[name].append(rates)
            text = "  ".join(f"{key} {value:,.1f}" for key, value in rates.items())
            say(f"round {number + 1} of {rounds}  {name}: {text}")
    return results


def column(results: Mapping[str, Sequence[Rates]], key: str) -> dict[str, list[float]]:
    """Returns one of the numbers of each entry, round by round."""
    return {name: [rates[key] for rates in runs] for name, runs in results.items()}


def at_once(rate: Callable[..., float], count: int, *args: Any) -> float:
    """Returns the sum of what `rate(*args)` gives in `count` processes, each of its own.

    `rate` calls `meet_others` when it is ready, so that all processes are measured together.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(count, _begin, (context.Barrier(count),)) as pool:
        return sum(pool.starmap(rate, [args] * count, chunksize=1))


def meet_others() -> None:
    """Waits for the other processes of `at_once`."""
    _barrier.wait(120)


def _begin(barrier: Any) -> None:
    global _barrier
    _barrier = barrier
