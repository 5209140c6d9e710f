"""Objective `reward`: the best few by steps/s train for equal time, and the highest return wins.

The largest num_env is not the fastest learner: it makes fewer updates of more steps. So the race is
run between batches of different sizes. Two rounds: all for a part of the time, then the better two,
from the beginning again, for twice as long. Pure: what trains is given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gmi_drl.selector.record.findings import findings_of
from gmi_drl.selector.record.lines import candidate_from, candidate_json
from gmi_drl.selector.record.record import Recorded

from .candidate import Candidate, Failed
from .known import usable

FINALISTS: Final = 4
_LAST: Final = 2  # of the second round
_ALIKE: Final = 0.01  # returns that differ by less, of the best, are called the same
_SMALLER: Final = 0.5  # of a batch: less is one of another size


@dataclass(frozen=True)
class Trained:
    """What training with a candidate showed: (seconds of training, mean return), as it rose.

    The mean is of the last 100 episodes; there is no point before the first has ended.
    """

    points: tuple[tuple[float, float], ...]
    seconds: float  # that it trained; as asked, if it had done all its steps before


@dataclass(frozen=True)
class Judged:
    """What one finalist's return was in a round, when all of that round had trained for so long."""

    round: int
    candidate: Candidate
    seconds: float
    return_mean: float | None  # None: no episode had ended, or the run has failed
    text: str = ""  # why it failed


@dataclass(frozen=True)
class Outcome:
    """How a race ended; `winner` is None when no return was seen that could decide it."""

    winner: Candidate | None
    why: str
    judged: tuple[Judged, ...] = ()


Train = Callable[[Candidate, float, int], Trained | Failed]  # for so many seconds, in round n


def finalists(recorded: Recorded, winner: Candidate, most: int = FINALISTS) -> list[Candidate]:
    """Whom to race: the winner by steps/s, the fastest with batches of half the size and less.

    Then the fastest of the others, so that no two have the same num_env and number of GMIs. As in
    the search, none that failed later or that fills the memory.
    """
    found = findings_of(recorded.profiles)
    measured = {finding.candidate: finding.measured for finding in found.all}
    fastest = usable(measured, {failure.candidate for failure in found.failures})
    fastest.sort(key=lambda one: measured[one].steps_per_s, reverse=True)
    chosen = [winner]
    while len(chosen) < most:
        limit = _SMALLER * min(one.samples for one in chosen)
        smaller = [one for one in fastest if one.samples <= limit]
        if not smaller:
            break
        chosen.append(smaller[0])
    for one in fastest:
        shapes = {(c.num_env, c.row.gmi_per_gpu) for c in chosen}
        if len(chosen) < most and (one.num_env, one.row.gmi_per_gpu) not in shapes:
            chosen.append(one)
    return chosen


def race(candidates: Sequence[Candidate], train: Train, seconds: float) -> Outcome:
    """Trains them with `seconds` for all together, start and end not counted.

    The first of `candidates` is the choice by steps/s; it stays where returns do not decide.
    """
    if len(candidates) < 2:
        return Outcome(None, "there was no other candidate to race")
    first_s = seconds / 2 / len(candidates)
    judged: list[Judged] = []
    standing = _round(candidates, train, first_s, 1, judged)
    if len(standing) > 1:
        second = [candidate for candidate, _ in standing[:_LAST]]
        standing = _round(second, train, seconds / 2 / _LAST, 2, judged) or standing
    if not standing:
        why = f"no episode ended in {first_s:.0f} s of training: returns say nothing"
        return Outcome(None, why, tuple(judged))
    best, value = standing[0]
    others = f", against {standing[1][1]:.1f} of the next" if standing[1:] else ""
    why = f"its return was {value:.1f} after equal time{others}"
    return Outcome(best, why, tuple(judged))


def _round(
    candidates: Sequence[Candidate],
    train: Train,
    seconds: float,
    number: int,
    judged: list[Judged],
) -> list[tuple[Candidate, float]]:
    """Those whose return was seen, the best first; among alike ones, who was there sooner.

    All that ran are added to `judged`.
    """
    runs = [(candidate, train(candidate, seconds, number)) for candidate in candidates]
    trained = [(one, run) for one, run in runs if isinstance(run, Trained)]
    equal_s = min((run.seconds for _, run in trained), default=0.0)
    for one, run in runs:
        if isinstance(run, Failed):
            judged.append(Judged(number, one, 0.0, None, run.text))
        else:
            judged.append(Judged(number, one, equal_s, return_at(run, equal_s)))
    standing = [
        (one, value, _mean_until(run, equal_s))
        for one, run in trained
        if (value := return_at(run, equal_s)) is not None
    ]
    # At the ceiling of a task all are alike: who was there first had the higher return on the way.
    best = max((value for _, value, _ in standing), default=0.0)
    near = best - _ALIKE * abs(best)
    standing.sort(
        key=lambda its: (its[1] >= near, its[2] if its[1] >= near else its[1]), reverse=True
    )
    return [(one, value) for one, value, _ in standing]


def _mean_until(run: Trained, seconds: float) -> float:
    """The mean of the return over these seconds; before the first point it is that one's."""
    points = [point for point in run.points if point[0] <= seconds]
    area, before_s, value = 0.0, 0.0, points[0][1]
    for at_s, now in points:
        area += (at_s - before_s) * value
        before_s, value = at_s, now
    area += (seconds - before_s) * value
    return area / seconds if seconds else value


def return_at(run: Trained, seconds: float) -> float | None:
    """The mean return when it had trained so long; None if no episode had ended."""
    return next((value for at_s, value in reversed(run.points) if at_s <= seconds), None)


def judged_json(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """What a record has of how a race was judged."""
    return [{**vars(one), "candidate": candidate_json(one.candidate)} for one in judged]


def judged_from(recorded: Recorded) -> list[Judged]:
    """How the race was judged that led to the choice; before there is one, what each run came to.

    Of a race that did not lead to it nothing.
    """
    if "judged" in recorded.choice:
        lines = recorded.choice["judged"]
        return [Judged(**{**its, "candidate": candidate_from(its["candidate"])}) for its in lines]
    return [
        Judged(
            int(line["round"]),
            line["candidate"],
            float(points[-1][0]) if (points := line.get("points")) else 0.0,
            line.get("return_mean"),
            str(line.get("text", "")),
        )
        for line in recorded.races
    ]


def curves_of(recorded: Recorded) -> list[dict[str, Any]]:
    """The lines of runs that have a return, with their points until they were judged."""
    until = {(one.round, one.candidate): one.seconds for one in judged_from(recorded)}
    lines = []
    for line in recorded.races:
        end_s = until.get((int(line["round"]), line["candidate"]), 0.0)
        if points := [point for point in line.get("points") or () if point[0] <= end_s]:
            lines.append({**line, "points": points})
    return lines


def as_line(run: Trained | Failed, seconds: float, number: int, cost_s: float) -> dict[str, Any]:
    """What a record has of one run of a race, beside the candidate."""
    line: dict[str, Any] = {"round": number, "asked_s": seconds, "cost_s": cost_s}
    if isinstance(run, Failed):
        return {**line, "points": [], "return_mean": None, "reason": run.reason, "text": run.text}
    last = run.points[-1][1] if run.points else None
    return {**line, "points": run.points, "return_mean": last, "trained_s": run.seconds}


def from_record(
    recorded: Recorded, candidate: Candidate, seconds: float, number: int
) -> Trained | Failed | None:
    """The same run of this race on record; None if there is none of as long."""
    for line in recorded.races:
        its = (line["candidate"], line["round"]) == (candidate, number)
        if its and line["asked_s"] >= 0.999 * seconds:
            if "reason" in line:
                return Failed(line["reason"], line["text"])
            points = tuple((float(at_s), float(value)) for at_s, value in line["points"])
            return Trained(points, float(line["trained_s"]))
    return None
