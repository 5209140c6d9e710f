"""Races a few candidates for equal time where the prediction is unsure: returns decide.

Who has the higher return in the mean over that time is ahead: it was there sooner, or has come
further, and a return on the way is of more episodes than one at the end.

Successive halving in two rounds: all for a part of the time, then the predicted best and the best
of the others, from the beginning again with another seed, for longer. One seed says little, so
another wins only if it is ahead in both rounds. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from gmi_drl.selector.record.record import TuneRecord, candidate_of

from .candidate import Candidate, Failed

FINALISTS: Final = 4
LEAST_S: Final = 8.0  # of training, each in the first round: less says nothing of learning
UNSURE: Final = 2.0  # candidates whose goodput differs by a smaller factor are raced
_LAST: Final = 2  # of the second round
_MOVED: Final = 0.05  # of a return: one that rises by less has not moved
_OTHER: Final = 1.5  # times the environments of a GMI: fewer are learned with alike


@dataclass(frozen=True)
class TrainingCurve:
    """(seconds of training, mean return of the last 100 episodes), as it rose."""

    points: tuple[tuple[float, float], ...]
    seconds: float  # that it trained; as asked, if it had done all its steps before
    noise_scale: float | None = None  # of gradients, in samples: `noise_level`


@dataclass(frozen=True)
class RaceScore:
    """Holds a finalist's mean return over the time that all of a round had trained."""

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


def finalists(
    winner: Candidate, own: Candidate | None, rivals: Sequence[Candidate], seconds: float
) -> list[Candidate]:
    """Picks whom to race in `seconds`: the predicted best, first; the config as given; others.

    Of `rivals`, the best first, those that are cut otherwise, or simulate clearly more or fewer
    environments; only as many as can train long enough.
    """
    most = min(FINALISTS, int(seconds / 2 / LEAST_S))
    chosen = [winner, *([own] if own is not None and own in rivals else [])]
    for one in rivals:
        if not any(_alike(one, other) for other in chosen):
            chosen.append(one)
    return chosen[:most] if most > 1 else []


def can_be_held(seconds: float) -> bool:
    """Tells whether two can train long enough in so many seconds."""
    return seconds >= 2 * 2 * LEAST_S


def _alike(one: Candidate, other: Candidate) -> bool:
    few, many = sorted((one.num_env, other.num_env))
    return one.row == other.row and many < _OTHER * few


def race(candidates: Sequence[Candidate], train: Train, seconds: float) -> RaceResult:
    """Trains them with `seconds` for all together; the first stays where returns do not decide."""
    first_s = seconds / 2 / len(candidates)
    scores: list[RaceScore] = []
    standing, moved = _round(candidates, train, first_s, 1, scores)
    if not standing:
        why = f"no episode ended in {first_s:.0f} s of training: returns say nothing"
        return RaceResult(None, why, tuple(scores))
    if not moved:
        return RaceResult(None, f"no return rose in {first_s:.0f} s of training", tuple(scores))
    predicted, (ahead, value) = candidates[0], standing[0]
    if ahead == predicted:
        return RaceResult(
            predicted, f"it led the race, with a mean return of {value:.1f}", tuple(scores)
        )
    again, _ = _round([predicted, ahead], train, seconds / 2 / _LAST, 2, scores)
    if not again or again[0][0] == predicted:
        why = "another led one round of the race, and it the other"
        return RaceResult(predicted, why, tuple(scores))
    others = f", against {again[1][1]:.1f} of what was predicted to be best" if again[1:] else ""
    why = f"it led both rounds of the race, with a mean return of {again[0][1]:.1f}{others}"
    return RaceResult(ahead, why, tuple(scores))


def _round(
    candidates: Sequence[Candidate], train: Train, seconds: float, number: int,
    scores: list[RaceScore],
) -> tuple[list[tuple[Candidate, float]], bool]:  # fmt: skip
    """Lists whose return was seen, best first; and whether any rose. Adds to `scores`.

    Behind the last return of all that were seen there is nothing to compare.
    """
    runs = [(candidate, train(candidate, seconds, number)) for candidate in candidates]
    curves = [(one, run) for one, run in runs if isinstance(run, TrainingCurve)]
    equal_s = min((curve.seconds for _, curve in curves), default=0.0)
    last_s = max((at_s for _, curve in curves for at_s, _ in curve.points), default=0.0)
    until_s = min(equal_s, last_s)
    standing = []
    for one, run in runs:
        if isinstance(run, Failed):
            scores.append(RaceScore(number, one, 0.0, None, run.text))
            continue
        mean = _mean_until(run, until_s)
        scores.append(RaceScore(number, one, until_s, mean))
        if mean is not None:
            standing.append((one, mean))
    standing.sort(key=lambda s: s[1], reverse=True)
    return standing, any(_has_risen(curve) for _, curve in curves)


def _has_risen(curve: TrainingCurve) -> bool:
    values = [value for _, value in curve.points]
    return bool(values) and max(values) - values[0] > _MOVED * abs(values[0])


def _mean_until(curve: TrainingCurve, seconds: float) -> float | None:
    """Averages the return over these seconds; before the first point it is that one's.

    None if no episode had ended by then.
    """
    points = [point for point in curve.points if point[0] <= seconds]
    if not points:
        return None
    area, before_s, value = 0.0, 0.0, points[0][1]
    for at_s, now in points:
        area += (at_s - before_s) * (value + now) / 2
        before_s, value = at_s, now
    return (area + (seconds - before_s) * value) / seconds


def scores_of(record: TuneRecord) -> list[RaceScore]:
    """Lists how the race was judged that led to the choice; before, how each run ended."""
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
    facts = {"points": curve.points, "return_mean": last, "trained_s": curve.seconds}
    return {**line, **facts, "noise_scale": curve.noise_scale}


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
            return TrainingCurve(points, float(line["trained_s"]), line.get("noise_scale"))
    return None
