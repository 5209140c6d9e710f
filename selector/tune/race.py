"""Races the best few by steps/s for equal time (objective `reward`): the highest return wins.

The largest num_env makes fewer updates, so it is not the fastest learner. Two rounds: all for a
part of the time, then the better two, from the beginning again, for twice as long. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from gmi_drl.selector.record.record import TuneRecord, candidate_of
from gmi_drl.selector.record.results import results_of

from .algorithms.observations import usable
from .candidate import Candidate, Failed

FINALISTS: Final = 4
_LAST: Final = 2  # of the second round
_ALIKE: Final = 0.01  # returns that differ by less, of the best, are called the same
_SMALLER: Final = 0.5  # of a batch: less is one of another size


@dataclass(frozen=True)
class TrainingCurve:
    """(seconds of training, mean return of the last 100 episodes), as it rose."""

    points: tuple[tuple[float, float], ...]
    seconds: float  # that it trained; as asked, if it had done all its steps before


@dataclass(frozen=True)
class RaceScore:
    """Holds a finalist's return in a round, when all of that round had trained for so long."""

    round: int
    candidate: Candidate
    seconds: float
    return_mean: float | None  # None: no episode had ended, or the run has failed
    text: str = ""  # why it failed


@dataclass(frozen=True)
class RaceResult:
    """Holds how a race ended; `winner` is None when no return was seen that could decide it."""

    winner: Candidate | None
    why: str
    scores: tuple[RaceScore, ...] = ()


Train = Callable[[Candidate, float, int], TrainingCurve | Failed]  # for so many seconds, in round n


def finalists(record: TuneRecord, winner: Candidate) -> list[Candidate]:
    """Picks whom to race: the winner by steps/s, the fastest of ever smaller batches, others."""
    results = results_of(record.profiles)
    measured = {result.candidate: result.measured for result in results.all}
    fastest = usable(measured, results.failures)
    fastest.sort(key=lambda one: measured[one].steps_per_s, reverse=True)
    chosen = [winner]
    while len(chosen) < FINALISTS:
        limit = _SMALLER * min(one.samples for one in chosen)
        smaller = [one for one in fastest if one.samples <= limit]
        if not smaller:
            break
        chosen.append(smaller[0])
    for one in fastest:
        shapes = {(c.num_env, c.row.gmi_per_gpu) for c in chosen}
        if len(chosen) < FINALISTS and (one.num_env, one.row.gmi_per_gpu) not in shapes:
            chosen.append(one)
    return chosen


def race(candidates: Sequence[Candidate], train: Train, seconds: float) -> RaceResult:
    """Trains them with `seconds` for all together; the first stays where returns do not decide."""
    if len(candidates) < 2:
        return RaceResult(None, "there was no other candidate to race")
    first_s = seconds / 2 / len(candidates)
    scores: list[RaceScore] = []
    standing = _round(candidates, train, first_s, 1, scores)
    if len(standing) > 1:
        second = [candidate for candidate, _ in standing[:_LAST]]
        standing = _round(second, train, seconds / 2 / _LAST, 2, scores) or standing
    if not standing:
        why = f"no episode ended in {first_s:.0f} s of training: returns say nothing"
        return RaceResult(None, why, tuple(scores))
    best, value = standing[0]
    others = f", against {standing[1][1]:.1f} of the next" if standing[1:] else ""
    why = f"its return was {value:.1f} after equal time{others}"
    return RaceResult(best, why, tuple(scores))


def _round(
    candidates: Sequence[Candidate], train: Train, seconds: float, number: int,
    scores: list[RaceScore],
) -> list[tuple[Candidate, float]]:  # fmt: skip
    """Lists whose return was seen, best first, of alike ones the sooner; adds to `scores`."""
    runs = [(candidate, train(candidate, seconds, number)) for candidate in candidates]
    curves = [(one, run) for one, run in runs if isinstance(run, TrainingCurve)]
    equal_s = min((curve.seconds for _, curve in curves), default=0.0)
    for one, run in runs:
        if isinstance(run, Failed):
            scores.append(RaceScore(number, one, 0.0, None, run.text))
        else:
            scores.append(RaceScore(number, one, equal_s, return_at(run, equal_s)))
    standing = [
        (one, value, _mean_until(curve, equal_s))
        for one, curve in curves
        if (value := return_at(curve, equal_s)) is not None
    ]
    # At the ceiling of a task all are alike: who was there first had the higher return on the way.
    best = max((value for _, value, _ in standing), default=0.0)
    near = best - _ALIKE * abs(best)
    standing.sort(key=lambda s: (s[1] >= near, s[2] if s[1] >= near else s[1]), reverse=True)
    return [(one, value) for one, value, _ in standing]


def _mean_until(curve: TrainingCurve, seconds: float) -> float:
    """Averages the return over these seconds; before the first point it is that one's."""
    points = [point for point in curve.points if point[0] <= seconds]
    area, before_s, value = 0.0, 0.0, points[0][1]
    for at_s, now in points:
        area += (at_s - before_s) * value
        before_s, value = at_s, now
    area += (seconds - before_s) * value
    return area / seconds if seconds else value


def return_at(curve: TrainingCurve, seconds: float) -> float | None:
    """Returns the mean return when it had trained so long; None if no episode had ended."""
    return next((value for at_s, value in reversed(curve.points) if at_s <= seconds), None)


def scores_of(record: TuneRecord) -> list[RaceScore]:
    """Lists how the race was judged that led to the choice; before, what each run came to."""
    if "judged" in record.choice:
        return [
            RaceScore(**{**line, "candidate": candidate_of(line["candidate"])})
            for line in record.choice["judged"]
        ]
    scores = []
    for line in record.races:
        seconds = float(points[-1][0]) if (points := line.get("points")) else 0.0
        mean, text = line.get("return_mean"), str(line.get("text", ""))
        scores.append(RaceScore(int(line["round"]), line["candidate"], seconds, mean, text))
    return scores


def curves_of(record: TuneRecord) -> list[dict[str, Any]]:
    """Returns the lines of runs that have a return, with their points until they were judged."""
    until = {(one.round, one.candidate): one.seconds for one in scores_of(record)}
    lines = []
    for line in record.races:
        end_s = until.get((int(line["round"]), line["candidate"]), 0.0)
        if points := [point for point in line.get("points") or () if point[0] <= end_s]:
            lines.append({**line, "points": points})
    return lines


def facts_of(
    curve: TrainingCurve | Failed, seconds: float, number: int, cost_s: float
) -> dict[str, Any]:
    """Returns what a record has of one run of a race, beside the candidate."""
    line: dict[str, Any] = {"round": number, "asked_s": seconds, "cost_s": cost_s}
    if isinstance(curve, Failed):
        return {**line, "points": [], "return_mean": None, **asdict(curve)}
    last = curve.points[-1][1] if curve.points else None
    return {**line, "points": curve.points, "return_mean": last, "trained_s": curve.seconds}


def from_record(
    record: TuneRecord, candidate: Candidate, seconds: float, number: int
) -> TrainingCurve | Failed | None:
    """Returns the same run of this race on record; None if there is none of as long."""
    for line in record.races:
        is_same = (line["candidate"], line["round"]) == (candidate, number)
        if is_same and line["asked_s"] >= 0.999 * seconds:
            if "reason" in line:
                return Failed(line["reason"], line["text"])
            points = tuple((float(at_s), float(value)) for at_s, value in line["points"])
            return TrainingCurve(points, float(line["trained_s"]))
    return None
