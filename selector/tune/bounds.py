"""Where a search may look next, and the bound of each place: steps/s that it can reach at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from .candidate import Candidate, Skipped
from .known import Known
from .saturation import most

HOPE: Final = 1.4  # times what is known: the best of a row after one look, a row beside the best
WORTH: Final = 0.01  # of the best: what the bound of a place must exceed it by
QUIET: Final = 0.02  # relative error of what needs no second look
_MARGIN: Final = 0.5  # standard errors that are added to a bound where answers are noisy
_STEP: Final = 2  # half steps beyond the ends of what a row has measured
_RIDGE: Final = 0.9  # of a row's best: what another peak of it must reach to count

Place = tuple[float, Candidate]  # its bound, and where it is


def in_row(known: Known, row: int, gap: int = 1) -> list[Place]:
    """Places in a row that was looked at: amid its gaps wider than `gap`, and beyond both ends."""
    its, done = known.rows[row], known.measured_in(row)
    if not done:
        return []
    top = known.top(row)
    places = [(range(i + 1, j), (i + j) // 2) for i, j in pairwise(done) if j - i > gap]
    for at in (above(known, row, _STEP), max(done[0] - _STEP, 0)):
        places.append((range(at, at + 1), at))
    return [
        (max(bound(known, row, i) for i in within), its[at])
        for within, at in places
        if not known.is_done(its[at]) and at < top
    ]


def above(known: Known, row: int, step: int) -> int:
    """The place `step` half steps above a row's last measured, or below what is barred there.

    Half-way to what failed: how far that reaches down is not known. The last itself, if none is.
    """
    last, top, its = known.measured_in(row)[-1], known.top(row), known.rows[row]
    failed = top < len(its) and known.is_done(its[top])
    return max(min(last + step, (last + top) // 2 if failed else top - 1), last)


def bound(known: Known, row: int, at: int, once: float = HOPE) -> float:
    """What a row's measured points let its `at`-th candidate reach; infinite without any.

    No more than `once` times what a single point has, unless that is only where nothing failed.
    """
    points = known.points(row)
    if not points:
        return math.inf
    error = max(known.error(known.rows[row][i]) for i in known.measured_in(row))
    looked = len(points) == 1 and not known.failed_in(row)
    limit = points[0].steps_per_s * once if looked else math.inf
    margin = 1 + (_MARGIN * error if error > QUIET else 0.0)
    return min(most(points, known.rows[row][at].num_env, error) * margin, limit)


def everywhere(known: Known, reach: int = 1) -> list[Place]:
    """All of `in_row`, and in rows beside the best what lies where the best does in its own row.

    Beside: as many GMIs, or the `reach` next numbers up or down, shared in any way. There: as many
    environments in each GMI, or on each device.
    """
    found = [it for row in range(len(known.rows)) for it in in_row(known, row)]
    best = known.best()
    if best is None:
        return found
    counts = sorted({its[0].row.gmi_per_gpu for its in known.rows})
    at = counts.index(best.row.gmi_per_gpu)
    near = counts[max(at - reach, 0) : at + reach + 1]
    for row, its in enumerate(known.rows):
        if its[0].row.gmi_per_gpu in near and its[0].row != best.row:
            for like in [best, *_peaks(known, best)]:
                for total in (True, False):
                    place = landing(known, row, like, total)
                    if not known.is_done(its[place]) and place < known.top(row):
                        there = bound(known, row, place, once=math.inf)
                        found.append((min(there, known.steps_per_s(best) * HOPE), its[place]))
    return found


def _peaks(known: Known, best: Candidate) -> list[Candidate]:
    """Other peaks of the first row, and of the best's: what lies before a cliff and after it."""
    found = []
    for row in {0, known.row_of(best)}:
        done = [known.rows[row][i] for i in known.measured_in(row)]
        values = [known.steps_per_s(one) for one in done]
        for i in range(1, len(done) - 1):
            clear = 1 + 3 * known.error(done[i])
            is_peak = values[i] > max(values[i - 1], values[i + 1]) * clear
            if is_peak and values[i] > max(values) * _RIDGE and done[i] != known.best(row):
                found.append(done[i])
    return found


def landing(known: Known, row: int, like: Candidate | None, total: bool = True) -> int:
    """Where to look in a row first: as many environments as `like` has, if they seem to fit.

    On a device (`total`) or in each GMI. Without `like`, a fifth up the row.
    """
    its = known.rows[row]
    at = len(its) // 5
    if like is not None:
        ratio = like.row.gmi_per_gpu / its[0].row.gmi_per_gpu if total else 1.0
        wanted = like.num_env * ratio
        at = min(range(len(its)), key=lambda i: abs(math.log(its[i].num_env / wanted)))
    if not known.measured_in(row):
        while at and known.barred(its[at]):
            at -= 1
    return at


def skipped(known: Known, ended: str) -> Sequence[Skipped]:
    """Each candidate that was not measured, and why; `ended`: what ended the search, or ""."""
    best = known.best()
    found = []
    for row, its in enumerate(known.rows):
        for at, one in enumerate(its):
            if not known.is_done(one):
                found.append(Skipped(one, _why_not(known, row, at, best, ended)))
    return found


def _why_not(known: Known, row: int, at: int, best: Candidate | None, ended: str) -> str:
    one = known.rows[row][at]
    if why := known.barred(one):
        return why
    if best and known.measured_in(row):
        reach = most(known.points(row), one.num_env)
        if reach <= known.steps_per_s(best) * (1 + WORTH):
            return f"{reach:,.0f} steps/s at most, by what its row measured"
    if ended:
        return ended
    if best and not known.measured_in(row):
        return f"rows nearer to the best ({best.row.gmi_per_gpu} GMIs) were better"
    return "what it could reach was too little"
