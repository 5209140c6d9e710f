#!/usr/bin/env python3
"""Measures how a GMI uses several cores: it has as many threads as its network keeps busy.

Examples in one GMI on two cores, steps a second of the whole job:

    <task>/busy      against a thread a core
    <task>/second    against the same GMI with one core
    <task>/spin      a thread a core, against threads that sleep at once (GOMP_SPINCOUNT 0)

Run it on a machine that does nothing else:

    python bench/threads.py
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from modes import Rates, in_turn, launched
from report import emit_pairs

import gmi_drl
from gmi_drl import runtime
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import load_config
from gmi_drl.runtime.process import forkserver_process

TASKS: Final = {"cartpole": 120_000, "halfcheetah": 80_000, "lstm_cartpole": 20_000,
                "mbpo_pendulum": 1_500}  # steps  # fmt: skip
_SPIN: Final = "GOMP_SPINCOUNT"


class ThreadACore(gmi_drl.Holistic):
    """Trains as usual, but computes with a thread for each core, whatever its network is."""

    def use_threads(self) -> AbstractContextManager[None]:
        """Leaves the number of threads as it is."""
        return nullcontext()


def config_of(task: str, cores: list[int], *, thread_a_core: bool) -> Mapping[str, Any]:
    """Returns the config of a task's example in one GMI."""
    overrides = [
        f"run.total_steps={TASKS[task]}", "run.eval_episodes=0", "run.checkpoint_every=0",
        "run.log_every=1", "layout.gmi_per_gpu=1", "layout.template=tcg_ex",
        "hardware.backend=cpu", "hardware.num_gpus=1", f"hardware.cores={cores}",
    ]  # fmt: skip
    if thread_a_core:
        overrides.append("roles.trainer=threads:ThreadACore")
    config = load_config(f"examples/{task}.yaml", overrides)
    return config.model_dump(mode="json", exclude_unset=True)


def job(
    task: str, cores: list[int], spin: str, *, thread_a_core: bool = False
) -> Callable[[], Rates]:
    """Returns a function that runs a task once, under a fork server with this GOMP_SPINCOUNT."""

    def run() -> Rates:
        runtime.shutdown()
        forkserver_process.ONE_THREAD[_SPIN] = spin
        runtime.init(PRELOAD)
        config = config_of(task, cores, thread_a_core=thread_a_core)
        return {"steps_per_s": launched(config)["training_samples_per_s"]}

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    cores, usual = sorted(os.sched_getaffinity(0))[:2], forkserver_process.ONE_THREAD[_SPIN]
    for task in options.tasks:
        ways = {
            "busy": job(task, cores, usual),
            "spin": job(task, cores, usual, thread_a_core=True),
            "sleep": job(task, cores, "0", thread_a_core=True),
            "one": job(task, cores[:1], usual),
        }
        results = in_turn(ways, options.rounds)
        rates = {way: [run["steps_per_s"] for run in runs] for way, runs in results.items()}
        emit_pairs("threads", f"{task}/busy", "steps/s", rates["busy"], rates["spin"])
        emit_pairs("threads", f"{task}/second", "steps/s", rates["busy"], rates["one"])
        emit_pairs("threads", f"{task}/spin", "steps/s", rates["spin"], rates["sleep"])
    runtime.shutdown()


if __name__ == "__main__":
    main()
