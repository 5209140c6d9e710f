#!/usr/bin/env python3
"""Measures what tuning is for: the seconds of training until a return is reached.

Claim: a run that `gmi-drl tune` has tuned reaches the return that the config as given has at its
end in 0.7 of the seconds, as the median of tasks, and on none in more than 1.05; and its regret
against the best of a small grid measured in full is 10 % or less in the median.

Each task is an example of ours with one GMI and 16 environments, and is trained in five ways:

    given      as it is
    learning   tuned with the default options
    steps      tuned for throughput alone (objective steps, keep none)
    paper      the same by Algorithm 2
    grid       1 or 2 GMIs with 8 to 64 environments, the samples of an update kept by the horizon

The ways take turns, a seed a round, so that a machine that slows down slows all. The learning rate
falls until the end of a run, so each way trains for as many steps as it does in the seconds that
the config as given took, times --factor; its throughput is that of a short run before. A run that
has not reached the return by then counts with all its seconds, and is marked (`censored`).

Everything measured goes to the file --raw; what is in it is not measured again, and a measurement
that is ended (Ctrl-C, --minutes) continues when it is called again.

Rows: `<task>/<way>`: value seconds to the target, peer those of the config as given, ratio peer
over value, `over_given` value over peer; `<task>/grid`: its best, and the rank correlation of
predicted and measured times; `<task>/prediction`: value how far predicted times are from measured
ones (root mean square of their logarithms), peer the same by the noise scale that was measured;
`median/<way>`: value the median over tasks of `over_given`. The
picture goes to docs/tuning/. Exit code 1 where something is missing or failed.

    bench/selector/learning.py --minutes 120         # and again, until nothing is missing
    bench/selector/learning.py --tasks CartPole-v1 --seeds 1 --ways given learning --dry \\
        --raw /tmp/raw.jsonl --pictures /tmp/pictures
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checkout import ROOT
from grid import nothing_cached, two_cores
from learning_picture import draw
from learning_raw import GIVEN, Length, RawFile, TrainingRun, TuneRun
from learning_rows import GIVEN_SHAPE, GRID, TUNED, bound_of, measured_on, rows_of, way_of
from modes import launched, lines_of
from report import RESULTS, commit, emit, machine, parser, say

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.placement import load_config
from gmi_drl.selector.tune.candidate import Candidate, DeviceSplit, shape_text
from gmi_drl.selector.tune.keep import update_of
from gmi_drl.selector.tune.space import config_of
from gmi_drl.selector.tune.tuning import tune

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A task as given: the settings of an example, and the number of steps."""

    example: str
    steps: int


TASKS: Final = {
    "CartPole-v1": Task("cartpole", 100_000),
    "Pendulum-v1": Task("pendulum", 200_000),
    "HalfCheetah-v5": Task("halfcheetah", 600_000),
    "Hopper-v5": Task("halfcheetah", 600_000),
    "Walker2d-v5": Task("halfcheetah", 600_000),
    "Ant-v5": Task("ant", 300_000),
}
OVERRIDES: Final = {  # of each way that is tuned
    "learning": [],
    "steps": ["tune.objective=steps", "tune.keep=none"],
    "paper": ["tune.algorithm=paper", "tune.objective=steps", "tune.keep=none"],
}
WAYS: Final = (GIVEN, *TUNED, "grid")
PICTURES: Final = ROOT / "docs" / "tuning"
RAW: Final = RESULTS / "raw" / "learning_time.jsonl"
_SHORT: Final = 15  # a run for a way's throughput takes this fraction of the task's steps
_UPDATES: Final = 4  # but at least so many updates


def given_of(task: str, steps: int | None = None) -> Config:
    """Returns the config as a user would write it: an example with 1 GMI and 16 environments."""
    settings = TASKS[task]
    gmis, num_env, _ = GRID[GIVEN_SHAPE]
    overrides = [
        f"env.id={task}", f"env.num_env={num_env}", f"layout.gmi_per_gpu={gmis}",
        "layout.template=tcg_ex", f"run.total_steps={steps or settings.steps}",
        "run.eval_episodes=0", "run.checkpoint_every=0", "hardware.backend=cpu",
        "hardware.num_gpus=1", f"hardware.cores={two_cores()}",
    ]  # fmt: skip
    config = load_config(ROOT / "examples" / f"{settings.example}.yaml", overrides)
    return config.model_dump(mode="json", exclude_unset=True)


def shape_of(config: Config) -> dict[str, int]:
    """Returns the settings that tuning can change, and the samples of an update."""
    job = load_config(config)
    gmis, num_env, algorithm = job.layout.gmi_per_gpu, job.env.num_env, job.algorithm
    return {
        "gmi_per_gpu": gmis,
        "num_env": num_env,
        "horizon": algorithm.horizon,
        "minibatches": algorithm.minibatches,
        "samples": gmis * num_env * algorithm.horizon,
    }


def resized(given: Config, gmis: int, num_env: int, grown: bool) -> Config:
    """Returns a config with other sizes, as the tuner would write it."""
    config = load_config(given)
    update = update_of(config, find_devices(config), gmis, num_env, grown=grown)
    sizes = (num_env, update.horizon, update.samples, update.changes)
    candidate = Candidate(DeviceSplit(gmis, "cpu", grown=grown), *sizes)
    return config_of(config, candidate).model_dump(mode="json", exclude_unset=True)


def grid_of(given: Config) -> dict[str, Config]:
    """Returns the grid's configs without the one as given."""
    return {
        way_of(shape): resized(given, *sizes)
        for shape, sizes in GRID.items() if shape != GIVEN_SHAPE
    }  # fmt: skip


def changed(config: Config, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config with some keys of some sections changed."""
    return {**config, **{name: {**config.get(name, {}), **new} for name, new in sections.items()}}


def tuned(task: str, way: str, given: Config, budget_s: float) -> TuneRun:
    """Tunes a task from nothing, as a user would, with the overrides of a way."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        output = Path(folder, "tuned.yaml")
        overrides = OVERRIDES[way]
        result = tune(
            given, overrides=overrides, budget=budget_s, output=output, again=True, view="none"
        )
        config, predicted = result.config.model_dump(mode="json"), result.recorded.prediction
    seconds, winner = round(time.monotonic() - began, 1), result.chosen.winner
    chosen = f"{shape_text(winner)}, horizon {winner.horizon}: {result.steps_per_s:,.0f} steps/s"
    prediction = None if predicted is None else asdict(predicted)
    return TuneRun(task, way, config, seconds, chosen, prediction)


def length_of(task: str, way: str, config: Config, given: TrainingRun, factor: float) -> Length:
    """Measures how many steps a way takes in `factor` times the seconds of the config as given."""
    steps = max(given.steps // _SHORT, _UPDATES * shape_of(config)["samples"])
    short = changed(config, run={"total_steps": steps, "target_return": None})
    rate = launched(short)["training_samples_per_s"]
    return Length(task, way, round(rate * given.seconds * factor), round(rate, 1))


def train(
    task: str, way: str, seed: int, config: Config, total_steps: int, until: float | None = None
) -> TrainingRun:
    """Trains a seed to its end, or until it has the return `until`."""
    run = {"seed": seed, "total_steps": total_steps, "target_return": until, "eval_episodes": 0,
           "checkpoint_every": 0, "log_every": 1}  # fmt: skip
    began = time.monotonic()
    lines = lines_of(changed(config, run=run), -1)
    reached = until is not None and (lines[-1]["return_mean"] or -math.inf) >= until
    if lines[-1]["steps"] < total_steps and not reached:
        raise KeyboardInterrupt  # the run was asked to stop, and so are we
    points = [
        (round(line["time_s"], 3), line["steps"], round(line["return_mean"], 3))
        for line in lines
        if line["return_mean"] is not None
    ]
    noise = [scale for line in lines if (scale := line.get("noise_scale")) is not None]
    return TrainingRun(
        task=task,
        way=way,
        seed=seed,
        shape=shape_of(config),
        steps=lines[-1]["steps"],
        seconds=lines[-1]["time_s"],
        wall_s=round(time.monotonic() - began, 1),
        points=tuple(points),
        noise_scale=statistics.median(noise) if noise else None,
        ended_early=reached,
        machine=machine(),
        commit=commit(),
    )


class OutOfTime(Exception):
    """The minutes of --minutes are over."""


class Measurement:
    """Measures what the raw file lacks, and adds it line by line."""

    def __init__(self, raw: RawFile, options: argparse.Namespace) -> None:
        self.raw, self.options = raw, options
        self.failed: list[str] = []
        self._end = time.monotonic() + 60 * options.minutes
        self._total = len(missing(raw, options))
        self._durations_s: list[float] = []  # seconds of the training runs of this measurement

    def run(self) -> None:
        """Measures task after task until nothing is missing or the minutes are over."""
        try:
            for task in self.options.tasks:
                self._task(task)
        except OutOfTime:
            say(f"{self.options.minutes:g} minutes are over")

    def _task(self, task: str) -> None:
        configs = self._configs(task)
        for seed in range(self.options.seeds):
            began, runs_before = time.monotonic(), len(self._durations_s)
            for way, config in configs.items():
                if self.raw.run(task, way, seed) is None:
                    self._attempt(f"{task} {way} seed {seed}", self._run, task, way, seed, config)
            if len(self._durations_s) > runs_before:
                say(f"{task}: round {seed + 1} took {time.monotonic() - began:.0f} s")

    def _configs(self, task: str) -> dict[str, Config]:
        """Tunes what is not tuned, and returns the config of each way, the one as given first."""
        given = given_of(task, self.options.steps)
        configs = {GIVEN: given}
        for way in (way for way in TUNED if way in self.options.ways):
            if self.raw.tune(task, way) is None:
                self._attempt(f"{task} tune {way}", self._tune, task, way, given)
            if (tune_run := self.raw.tune(task, way)) is not None:
                configs[way] = tune_run.config
        if "grid" in self.options.ways:
            configs |= grid_of(given)
        return configs

    def _attempt(self, name: str, measure: Any, *arguments: Any) -> None:
        """Takes one measurement; a failure is reported, and the others still run."""
        if time.monotonic() > self._end:
            raise OutOfTime
        try:
            measure(*arguments)
        except (GmiDrlError, SystemExit) as error:  # the latter: a run without metrics
            self.failed.append(name)
            say(f"{name}: FAILED: {error}")

    def _tune(self, task: str, way: str, given: Config) -> None:
        tune_run = tuned(task, way, given, self.options.budget)
        self.raw.add(tune_run)
        say(f"{task} tune {way}: {tune_run.seconds:.0f} s, {tune_run.chosen}")

    def _run(self, task: str, way: str, seed: int, config: Config) -> None:
        began = time.monotonic()
        total_steps = self.options.steps or TASKS[task].steps
        if way != GIVEN:
            length = self.raw.length(task, way)
            if length is None:
                given_run = next((run for run in self.raw.runs if _is_given(run, task)), None)
                if given_run is None:
                    raise SystemExit("the config as given has no run to go by")
                length = length_of(task, way, config, given_run, self.options.factor)
                self.raw.add(length)
            total_steps = length.total_steps
        # Returns of a grid's runs are not reported, so a run ends when it has certainly reached the
        # target.
        until = None
        if way in GRID:
            given_runs = [run for run in self.raw.runs if _is_given(run, task)]
            until = bound_of(given_runs, self.options.seeds)
        run = train(task, way, seed, config, total_steps, until)
        self.raw.add(run)
        self._durations_s.append(time.monotonic() - began)
        outcome = "no episode" if run.return_end is None else f"return {run.return_end:,.1f}"
        ended = ", as early as it may" if run.ended_early else ""
        say(
            f"{task} {way:<8} seed {seed}: {run.seconds:5.1f} s, {run.steps_per_s:>8,.0f} steps/s, "
            f"{outcome}{ended}; {self._progress()}"
        )

    def _progress(self) -> str:
        remaining = len(missing(self.raw, self.options))
        duration = timedelta(seconds=int(remaining * statistics.fmean(self._durations_s)))
        return f"{self._total - remaining} of {self._total}, about {duration} to go"


def _is_given(run: TrainingRun, task: str) -> bool:
    return (run.task, run.way) == (task, GIVEN)


def missing(raw: RawFile, options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Returns task, way and seed of requested training runs that are not in the raw file."""
    ways = [way for way in (GIVEN, *TUNED) if way in options.ways]
    if "grid" in options.ways:
        ways += [way_of(shape) for shape in GRID if shape != GIVEN_SHAPE]
    measured = {(run.task, run.way, run.seed) for run in raw.runs}
    wanted = [
        (task, way, seed) for task in options.tasks for seed in range(options.seeds) for way in ways
    ]
    return [key for key in wanted if key not in measured]


def tell_missing(raw: RawFile, options: argparse.Namespace) -> bool:
    """Reports what is missing, and tells whether anything is."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for task, way, seed in missing(raw, options):
        seeds.setdefault((task, way), []).append(seed)
    for (task, way), missing_seeds in seeds.items():
        tuning = way in TUNED and raw.tune(task, way) is None
        say(f"missing: {task} {way}: seeds {missing_seeds}{', and its tune' if tuning else ''}")
    if seeds:
        say(f"call it again to go on: what is done is in {raw.path}")
    return bool(seeds)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options from the command line."""
    options_of = parser(__doc__)
    add = options_of.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    add("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add("--seeds", type=int, default=5, help="how many: 0, 1, 2 ...")
    add("--budget", type=float, default=300.0, help="seconds of each tune")
    add("--factor", type=float, default=1.1, help="of the seconds as given, a run")
    add("--steps", type=int, help="instead of the task's own, for a trial")
    add("--minutes", type=float, default=1e6, help="after which it begins no run")
    add("--raw", type=Path, default=RAW, help="what was measured, a line each")
    add("--rows-only", action="store_true", help="measure nothing")
    add("--pictures", type=Path, help="folder for learning.png and .svg")
    add("--dry", action="store_true", help="print the rows, keep none")
    options = options_of.parse_args(arguments)
    if options.pictures is None and not options.dry:
        options.pictures = PICTURES
    if GIVEN not in options.ways:
        options_of.error("--ways: all others are held against `given`; add it.")
    if options.factor < 1 or options.seeds < 1:
        options_of.error("--factor and --seeds must be at least 1.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, unless --rows-only, and emits; returns 1 if anything is missing or failed."""
    options = parse(arguments)
    shared = {"seeds": options.seeds, "factor": options.factor, "budget_s": options.budget,
             "steps": options.steps}  # fmt: skip
    raw = RawFile(options.raw, None if options.rows_only else shared)
    options.seeds = raw.options["seeds"]
    failed: list[str] = []
    if not options.rows_only and missing(raw, options):
        with nothing_cached():
            measurement = Measurement(raw, options)
            measurement.run()
            failed = measurement.failed
    for row in rows_of(raw, list(TASKS)):  # of all that was measured, now or before
        emit("learning_time", **row, dry=options.dry)
        if "holds" in row:
            say(f"    the claim {'holds' if row['holds'] else 'does not hold'}")
    if options.pictures is not None:
        draw(raw, list(TASKS), options.pictures, measured_on(raw, list(TASKS)))
    return 1 if tell_missing(raw, options) or failed else 0


if __name__ == "__main__":
    sys.exit(main())
