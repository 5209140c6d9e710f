"""Says where a search may look next, and bounds the steps/s that each place can reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from gmi_drl.selector.tune.candidate import Candidate, Skipped

from .observations import Observations
from .saturation import throughput_bound

HOPE: Final = 1.4  # times what is known: the best of a row after one look, a row beside the best
WORTH: Final = 0.01  # of the best: what the bound of a place must exceed it by
QUIET: Final = 0.02  # relative error of what needs no second look
_MARGIN: Final = 0.5  # standard errors that are added to a bound where answers are noisy
_STEP: Final = 2  # half steps beyond the ends of what a row has measured
_RIDGE: Final = 0.9  # of a row's best: what another peak of it must reach to count

Place = tuple[float, Candidate]  # its bound, and where it is


def in_row(known: Observations, row: int, gap: int = 1) -> list[Place]:
    """Places in a row that was looked at: amid its gaps wider than `gap`, and beyond both ends."""
    candidates, done, top = known.rows[row], known.measured_in(row), known.top(row)
    if not done:
        return []
    places = [(range(i + 1, j), (i + j) // 2) for i, j in pairwise(done) if j - i > gap]
    for at in (above(known, row, _STEP), max(done[0] - _STEP, 0)):
        places.append((range(at, at + 1), at))
    return [
        (max(bound(known, row, i) for i in within), candidates[at])
        for within, at in places
        if not known.is_done(candidates[at]) and at < top
    ]


def above(known: Observations, row: int, step: int) -> int:
    """The place `step` half steps above a row's last measured, or below what is barred there.

    Half-way to what failed. The last itself, if none is.
    """
    last, top, candidates = known.measured_in(row)[-1], known.top(row), known.rows[row]
    failed = top < len(candidates) and known.is_done(candidates[top])
    return max(min(last + step, (last + top) // 2 if failed else top - 1), last)


def bound(known: Observations, row: int, at: int, once: float = HOPE) -> float:
    """What a row's measured points let its `at`-th candidate reach; infinite without any.

    No more than `once` times what a single point has, unless something failed there.
    """
    points = known.points(row)
    if not points:
        return math.inf
    error = max(known.error(known.rows[row][i]) for i in known.measured_in(row))
    looked = len(points) == 1 and not known.failed_in(row)
    limit = points[0].steps_per_s * once if looked else math.inf
    margin = 1 + (_MARGIN * error if error > QUIET else 0.0)
    return min(throughput_bound(points, known.rows[row][at].num_env, error) * margin, limit)


def everywhere(known: Observations, reach: int = 1) -> list[Place]:
    """All of `in_row`, and in rows beside the best what lies where the best does in its own row.

    Beside: as many GMIs, or the `reach` next numbers up or down. There: as many environments in
    each GMI, or on each device.
    """
    places = [place for row in range(len(known.rows)) for place in in_row(known, row)]
    best = known.best()
    if best is None:
        return places
    counts = sorted({candidates[0].row.gmi_per_gpu for candidates in known.rows})
    at = counts.index(best.row.gmi_per_gpu)
    near = counts[max(at - reach, 0) : at + reach + 1]
    for row, candidates in enumerate(known.rows):
        if candidates[0].row.gmi_per_gpu in near and candidates[0].row != best.row:
            for like in [best, *_peaks(known, best)]:
                for total in (True, False):
                    place = landing(known, row, like, total)
                    if not known.is_done(candidates[place]) and place < known.top(row):
                        there = bound(known, row, place, once=math.inf)
                        hope = known.steps_per_s(best) * HOPE
                        places.append((min(there, hope), candidates[place]))
    return places


def _peaks(known: Observations, best: Candidate) -> list[Candidate]:
    """Other peaks of the first row, and of the best's: what lies before a cliff and after it."""
    peaks = []
    for row in {0, known.row_of(best)}:
        done = [known.rows[row][i] for i in known.measured_in(row)]
        rates = [known.steps_per_s(one) for one in done]
        for i in range(1, len(done) - 1):
            clear = 1 + 3 * known.error(done[i])
            is_peak = rates[i] > max(rates[i - 1], rates[i + 1]) * clear
            if is_peak and rates[i] > max(rates) * _RIDGE and done[i] != known.best(row):
                peaks.append(done[i])
    return peaks


def landing(known: Observations, row: int, like: Candidate | None, total: bool = True) -> int:
    """Where to look in a row first: as many environments as `like` has, if they seem to fit.

    On a device (`total`) or in each GMI. Without `like`, a fifth up the row.
    """
    candidates = known.rows[row]
    at = len(candidates) // 5
    if like is not None:
        ratio = like.row.gmi_per_gpu / candidates[0].row.gmi_per_gpu if total else 1.0
        sizes = [candidate.num_env for candidate in candidates]
        at = min(range(len(sizes)), key=lambda i: abs(math.log(sizes[i] / (like.num_env * ratio))))
    if not known.measured_in(row):
        while at and known.barred(candidates[at]):
            at -= 1
    return at


def skipped(known: Observations, ended: str) -> Sequence[Skipped]:
    """Each candidate that was not measured, and why; `ended`: what ended the search, or ""."""
    best = known.best()
    return [
        Skipped(candidate, _why_not(known, row, candidate, best, ended))
        for row, candidates in enumerate(known.rows)
        for candidate in candidates
        if not known.is_done(candidate)
    ]


def _why_not(
    known: Observations, row: int, candidate: Candidate, best: Candidate | None, ended: str
) -> str:
    if why := known.barred(candidate):
        return why
    if best and known.measured_in(row):
        reach = throughput_bound(known.points(row), candidate.num_env)
        if reach <= known.steps_per_s(best) * (1 + WORTH):
            return f"{reach:,.0f} steps/s at most, by what its row measured"
    if ended:
        return ended
    if best and not known.measured_in(row):
        return f"rows nearer to the best ({best.row.gmi_per_gpu} GMIs) were better"
    return "what it could reach was too little"
