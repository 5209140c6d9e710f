#!/usr/bin/env python3
"""Compares what `gmi-drl tune` chooses on real cores with the whole grid of the same run.

Claim: with a quarter of the grid's profiles (eight, where that is more) the search finds a setting
whose training throughput is within 5 % of the grid's best, and well above that of a plain user (one
process, num_env 64). It does so in no more seconds than the grid takes: not in a quarter of them,
as a profile of the search lasts up to 32 s where answers are noisy, one of the grid 4 s at most.

For each task every candidate is measured (the grid); then `tune` chooses by each search, from
nothing and with profiles of its own; then what it chose, the best of the grid (TOPS of them) and
the plain start are measured again in turn, round after round, so that a machine that slows down
slows all of them and a lucky measurement of the grid is no yardstick. All by the profiler of
`tune`, on two cores, backend cpu.

The ranges of `num_env` are given, so that a grid takes minutes; a user who gives none has 4 to
4,096, and the same eight to ten profiles. `--range 4 4096` measures that (add `--minutes 30`).

Rows: `real/<task>`: value steps/s of what `default` chose, peer those of the grid's best, ratio the
median over rounds of both in a round; `paper` holds the same of Algorithm 2.

    bench/selector/grid.py --rounds 5 --pictures docs/tuning
    bench/selector/grid.py --tasks cartpole --range 32 64 --seconds 0.5 --rounds 1 --dry
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import emit, parser, ratios_of, say, spread_of

from gmi_drl import runtime
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import Config, load_config
from gmi_drl.selector.errors import TuneError
from gmi_drl.selector.record import record
from gmi_drl.selector.record.results import PLAIN
from gmi_drl.selector.tune.candidate import (
    Answer,
    Ask,
    Candidate,
    Failed,
    Measured,
    Space,
    candidate_text,
)
from gmi_drl.selector.tune.profile.profiler import Profiler
from gmi_drl.selector.tune.space import space_of
from gmi_drl.selector.tune.tuning import tune

TASKS: Final = {
    "ant": ("Ant-v5", "ant", (4, 128)),
    "humanoid": ("Humanoid-v5", "humanoid", (4, 128)),
    "cartpole": ("CartPole-v1", [64, 64], (16, 1024)),
}
SEARCHES: Final = ("default", "paper")
TOPS: Final = 4  # the fastest of the grid, which are measured again
Rates: TypeAlias = dict[Candidate, list[float]]  # steps/s, round by round


def job_of(task: str, search: str, limits: Sequence[int], budget_s: float) -> Config:
    """Returns a training job in which num_env and the number of GMIs are open."""
    env, network, _ = TASKS[task]
    return load_config(
        {
            "version": 1,
            "run": {"name": task},
            "env": {"id": env, "num_env": "auto"},
            "algorithm": {"network": network, "horizon": 16, "minibatches": 4, "epochs": 4},
            "hardware": {"backend": "cpu", "num_gpus": 1, "cores": two_cores()},
            "layout": {"template": "tcg_ex", "gmi_per_gpu": "auto"},
            "tune": {
                "objective": "steps",
                "keep": "none",
                "algorithm": search,
                "budget_s": budget_s,
                "min_num_env": limits[0],
                "max_num_env": limits[1],
            },
        }
    )


def two_cores() -> list[int]:
    """Returns the two cores that everything runs on."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for each of two GMIs.")
    return cores[:2]


@contextlib.contextmanager
def nothing_cached() -> Iterator[None]:
    """Starts the runtime with an empty cache, so that no earlier measurement is used."""
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        runtime.init(PRELOAD)
        yield


@dataclass(frozen=True)
class Played:
    """Holds the result of a `tune`."""

    winner: Candidate
    complete: bool  # the budget did not end it
    profiles: int
    seconds: float  # of the clock, in total
    pictures: list[Path]


def play(config: Config, folder: Path) -> Played:
    """Runs `gmi-drl tune` from nothing; it leaves its files in `folder`."""
    began = time.monotonic()
    result = tune(config, output=folder / "tuned.yaml", again=True, view="none")
    seconds, profiles = time.monotonic() - began, record.read(result.record).profiles
    chosen = result.chosen
    return Played(chosen.winner, chosen.complete, len(profiles), seconds, result.pictures)


class Stage:
    """Measures candidates of one task until its minutes are over, and prints each result."""

    def __init__(self, task: str, profiler: Profiler, space: Space, minutes: float) -> None:
        self._task, self._profiler = task, profiler
        self._rows = [candidates[0].row for candidates in space.rows]
        self._deadline = time.monotonic() + 60 * minutes

    def text(self, candidate: Candidate) -> str:
        return candidate_text(candidate, self._rows)

    def __call__(self, ask: Ask) -> Answer:
        if time.monotonic() > self._deadline:
            say(f"{self._task}: out of time")
            return None
        answer = self._profiler(ask)
        outcome = f"failed ({answer.reason}): {answer.text}" if isinstance(answer, Failed) else ""
        if isinstance(answer, Measured):
            outcome = f"{answer.steps_per_s:>9,.0f} steps/s ± {100 * answer.error:.1f} %"
        say(f"  {self._task:<9} {self.text(ask.candidate):<22} {outcome}")
        return answer


def whole(space: Space, seconds: float, stage: Stage) -> dict[Candidate, Measured | Failed]:
    """Measures the whole grid: every candidate once, the rows in turn."""
    answers: dict[Candidate, Measured | Failed] = {}
    longest = max(map(len, space.rows))
    for candidate in (row[i] for i in range(longest) for row in space.rows if i < len(row)):
        answer = stage(Ask(candidate, seconds))
        if answer is None:
            break
        answers[candidate] = answer
    return answers


def confirm(candidates: Sequence[Candidate], seconds: float, rounds: int, stage: Stage) -> Rates:
    """Returns steps/s of each candidate in each round that all of them finished."""
    rates: Rates = {candidate: [] for candidate in candidates}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        answers = {candidate: stage(Ask(candidate, seconds)) for candidate in candidates}
        if all(isinstance(answer, Measured) for answer in answers.values()):
            for candidate, answer in answers.items():
                rates[candidate].append(answer.steps_per_s)
    return rates


def measure(task: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Measures a task, and returns its row; None if it could not be finished."""
    limits = options.range or TASKS[task][2]
    config = job_of(task, "default", limits, options.budget)
    space, held = space_of(config, find_devices(config))
    stage = Stage(task, Profiler(config), space, options.minutes)
    say(f"{task}: the grid, {space.size} candidates")
    began = time.monotonic()
    grid = whole(space, options.seconds, stage)
    grid_s = time.monotonic() - began
    try:
        played = {name: tuned(task, name, limits, options, stage) for name in options.searches}
    except TuneError as error:
        say(f"{task}: {error}")
        return None
    measured = {c: a for c, a in grid.items() if isinstance(a, Measured)}
    fastest = sorted(measured, key=lambda c: measured[c].steps_per_s, reverse=True)[:TOPS]
    plain = plain_of(space)
    winners = [search.winner for search in played.values()]
    entries = list(dict.fromkeys([*winners, *fastest, plain]))
    say(f"{task}: {' / '.join(map(stage.text, entries))}: again, in turn")
    rates = confirm(entries, options.confirm_seconds, options.rounds, stage)
    if not fastest or not all(rates.values()):
        say(f"{task}: not one round was ended by all; give it more --minutes")
        return None
    best = max(fastest, key=lambda c: statistics.median(rates[c]))
    fields = {name: told(search, rates, best, plain, stage) for name, search in played.items()}
    ours = rates[played["default"].winner]
    return {
        "name": f"real/{task}",
        "value": round(statistics.median(ours), 1),
        "unit": "steps/s",
        "peer": round(statistics.median(rates[best]), 1),
        "repeats": len(ours),
        "spread": spread_of(ours),
        **fields.pop("default"),
        "best": stage.text(best),
        "grid_profiles": len(grid),
        "grid_complete": len(grid) == space.size,
        "seconds_grid": round(grid_s, 1),
        "plain_start": stage.text(plain),
        "confirmed": {stage.text(c): [round(r, 1) for r in values] for c, values in rates.items()},
        **fields,
        "held": held,
        "grid": [point(candidate, answer) for candidate, answer in grid.items()],
    }


def tuned(
    task: str, search: str, limits: Sequence[int], options: argparse.Namespace, stage: Stage
) -> Played:
    """Tunes with a search; the pictures of `default` are copied to --pictures."""
    say(f"{task}: tune, algorithm {search}")
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        result = play(job_of(task, search, limits, options.budget), Path(folder))
        if options.pictures is not None and search == "default":
            (options.pictures / task).mkdir(parents=True, exist_ok=True)
            for path in result.pictures:
                say(f"  {shutil.copy(path, options.pictures / task)}")
    say(f"  {stage.text(result.winner)}: {result.profiles} profiles, {result.seconds:.0f} s")
    return result


def told(
    result: Played, rates: Rates, best: Candidate, plain: Candidate, stage: Stage
) -> dict[str, Any]:
    """Compares what a search chose with the best and the plain start of the same rounds."""
    ratios, over_plain = (ratios_of(rates[result.winner], rates[other]) for other in (best, plain))
    ratio = statistics.median(ratios)
    return {
        "ratio": round(ratio, 4),
        "ratio_spread": spread_of(ratios, 4),
        "regret": round(1 - ratio, 4),
        "chosen": stage.text(result.winner),
        "profiles": result.profiles,
        "seconds_tune": round(result.seconds, 1),
        "gain_over_default": round(statistics.median(over_plain), 3),
        "complete": result.complete,
    }


def plain_of(space: Space) -> Candidate:
    """Returns the candidate nearest to one GMI with PLAIN environments, a plain user's choice."""
    candidates = [candidate for row in space.rows for candidate in row]
    return min(candidates, key=lambda c: (c.row.gmi_per_gpu, abs(c.num_env - PLAIN)))


def point(candidate: Candidate, answer: Measured | Failed) -> dict[str, Any]:
    """Returns one point of the grid as fields."""
    fields = {"gmi_per_gpu": candidate.row.gmi_per_gpu, "num_env": candidate.num_env}
    return fields | {k: v for k, v in asdict(answer).items() if v is not None}


def parse() -> argparse.Namespace:
    """Returns the options from the command line."""
    options_of = parser(__doc__)
    add = options_of.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    add("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    add("--rounds", type=int, default=5, help="of measuring the best few again")
    add("--seconds", type=float, default=4.0, help="of a profile, at most")
    add("--confirm-seconds", type=float, default=6.0, help="of one in a round")
    add("--budget", type=float, default=300.0, help="seconds of each tune")
    add("--minutes", type=float, default=12.0, help="of one task, at most")
    add("--range", type=int, nargs=2, metavar=("LEAST", "MOST"), help="num_env of the grid")
    add("--pictures", type=Path, help="folder for <task>/tuning.png and .svg, as tune draws them")
    add("--dry", action="store_true", help="print the rows, keep none")
    options = options_of.parse_args()
    if "default" not in options.searches:
        options_of.error("--searches: the rows are about `default`; add it.")
    return options


def main() -> int:
    """Measures and reports; returns 1 if a task could not be finished."""
    options = parse()
    with nothing_cached():
        rows = [row for task in options.tasks if (row := measure(task, options)) is not None]
    for row in rows:
        emit("selector", **row, dry=options.dry)
    return 0 if len(rows) == len(options.tasks) else 1


if __name__ == "__main__":
    sys.exit(main())
