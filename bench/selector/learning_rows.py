"""Computes the rows of learning.py from the runs in its raw file. Nothing is measured here.

The *target* of a task is the return that the median seed of the config as given has at its end. A
run that never reaches it is *censored*: it takes its own seconds at least. So does a median that
lies among such runs, and every ratio that is made of it: `censored` says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from learning_raw import GIVEN, RawFile, TrainingRun

from gmi_drl.selector.tune.efficiency import Prediction

TUNED: Final = ("learning", "steps", "paper")
# A small grid: GMIs on the device x num_env of each, and whether updates grow with them (a +) or
# keep their samples. The config as given is one of its points.
_KEPT: Final = ((1, 16), (1, 32), (2, 8), (2, 16), (2, 32))
_GROWN: Final = ((1, 64), (2, 16), (2, 32), (2, 64))
GRID: Final = {
    f"{gmis}x{num_env}{'+' * grown}": (gmis, num_env, grown)
    for grown, points in ((False, _KEPT), (True, _GROWN))
    for gmis, num_env in points
}
GIVEN_SHAPE: Final = "1x16"
# The claim, of `learning`: over the seconds of the config as given, and against the grid's best.
MEDIAN: Final = 0.7
WORST: Final = 1.05
REGRET: Final = 0.1
_CONSTANTS: Final = (1, 2, 3, 4, 8)  # noise scales in updates, within their bounds
_ROUNDS: Final = 50
_LENGTHS: Final = {"1M": 1_000_000, "10M": 10_000_000}  # steps, as given, that tuning is to pay for


@dataclass(frozen=True)
class TimeToReturn:
    """Seconds of training until the target; a lower bound if censored."""

    seconds: float
    censored: bool

    def over(self, other: TimeToReturn) -> float:
        """Returns these seconds over those of another; bounds are taken as values."""
        return self.seconds / other.seconds


def time_to(run: TrainingRun, target: float) -> TimeToReturn:
    """Returns when a run first had this return; the whole run if it never had, censored."""
    at_s = next((at_s for at_s, _, mean in run.points if mean >= target), None)
    return TimeToReturn(run.seconds, True) if at_s is None else TimeToReturn(at_s, False)


def median_of(times: Sequence[TimeToReturn]) -> TimeToReturn:
    """Returns the median; a lower bound if it lies among censored times."""
    exact = statistics.median(math.inf if time.censored else time.seconds for time in times)
    if math.isfinite(exact):
        return TimeToReturn(exact, False)
    return TimeToReturn(statistics.median(time.seconds for time in times), True)


def target_of(given: Iterable[TrainingRun]) -> float | None:
    """Returns the final return of the median seed (the lower one of an even number of seeds)."""
    ends = [run.return_end for run in given if run.return_end is not None]
    return statistics.median_low(ends) if ends else None


def bound_of(given: Iterable[TrainingRun], seeds: int) -> float | None:
    """Returns a bound that the target of `seeds` seeds cannot exceed, whatever the others reach.

    It is None while too few have ended. The k-th lowest of some is not below that of all.
    """
    ends = sorted(run.return_end for run in given if run.return_end is not None)
    middle = (seeds - 1) // 2
    return ends[middle] if len(ends) > middle else None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Returns Spearman's rank correlation, ties sharing their rank; None where it is undefined."""
    if len(first) < 3:
        return None
    try:
        return round(statistics.correlation(_ranks(first), _ranks(second)), 4)
    except statistics.StatisticsError:  # all values of one side are equal
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """Returns the rank of each value; equal values share the mean of their ranks."""
    return [
        sum(other < value for other in values) + sum(other == value for other in values) / 2
        for value in values
    ]


@dataclass(frozen=True)
class WayResult:
    """Holds the outcome of the seeds of one way."""

    runs: Sequence[TrainingRun]
    times: Sequence[TimeToReturn]
    median: TimeToReturn

    @classmethod
    def of(cls, runs: Sequence[TrainingRun], target: float) -> WayResult:
        times = [time_to(run, target) for run in runs]
        return cls(runs, times, median_of(times))

    @property
    def steps_per_s(self) -> float:
        return statistics.median(run.steps_per_s for run in self.runs)

    @property
    def seconds(self) -> float:
        """Returns the seconds of a whole run."""
        return statistics.median(run.seconds for run in self.runs)

    def return_at(self, seconds: float) -> float | None:
        """Returns the median return after `seconds`, over runs that did not end early."""
        lines = [
            [mean for at_s, _, mean in run.points if at_s <= seconds]
            for run in self.runs
            if not run.ended_early
        ]
        ends = [line[-1] for line in lines if line]
        return round(statistics.median(ends), 2) if ends else None


def rows_of(raw: RawFile, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the fields of all rows: those of each task, then the medians over tasks."""
    rows: list[dict[str, Any]] = []
    judged: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        for row in task_rows(raw, task):
            rows.append({**row, "machine": measured_on(raw, [task])})
            judged.setdefault(row["name"].partition("/")[2], []).append(row)
    task_count, seeds = len(tasks), raw.options["seeds"]
    medians = [median_row(way, judged[way], task_count, seeds) for way in TUNED if way in judged]
    return rows + [{**row, "machine": measured_on(raw, tasks)} for row in medians]


def measured_on(raw: RawFile, tasks: Sequence[str]) -> str:
    """Names the machines that tasks were trained on, which may not be this one."""
    return " and ".join(sorted({run.machine for run in raw.runs if run.task in tasks}))


def task_rows(raw: RawFile, task: str) -> list[dict[str, Any]]:
    """Returns the rows of a task: as given, each tuned way, the grid; [] if there is no target."""
    runs: dict[str, list[TrainingRun]] = {}
    for run in raw.runs:
        if run.task == task:
            runs.setdefault(run.way, []).append(run)
    target = target_of(runs.get(GIVEN, ()))
    if target is None:
        return []
    ways = {way: WayResult.of(way_runs, target) for way, way_runs in runs.items()}
    tune = raw.tune(task, "learning")
    fields = None if tune is None else tune.prediction
    prediction = None if fields is None else replace(Prediction(**fields), noise_scale=None)
    grid = {shape: ways[way] for shape in GRID if (way := way_of(shape)) in ways}
    best = min(grid, key=lambda shape: (grid[shape].median.censored, grid[shape].median.seconds))
    rows = [
        {
            "name": f"{task}/{way}",
            **_compared(ways[way], ways[GIVEN]),
            **_regret(ways[way], grid[best], complete=len(grid) == len(GRID)),
            **_tuning(raw, task, way, ways),
            "target_return": round(target, 2),
        }
        for way in (GIVEN, *TUNED)
        if way in ways
    ]
    tuned = {way: ways[way] for way in TUNED if way in ways}
    if len(grid) > 1:
        rows.append(
            {
                "name": f"{task}/grid",
                **_compared(grid[best], ways[GIVEN]),
                "best": best,
                "complete": len(grid) == len(GRID),
                "target_return": round(target, 2),
                **(_predicted(grid, tuned, prediction) if prediction is not None else {}),
            }
        )
    if prediction is not None and len(ways) > 2:
        rows.append({"name": f"{task}/prediction", **_errors(ways, prediction)})
    return rows


def way_of(shape: str) -> str:
    """Returns the way that a point of the grid is trained in."""
    return GIVEN if shape == GIVEN_SHAPE else shape


def _compared(result: WayResult, given: WayResult) -> dict[str, Any]:
    """Compares a way with the config as given, whose time to its own target is the peer."""
    seconds, peer = result.median, given.median
    times = [time.seconds for time in result.times]
    ratio = seconds.over(peer)
    return {
        "value": round(seconds.seconds, 2),
        "unit": "s",
        "peer": None if result is given else round(peer.seconds, 2),
        "ratio": None if result is given else round(1 / ratio, 4),
        "repeats": len(times),
        "spread": [round(min(times), 2), round(max(times), 2)],
        "censored": seconds.censored,
        "reached": sum(not time.censored for time in result.times),
        "over_given": round(ratio, 4),
        "over_given_spread": [round(s / peer.seconds, 4) for s in (min(times), max(times))],
        "over_given_run": round(seconds.seconds / given.seconds, 4),
        "steps_per_s": round(result.steps_per_s, 1),
        "return_then": result.return_at(given.seconds),  # when the config as given has ended
        "return_end": result.return_at(math.inf),
        "shape": dict(result.runs[0].shape),
        "commits": sorted({run.commit for run in result.runs}),
    }


def _regret(result: WayResult, best: WayResult, complete: bool) -> dict[str, Any]:
    """Returns by how much a way is slower than the grid's best; {} for an incomplete grid."""
    if not complete:
        return {}
    regret = result.median.over(best.median) - 1
    return {"best_of_grid_s": round(best.median.seconds, 2), "regret": round(regret, 4)}


def _tuning(raw: RawFile, task: str, way: str, ways: Mapping[str, WayResult]) -> dict[str, Any]:
    """Returns the cost of tuning, also over the seconds that it saves long runs (None: none)."""
    tune = raw.tune(task, way)
    if tune is None:
        return {}
    saved = 1 - ways[way].median.over(ways[GIVEN].median)
    run_s = {name: steps / ways[GIVEN].steps_per_s for name, steps in _LENGTHS.items()}
    return {
        "chosen": tune.chosen,
        "seconds_tune": round(tune.seconds, 1),
        "tune_over_saved": {
            name: round(tune.seconds / (seconds * saved), 4) if saved > 0 else None
            for name, seconds in run_s.items()
        },
    }


def _predicted(
    grid: Mapping[str, WayResult], tuned: Mapping[str, WayResult], prediction: Prediction
) -> dict[str, Any]:
    """Compares predicted with measured times, over the grid and with the tuned ways.

    Predictions are up to a factor that all settings of a task share.
    """
    results = [*grid.values(), *tuned.values()]
    expected = [_expected(result, prediction) for result in results]
    measured = [math.inf if result.median.censored else result.median.seconds for result in results]
    reference = expected[0]
    return {
        "rank_correlation": rank_correlation(expected[: len(grid)], measured[: len(grid)]),
        "rank_correlation_with_tuned": rank_correlation(expected, measured),
        "points": [
            {
                "name": name,
                "seconds": round(result.median.seconds, 2),
                "censored": result.median.censored,
                "predicted": round(value / reference, 4),  # over that of the first
                "steps_per_s": round(result.steps_per_s, 1),
                **result.runs[0].shape,
            }
            for name, result, value in zip([*grid, *tuned], results, expected, strict=True)
        ],
    }


def _expected(result: WayResult, prediction: Prediction) -> float:
    """Returns the predicted time to a return, up to a factor that all settings of a task share."""
    shape = result.runs[0].shape
    return 1 / prediction.goodput(result.steps_per_s, shape["samples"], shape["horizon"])


def _errors(ways: Mapping[str, WayResult], prediction: Prediction) -> dict[str, Any]:
    """Returns the errors of predicted times: as tuning predicts, and the peer by the noise scale.

    The peer's noise scale is measured by the runs of the config as given. `constants` has the
    errors for noise scales of these multiples of the config's own update.
    """
    scales = [run.noise_scale for run in ways[GIVEN].runs if run.noise_scale is not None]
    noise_scale = statistics.median(scales) if scales else None
    measured, own = replace(prediction, noise_scale=noise_scale), prediction.own_samples
    error, peer = prediction_error(ways.values(), prediction), None
    if noise_scale is not None:
        peer = prediction_error(ways.values(), measured)
    return {
        "value": round(error, 4),
        "unit": "log",
        "peer": None if peer is None else round(peer, 4),
        "ratio": None if peer is None else round(peer / error, 4),
        "repeats": len(ways),
        "spread": None,
        "noise_scale": noise_scale,
        "own_samples": own,
        "constants": {
            str(number): round(
                prediction_error(ways.values(), replace(prediction, noise_scale=number * own)), 4
            )
            for number in _CONSTANTS
        },
    }


def prediction_error(results: Iterable[WayResult], prediction: Prediction) -> float:
    """Returns the root mean square of log(measured / predicted time), up to their shared factor.

    A censored time is off by what its bound exceeds the prediction.
    """
    pairs = [
        (math.log(result.median.seconds / _expected(result, prediction)), result.median.censored)
        for result in results
    ]
    shared = statistics.fmean(log for log, censored in pairs if not censored)
    for _ in range(_ROUNDS):  # censored times predicted beyond their bound have no error
        shared = statistics.fmean(max(log, shared) if censored else log for log, censored in pairs)
    deviations = [max(log - shared, 0.0) if censored else log - shared for log, censored in pairs]
    return math.sqrt(statistics.fmean(deviation * deviation for deviation in deviations))


def median_row(
    way: str, rows: Sequence[Mapping[str, Any]], tasks: int, seeds: int
) -> dict[str, Any]:
    """Returns the row of a way over tasks: the median and range of `over_given`, and the regret.

    The claim holds only when all `tasks` have a row of all `seeds`.
    """
    overs = [TimeToReturn(row["over_given"], row["censored"]) for row in rows]
    middle, longest = median_of(overs), max(time.seconds for time in overs)
    regrets = [row["regret"] for row in rows if "regret" in row]
    regret = round(statistics.median(regrets), 4) if regrets else None
    fields: dict[str, Any] = {
        "name": f"median/{way}",
        "value": round(middle.seconds, 4),
        "unit": "of given",
        "peer": 1.0,
        "ratio": round(1 / middle.seconds, 4),
        "repeats": len(overs),
        "spread": [round(min(time.seconds for time in overs), 4), round(longest, 4)],
        "censored": middle.censored,
        "reached": sum(not time.censored for time in overs),
        "regret": regret,
        "seeds": seeds,
    }
    if way == "learning":
        fast = middle.seconds <= MEDIAN and not middle.censored
        bounded = all(time.seconds <= WORST and not time.censored for time in overs)
        near = len(regrets) == len(rows) and regret is not None and regret <= REGRET
        complete = len(rows) == tasks and all(row["repeats"] == seeds for row in rows)
        fields["holds"] = fast and bounded and near and complete
    return fields
