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

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from modes import Rates, column, in_turn, launched
from report import emit_pairs, parser

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


def config_of(task: str, cores: list[int], *, thread_a_core: bool = False) -> Mapping[str, Any]:
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
        return launched(config_of(task, cores, thread_a_core=thread_a_core))

    return run


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    options_of.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = options_of.parse_args()
    cores, usual = sorted(os.sched_getaffinity(0))[:2], forkserver_process.ONE_THREAD[_SPIN]
    for task in options.tasks:
        ways = {
            "busy": job(task, cores, usual),
            "spin": job(task, cores, usual, thread_a_core=True),
            "sleep": job(task, cores, "0", thread_a_core=True),
            "one": job(task, cores[:1], usual),
        }
        rates = column(in_turn(ways, options.rounds), "steps_per_s")
        for row, *pair in (("busy", "busy", "spin"), ("second", "busy", "one"),
                           ("spin", "spin", "sleep")):  # fmt: skip
            emit_pairs("threads", f"{task}/{row}", "steps/s", *(rates[way] for way in pair))
    runtime.shutdown()


if __name__ == "__main__":
    main()
