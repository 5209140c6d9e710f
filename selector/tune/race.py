"""Races a few candidates for equal time where the prediction is unsure: returns decide.

The candidate with the higher mean return over that time is ahead: it got there sooner or further,
and the mean is of more episodes than the last return.

Successive halving in two rounds: all for a part of the time, then the predicted best and the best
of the others, from the beginning again with another seed, for longer. One seed says little, so
another wins only if it is ahead in both rounds.

Of a candidate whose first episodes do not end in the time, nothing can be compared. It has done
less than an episode in each environment, so few updates; another is ahead of it if its return has
risen in that time, for a return that is there sooner is what is looked for, and not if that has
stayed where it began. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from gmi_drl.selector.record.record import TuneRecord

from .candidate import Candidate, Failed

FINALISTS: Final = 4
LEAST_S: Final = 8.0  # of training, each in the first round: less says nothing of learning
UNSURE: Final = 2.0  # candidates whose goodput differs by a smaller factor are raced
_LAST: Final = 2  # of the second round
_MOVED: Final = 0.1  # of a return: one that rises by less has not moved
_LEARNED: Final = 0.75  # of the first return: what rises by more has, whatever the first is of
_ALL_FAILED: Final = "all that raced have failed"
_OTHER: Final = 1.5  # times the environments of a GMI: fewer are learned with alike


@dataclass(frozen=True)
class TrainingCurve:
    """(seconds of training, mean return of the last 100 episodes), as it rose."""

    points: tuple[tuple[float, float], ...]
    seconds: float  # that it trained; as asked, if it had done all its steps before


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
    """Holds how a race ended; `winner` is None when returns have not decided it."""

    winner: Candidate | None
    why: str
    scores: tuple[RaceScore, ...] = ()
    moved: bool = True  # a return was seen, and one rose

    @property
    def failed(self) -> frozenset[Candidate]:
        """Returns the candidates that failed, in whichever round."""
        return frozenset(score.candidate for score in self.scores if score.text)

    @property
    def all_failed(self) -> bool:
        """Tells whether each candidate failed in a round."""
        return self.failed == {score.candidate for score in self.scores}


_scores_of: Final = TypeAdapter(list[RaceScore]).validate_python
Train = Callable[[Candidate, float, int], TrainingCurve | Failed]  # for so many seconds, in round n


def finalists(
    winner: Candidate, own: Candidate | None, rivals: Sequence[Candidate], seconds: float
) -> list[Candidate]:
    """Picks the candidates of a race: the predicted best, the config as given, and rivals.

    Rivals are taken in their order, the best first, if they split a device otherwise, or simulate
    clearly more or fewer environments; only as many as can train long enough in `seconds`.
    """
    most = min(FINALISTS, int(seconds / 2 / LEAST_S))
    chosen = [winner, *([own] if own is not None and own in rivals else [])]
    for rival in rivals:
        if not any(_alike(rival, other) for other in chosen):
            chosen.append(rival)
    return chosen[:most] if most > 1 else []


def can_be_held(seconds: float) -> bool:
    """Tells whether two can train long enough in so many seconds."""
    return seconds >= 2 * 2 * LEAST_S


def _alike(one: Candidate, other: Candidate) -> bool:
    few, many = sorted((one.num_env, other.num_env))
    return one.row == other.row and many < _OTHER * few


@dataclass(frozen=True)
class _Round:
    """Holds one round: candidates with a return, the best first, and whose return rose."""

    standing: Sequence[tuple[Candidate, float]]
    risen: frozenset[Candidate]
    failed: frozenset[Candidate]

    def mean_of(self, candidate: Candidate) -> float | None:
        """Returns the mean return of a candidate; None: it has shown none."""
        return dict(self.standing).get(candidate)

    def leader(self, predicted: Candidate) -> Candidate:
        """Returns the candidate that leads: the predicted one, unless another is ahead."""
        leader = self.standing[0][0] if self.standing else predicted
        unseen = self.mean_of(predicted) is None and predicted not in self.failed
        return predicted if unseen and leader not in self.risen else leader


def race(candidates: Sequence[Candidate], train: Train, seconds: float) -> RaceResult:
    """Trains them with `seconds` for all together; the first stays where returns do not decide.

    If the first has failed, it does not stay. If all have, there is no winner.
    """
    first_s, scores = seconds / 2 / len(candidates), list[RaceScore]()
    first = _round(candidates, train, first_s, 1, scores)
    running = [candidate for candidate in candidates if candidate not in first.failed]
    if not running:
        return RaceResult(None, _ALL_FAILED, tuple(scores), moved=False)
    predicted, failed = running[0], ""
    if predicted != candidates[0]:
        failed = "what was predicted to be best has failed in the race, and "
    undecided = predicted if failed else None
    if not first.standing:
        why = f"{failed}no episode ended in {first_s:.0f} s of training: returns say nothing"
        return RaceResult(undecided, why, tuple(scores), moved=False)
    if not first.risen:
        why = f"{failed}no return rose in {first_s:.0f} s of training"
        return RaceResult(undecided, why, tuple(scores), moved=False)
    ahead = first.leader(predicted)
    if ahead == predicted:
        if (mean := first.mean_of(predicted)) is None:
            why = f"{failed}no episode of it ended, and the return that was best did not rise"
            return RaceResult(undecided, why, tuple(scores))
        why = f"{failed}it led the race, with a mean return of {mean:.1f}"
        return RaceResult(predicted, why, tuple(scores))
    second = _round([predicted, ahead], train, seconds / 2 / _LAST, 2, scores)
    if second.failed == {predicted, ahead}:
        return _best_of_the_others(running, first, second, scores)
    leading, predicted_mean = second.mean_of(ahead), second.mean_of(predicted)
    if leading is None and predicted in second.failed and ahead not in second.failed:
        why = f"{failed}it led the first round of the race, and in the second the other failed"
        return RaceResult(ahead, why, tuple(scores))
    if second.leader(predicted) == predicted:
        why = f"{failed}another led the first round of the race, and not the second"
        return RaceResult(undecided, why, tuple(scores))
    if predicted_mean is not None:
        against = f"against {predicted_mean:.1f} of what was predicted to be best"
    else:
        shown = "failed" if predicted in second.failed else "showed no return, as no episode ended"
        against = f"while what was predicted to be best {shown}"
    why = f"{failed}it led both rounds of the race, with a mean return of {leading:.1f}, {against}"
    return RaceResult(ahead, why, tuple(scores))


def _best_of_the_others(
    running: Sequence[Candidate], first: _Round, second: _Round, scores: Sequence[RaceScore]
) -> RaceResult:
    """Returns how a race ended in whose second round both have failed."""
    seen = [candidate for candidate, _ in first.standing]
    left = [candidate for candidate in (*seen, *running) if candidate not in second.failed]
    if not left:
        return RaceResult(None, _ALL_FAILED, tuple(scores), moved=False)
    why = "both have failed that raced in the second round, and it was the best of the others"
    return RaceResult(left[0], why, tuple(scores))


def _round(
    candidates: Sequence[Candidate], train: Train, seconds: float, number: int,
    scores: list[RaceScore],
) -> _Round:  # fmt: skip
    """Trains each, and compares them. Adds to `scores`.

    They are compared up to the last return that any of them has shown.
    """
    runs = [(candidate, train(candidate, seconds, number)) for candidate in candidates]
    curves = [(candidate, run) for candidate, run in runs if isinstance(run, TrainingCurve)]
    equal_s = min((curve.seconds for _, curve in curves), default=0.0)
    last_s = max((at_s for _, curve in curves for at_s, _ in curve.points), default=0.0)
    until_s = min(equal_s, last_s)
    standing = []
    for candidate, run in runs:
        if isinstance(run, Failed):
            scores.append(RaceScore(number, candidate, 0.0, None, run.text))
            continue
        mean = _mean_until(run, until_s)
        scores.append(RaceScore(number, candidate, until_s, mean))
        if mean is not None:
            standing.append((candidate, mean))
    standing.sort(key=lambda s: s[1], reverse=True)
    return _Round(
        standing=standing,
        risen=frozenset(candidate for candidate, curve in curves if _has_risen(curve)),
        failed=frozenset(candidate for candidate, run in runs if isinstance(run, Failed)),
    )


def _has_risen(curve: TrainingCurve) -> bool:
    """Tells whether the second half of a curve is above its beginning, both in the mean.

    The beginning is the second eighth: of many environments the episodes that end first are the
    short ones, so that the first points are low. Where it is all over by then, the first point
    tells, if the rise is larger than that can be.
    """
    values, n = [value for _, value in curve.points], len(curve.points)
    if n < 2:
        return False
    late = statistics.fmean(values[-(n // 2) :])
    early = statistics.fmean(values[n // 8 : max(n // 4, n // 8 + 1)])
    first = values[0]
    return late - early > _MOVED * abs(early) or late - first > _LEARNED * abs(first)


def _mean_until(curve: TrainingCurve, seconds: float) -> float | None:
    """Averages the return over these seconds; before the first point it is that one's.

    None if no episode had ended by then.
    """
    points = [point for point in curve.points if point[0] <= seconds]
    if not points:
        return None
    area, before_s, value = 0.0, 0.0, points[0][1]
    for at_s, next_value in points:
        area += (at_s - before_s) * (value + next_value) / 2
        before_s, value = at_s, next_value
    return (area + (seconds - before_s) * value) / seconds


def scores_of(record: TuneRecord) -> list[RaceScore]:
    """Lists how the race was judged that led to the choice; before one, how each run ended.

    A choice that no race has led to has none, whatever was raced for an earlier one.
    """
    if record.choice:
        return _scores_of(record.choice.get("judged", ()))
    scores = []
    for line in record.races:
        seconds = float(points[-1][0]) if (points := line.get("points")) else 0.0
        mean, text = line.get("return_mean"), str(line.get("text", ""))
        scores.append(RaceScore(int(line["round"]), line["candidate"], seconds, mean, text))
    return scores


def curves_of(record: TuneRecord) -> list[dict[str, Any]]:
    """Returns the lines of runs that have a return, with their points until they were judged."""
    until = {(score.round, score.candidate): score.seconds for score in scores_of(record)}
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
