#!/usr/bin/env python3
"""Measures what a GMI with several cores makes of them: threads that spin before they sleep.

PPO in one GMI on two cores, steps a second of the whole job:

    <task>/spin      against threads that sleep at once (GOMP_SPINCOUNT 0)
    <task>/second    against the same GMI with one core

Run it on a machine that does nothing else:

    python bench/threads.py
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from modes import Rates, in_turn, launched
from report import emit_pairs

from gmi_drl import runtime
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import load_config
from gmi_drl.runtime.process import forkserver_process

TASKS: Final = {"cartpole": 120_000, "halfcheetah": 80_000, "lstm_cartpole": 20_000}  # steps
_SPIN: Final = "GOMP_SPINCOUNT"


def config_of(task: str, cores: list[int]) -> Mapping[str, Any]:
    """The example of a task, in one GMI."""
    words = [
        f"run.total_steps={TASKS[task]}", "run.eval_episodes=0", "run.checkpoint_every=0",
        "run.log_every=1", "layout.gmi_per_gpu=1", "layout.template=tcg_ex",
        "hardware.backend=cpu", "hardware.num_gpus=1", f"hardware.cores={cores}",
    ]  # fmt: skip
    config = load_config(f"examples/{task}.yaml", words)
    return config.model_dump(mode="json", exclude_unset=True)


def job(task: str, cores: list[int], spin: str) -> Callable[[], Rates]:
    """Returns what runs it once, under a fork server whose threads spin so long."""

    def run() -> Rates:
        runtime.shutdown()
        forkserver_process.ONE_THREAD[_SPIN] = spin
        runtime.init(PRELOAD)
        return {"steps_per_s": launched(config_of(task, cores))["training_samples_per_s"]}

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    cores, usual = sorted(os.sched_getaffinity(0))[:2], forkserver_process.ONE_THREAD[_SPIN]
    for task in options.tasks:
        ways = {
            "spin": job(task, cores, usual),
            "sleep": job(task, cores, "0"),
            "one": job(task, cores[:1], usual),
        }
        found = in_turn(ways, options.rounds)
        rates = {way: [one["steps_per_s"] for one in runs] for way, runs in found.items()}
        emit_pairs("threads", f"{task}/spin", "steps/s", rates["spin"], rates["sleep"])
        emit_pairs("threads", f"{task}/second", "steps/s", rates["spin"], rates["one"])
    runtime.shutdown()


if __name__ == "__main__":
    main()
