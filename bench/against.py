"""Runs whole jobs in this tree and in another commit's, in pairs that take turns.

`bench/train_throughput.py --against COMMIT` is its command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from checkout import ROOT, checkout, environment, git
from report import emit_pairs

_TIMEOUT_S: Final = 900
# How many gmi_drl modules a launch has imported, and the seconds of the next GMIs: to be ready,
# with torch, behind the first one.
_MODULES: Final = """
import sys
import gmi_drl
gmi_drl.launch("config.yaml", view="none")
print(sum(name.partition(".")[0] == "gmi_drl" for name in sys.modules))
"""
_GMIS: Final = """
import os, statistics, time
from gmi_drl import runtime

class Gmi:
    def pid(self):
        import torch
        return os.getpid()

if __name__ == "__main__":
    runtime.init(("numpy", "torch", "mujoco", "gymnasium"))
    gmi = runtime.remote(Gmi).options(num_threads=1)
    handles, seconds = [], []
    for _ in range(9):
        began_s = time.perf_counter()
        handles.append(gmi.remote())
        runtime.get(handles[-1].pid.remote())
        seconds.append(time.perf_counter() - began_s)
    runtime.shutdown()
    print(statistics.median(seconds[1:]))
"""
# Tasks, and calls of an actor that wait for each other, a second; the best of five, as the first
# ones start processes.
_TASKS: Final = """
import time
from gmi_drl import runtime

@runtime.remote
def nothing():
    pass

class Counter:
    def add(self, n):
        return n + 1

def rate(count, work):
    best_s = float("inf")
    for _ in range(5):
        began_s = time.perf_counter()
        work(count)
        best_s = min(best_s, time.perf_counter() - began_s)
    return count / best_s

def calls(count):
    n = 0
    for _ in range(count):
        n = runtime.get(counter.add.remote(n))
    assert n == count

if __name__ == "__main__":
    runtime.init(num_cpus=2)
    if KIND == "tasks":
        found = rate(3000, lambda count: runtime.get([nothing.remote() for _ in range(count)]))
    else:
        counter = runtime.remote(Counter).remote()
        found = rate(2000, calls)
    runtime.shutdown()
    print(found)
"""


@dataclass(frozen=True)
class Case:
    """One quantity that is measured in both trees."""

    measure: Callable[[Path], float]  # of a tree
    unit: str = "steps/s"
    smaller_is_better: bool = False
    digits: int = 1


def training(
    env: str, num_env: int, iterations: int, *, horizon: int = 128, gmis: int = 1, **more: Any
) -> dict[str, Any]:
    """Returns the config of sync PPO with `num_env` environments over all GMIs."""
    samples = num_env * horizon
    return {
        "run": {"total_steps": iterations * samples},
        "env": {"id": env, "num_env": num_env // gmis},
        "algorithm": {"horizon": horizon, "minibatches": 4, "epochs": 5, **more},
        "hardware": {"num_gpus": 1},
        "layout": {"template": "tcg_ex", "gmi_per_gpu": gmis},
    }


def cases(dry: bool) -> dict[str, Case]:
    """Returns all cases by name; with `dry` they are as short as possible."""
    cores = len(os.sched_getaffinity(0))

    def iterations(count: int) -> int:
        return 4 if dry else count

    configs: dict[str, tuple[dict[str, Any], int]] = {  # with the lines of warm-up
        "ant": (training("Ant-v5", 16, iterations(30), gmis=cores, network="ant"), 1),
        "humanoid": (training("Humanoid-v5", 16, iterations(25), gmis=cores, network="ant"), 1),
        "cartpole_64": (training("CartPole-v1", 64, iterations(60), network=[64, 64]), 1),
        "cartpole_1024": (
            training("CartPole-v1", 1024, iterations(40), horizon=32, network=[64, 64]),
            1,
        ),
        "async_cartpole": (
            {
                "mode": "async",
                "run": {"total_steps": iterations(1500) * 16 * 20},
                "env": {"id": "CartPole-v1", "num_env": 16},
                "algorithm": {"name": "impala", "network": [64, 64], "horizon": 20},
                "hardware": {"num_gpus": 2},
                "layout": {"template": "decoupled"},
                "experience": {"channels": "joined"},
            },
            1 if dry else 50,
        ),
        "serving": (
            {
                "mode": "serving",
                "run": {"total_steps": 20_000 if dry else 400_000},
                "env": {"id": "CartPole-v1", "num_env": 32},
                "algorithm": {"network": [64, 64]},
                "hardware": {"num_gpus": 1},
                "layout": {"template": "tcg", "gmi_per_gpu": cores},
            },
            1,
        ),
    }
    first = training("Ant-v5", 16, 1, horizon=1, gmis=2) | {
        "algorithm": {"horizon": 1, "minibatches": 1, "epochs": 1}
    }
    times = {"smaller_is_better": True, "digits": 4}
    return {
        **{
            name: Case(lambda tree, job=job, warmup=warmup: steps_per_s(tree, job, warmup))
            for name, (job, warmup) in configs.items()
        },
        "launch": Case(lambda tree: seconds_to_first_step(tree, first), "s", **times),
        "launch_modules": Case(
            lambda tree: output_of(tree, _MODULES, first), "modules", smaller_is_better=True
        ),
        "gmi": Case(lambda tree: output_of(tree, _GMIS), "s", **times),
        **{
            kind: Case(
                lambda tree, kind=kind: output_of(tree, f"KIND = {kind!r}\n{_TASKS}"),
                f"{kind}/s",
            )
            for kind in ("tasks", "calls")
        },
    }


def _prepare(folder: Path, job: dict[str, Any]) -> list[str]:
    """Writes the config of a job, and returns the command that launches it."""
    run = {"name": "bench", "folder": "runs", "checkpoint_every": 0, "eval_episodes": 0}
    job = {"version": 1, **job, "run": {**run, **job["run"]}}
    job["hardware"] = {"backend": "cpu", **job["hardware"]}
    (folder / "config.yaml").write_text(json.dumps(job))
    return [sys.executable, "-m", "gmi_drl", "launch", "config.yaml", "--quiet"]


def _output(command: list[str], tree: Path, folder: Path) -> str:
    completed = subprocess.run(
        command, cwd=folder, env=environment(tree), capture_output=True, text=True,
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if completed.returncode:
        raise SystemExit(f"{command[1]} in {tree} failed:\n{completed.stdout}{completed.stderr}")
    return completed.stdout


def steps_per_s(tree: Path, job: dict[str, Any], warmup: int) -> float:
    """Returns the steps a second of the fastest tenth of iterations, after `warmup` of them.

    Other guests of the machine slow some iterations of a run by far more than two commits differ.
    The fastest iterations of both are alike where the code is.
    """
    with tempfile.TemporaryDirectory(prefix="gmi-against-") as name:
        folder = Path(name)
        _output(_prepare(folder, job), tree, folder)
        (metrics,) = folder.glob("runs/bench/*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()][warmup - 1 :]
    if len(lines) < 3:
        raise SystemExit(f"{len(lines)} lines of metrics after the warm-up: run longer.")
    rates = [
        (line["steps"] - previous["steps"]) / (line["time_s"] - previous["time_s"])
        for previous, line in pairwise(lines)
    ]
    return statistics.quantiles(rates, n=10)[-1]


def seconds_to_first_step(tree: Path, job: dict[str, Any]) -> float:
    """Returns the seconds from the command to the first line of metrics."""
    with tempfile.TemporaryDirectory(prefix="gmi-against-") as name:
        folder = Path(name)
        command = _prepare(folder, job)
        began_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment(tree))
        try:
            while not any(p.stat().st_size for p in folder.glob("runs/bench/*/metrics.jsonl")):
                if process.poll() not in (None, 0):
                    raise SystemExit(f"the launch in {tree} failed with {process.returncode}")
                time.sleep(0.002)
            return time.perf_counter() - began_s
        finally:
            process.wait(_TIMEOUT_S)


def output_of(tree: Path, program: str, job: dict[str, Any] | None = None) -> float:
    """Returns the number that a program prints last."""
    with tempfile.TemporaryDirectory(prefix="gmi-against-") as name:
        folder = Path(name)
        if job is not None:
            _prepare(folder, job)
        (folder / "program.py").write_text(program)
        output = _output([sys.executable, "program.py"], tree, folder)
    return float(output.splitlines()[-1])


def compare(options: argparse.Namespace) -> int:
    """Measures the wanted cases in both trees, round after round, and reports their ratios."""
    commit = git("rev-parse", "--short=12", options.against)
    selected = {name: case for name, case in cases(options.dry).items() if name in options.cases}
    samples: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in selected}
    with checkout(commit) as tree:
        for number in range(options.rounds):
            for name, case in selected.items():
                turns = [(ROOT, samples[name][0]), (tree, samples[name][1])]
                for measured_tree, values in turns if number % 2 == 0 else reversed(turns):
                    values.append(case.measure(measured_tree))
                current, baseline = (values[-1] for values in samples[name])
                print(
                    f"round {number + 1} of {options.rounds}  {name:<16}{current:>14,.4g}"
                    f"{baseline:>14,.4g} {case.unit}",
                    file=sys.stderr,
                )
    print(f"{'case':<16}{'here':>14}{'there':>14}  ratio (lowest, highest)", file=sys.stderr)
    for name, case in selected.items():
        ours, baselines = samples[name]
        pairs = (
            zip(baselines, ours, strict=True)
            if case.smaller_is_better
            else zip(ours, baselines, strict=True)
        )
        ratios = [numerator / denominator for numerator, denominator in pairs]
        spread = [round(min(ratios), 3), round(max(ratios), 3)]
        if options.dry:
            ratio = statistics.median(ratios)
            row: dict[str, Any] = {"name": f"against/{name}", "ratio": ratio, "dry": True}
            print(json.dumps(row), flush=True)
        else:
            row = emit_pairs(
                "train_throughput", f"against/{name}", case.unit, ours, baselines,
                smaller_is_better=case.smaller_is_better, digits=case.digits,
                against=commit, ratio_spread=spread,
            )  # fmt: skip
        print(
            f"{name:<16}{statistics.median(ours):>14,.4g}{statistics.median(baselines):>14,.4g}"
            f"  {row['ratio']:.3f} ({spread[0]:.3f}, {spread[1]:.3f})",
            file=sys.stderr,
        )
    return 0
