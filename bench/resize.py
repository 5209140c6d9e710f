#!/usr/bin/env python3
"""Measures what resizes cost a run: its return, and its pause (docs/resize.md).

    bench/resize.py [--seeds 5] [--only cartpole]
    bench/resize.py --cores 4 --only cartpole
                                          its return alone, as if there were four cores: those
                                          beyond the real ones share them
    bench/resize.py --dry                 one tiny run of each kind: shows that it works

Runs of an example from one seed after another, as they are with one GMI, and resized on the way, at
a quarter, at half and at three quarters of their steps: 1 -> 2 -> 4 -> 2 GMIs with four cores or
more, 1 -> 2 -> 1 -> 2 with fewer. An update keeps its samples (the rule `update`).

- `return/<case>`: the mean return of the greedy policy at the end, resized over not resized; with
  `--cores`, `return/<case>/<cores> cores`.
- `pause/<case>`: seconds from the last iteration of a layout to the end of the first of the next
  one. The claim is two iterations of the longer of both, or 2 s, whichever is more; the ratio is
  the claim over the pause.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from report import emit_median, emit_pairs, machine, metrics_of, parser, say

import fake_cores
import gmi_drl
from gmi_drl import runtime
from gmi_drl.launcher.callbacks.callback import StartedRun
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import load_config

EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples"
CLAIM_S, CLAIM_ITERATIONS = 2.0, 2
CASES: Final = {
    "cartpole": ("cartpole.yaml", []),
    "ant": ("ant.yaml", ["layout.gmi_per_gpu=1", "env.num_env=16", "run.total_steps=120_000"]),
}


class Resizes(gmi_drl.Callback):
    """Asks for each number of GMIs when its share of the steps is done, in threads."""

    def __init__(self, gmis: Sequence[int], total_steps: int) -> None:
        thresholds = [total_steps * place // (len(gmis) + 1) for place in range(1, len(gmis) + 1)]
        self.moments = list(zip(thresholds, gmis, strict=True))
        self.asks: list[threading.Thread] = []
        self.failures: list[str] = []

    def on_start(self, run: StartedRun) -> None:
        self.folder = run.folder

    def on_iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        if self.moments and metrics["steps"] >= self.moments[0][0]:
            _, gmis = self.moments.pop(0)
            self.asks.append(threading.Thread(target=self.ask, args=(gmis,)))
            self.asks[-1].start()

    def ask(self, gmis: int) -> None:
        try:
            gmi_drl.resize(self.folder, [f"layout.gmi_per_gpu={gmis}"])
        except Exception as error:
            self.failures.append(str(error))


@dataclass(frozen=True)
class Run:
    """Holds the results of a run."""

    eval_return: float
    seconds: float
    pauses_s: list[float]
    iteration_s: float  # the longest of the median iterations of its layouts


def trained(case: str, seed: int, gmis: Sequence[int], steps: int | None, folder: Path) -> Run:
    """Trains a run, resized to these numbers of GMIs on the way."""
    example, overrides = CASES[case]
    changes = [*overrides, f"run.folder={folder}", f"run.seed={seed}", "run.log=[]"]
    changes += ["run.checkpoint_every=0", "run.eval_episodes=20"]
    changes += [f"run.total_steps={steps}"] if steps else []
    total = steps or load_config(EXAMPLES / example, changes).run.total_steps
    resizes = Resizes(gmis, total)
    run = gmi_drl.launch(EXAMPLES / example, overrides=changes, view="none", callbacks=[resizes])
    for ask in resizes.asks:
        ask.join()
    if resizes.failures:
        raise SystemExit(f"{case}, seed {seed}: {resizes.failures[0]}")
    entries = json.loads((run.folder / "run.json").read_text()).get("resizes", [])
    assert len(entries) == len(gmis), f"{len(entries)} resizes of {len(gmis)}"
    layouts: dict[int, list[float]] = {}
    for before, after in itertools.pairwise(metrics_of(run.folder)):
        layouts.setdefault(len(after["gmi_seconds"]), []).append(after["time_s"] - before["time_s"])
    return Run(
        run.eval_return,
        run.seconds,
        [entry["pause_s"] for entry in entries],
        max(statistics.median(times) for times in layouts.values()),
    )


def _pretend(cores: int) -> None:
    """Makes this process, and those of runs, see `cores` cores."""
    machine()  # cached now, so that results name the real cores
    fake_cores.install(cores)
    os.environ["FAKE_CORES"] = str(cores)
    runtime.init((*PRELOAD, "fake_cores"))


def main(arguments: Sequence[str] | None = None) -> None:
    options_of = parser(__doc__, seeds=5)
    options_of.add_argument("--only", choices=CASES, help="one case")
    options_of.add_argument("--cores", type=int, help="so many, which share the real ones")
    options_of.add_argument("--dry", action="store_true", help="tiny runs; keeps nothing")
    options = options_of.parse_args(arguments)
    if options.cores is not None:
        _pretend(options.cores)
    gmis = (2, 4, 2) if len(os.sched_getaffinity(0)) >= 4 else (2, 1, 2)
    way = " -> ".join(map(str, (1, *gmis)))
    for case in ["cartpole"] if options.dry else [options.only] if options.only else CASES:
        plain, resized = [], []
        with tempfile.TemporaryDirectory() as name:
            for seed in range(1, 2 if options.dry else options.seeds + 1):
                for runs, numbers in ((plain, ()), (resized, gmis)):
                    steps = 16_384 if options.dry else None
                    runs.append(trained(case, seed, numbers, steps, Path(name)))
                    say(f"{case}, seed {seed}: {runs[-1]}")
        pauses = [pause for run in resized for pause in run.pauses_s]
        limit_s = max(CLAIM_S, CLAIM_ITERATIONS * max(run.iteration_s for run in resized))
        groups = resized, plain
        shared = {} if options.cores is None else {"conditions": "cores that share the real ones"}
        suffix = "" if options.cores is None else f"/{options.cores} cores"
        emit_pairs(
            "resize", f"return/{case}{suffix}", "return",
            [run.eval_return for run in resized], [run.eval_return for run in plain],
            gmis=way, each=[[round(run.eval_return, 1) for run in runs] for runs in groups],
            seconds=[round(statistics.median(r.seconds for r in runs), 1) for runs in groups],
            dry=options.dry, **shared,
        )  # fmt: skip
        if options.cores is None:
            emit_median(
                "resize", f"pause/{case}", "s", pauses, peer=round(limit_s, 3), digits=3,
                smaller_is_better=True, gmis=way, dry=options.dry,
                iteration_s=round(statistics.median(run.iteration_s for run in resized), 4),
            )  # fmt: skip


if __name__ == "__main__":
    main()
