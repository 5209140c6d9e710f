"""Searches as `gmi-drl tune` does unless told otherwise; docs/tuning.md has it for users.

It climbs the first row, the fewest GMIs, by four times as many environments, until what is left of
the row can reach (`throughput_bound`) less than 1 % more, or 3 % where Sat is below 0.1, and halves
the gaps beside its best. The other rows are looked at where as many environments of a device lie as
the best has, until two numbers of GMIs in succession are worse by a tenth. From then on it asks for
what can reach most, in any row, until nothing can reach 1 % more than the best. Answers that are
not sure are asked for again: always the less certain of the best and of the one that may be better
still by what noise hides, with as much time as makes a look certain to 5 %. Of those within 1 % of
the best, and within the noise, the one with the fewest samples between two updates wins, as smaller
batches learn better, unless the config as given is within the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from gmi_drl.selector.tune.candidate import (
    Ask,
    Candidate,
    Chosen,
    DeviceSplit,
    Failed,
    Measure,
    Skipped,
    Space,
    TuneSearch,
)

from .observations import DOUBT, SAME, Observations, SearchEnded, sat, throughput_bound

SHARE: Final = 0.25  # of the space: what is asked for at most
ALPHA: Final = 0.1  # Sat below: memory grows for nothing
WORTH_FULL: Final = 0.03  # what is left of a row must reach more, where Sat is below ALPHA
FIRST_ERROR: Final = 0.05  # relative: a first look takes longer where it would be less certain
LONGEST: Final = 16  # times `seconds`: an ask at most
SLOWEST: Final = 8  # times `seconds`: candidates whose iterations take longer are not tried
WORSE: Final = 0.9  # of the best: a number of GMIs below this is worse
_SURE: Final = 0.015  # relative error of what is not measured again
_STRIDE: Final = 4  # half steps of a climb: four times the environments
_FEWEST: Final = 8  # asks that are allowed in the smallest space
HOPE: Final = 1.4  # times what is known: the best of a row after one look, a row beside the best
WORTH: Final = 0.01  # of the best: what the bound of a place must exceed it by
QUIET: Final = 0.02  # relative error of what needs no second look
_MARGIN: Final = 0.5  # standard errors that are added to a bound where answers are noisy
_STEP: Final = 2  # half steps beyond the ends of what a row has measured
_RIDGE: Final = 0.9  # of a row's best: what another peak of it must reach to count

Place = tuple[float, Candidate]  # its bound, and where it is


def default(
    space: Space,
    seconds: float,
    *,
    profiles: int | None = None,
    own: Candidate | None = None,
    start: Candidate | None = None,
    efficiency: Callable[[Candidate], float] | None = None,
) -> TuneSearch:
    """Asks for at most `profiles` measurements (None: a quarter of the space, no less than 8).

    `own`: the config as it was given. `start`: what the first look is at, or as many environments
    in the first row (None: at a fifth of the row). `efficiency`: what a step of a candidate is
    worth (None: all the same); steps/s times that are then what is looked for. `seconds` is what a
    first look at a quiet candidate takes; asks take up to 16 x as long where answers are noisy.
    """
    limit = most_profiles(space) if profiles is None else profiles
    known = Observations(space, seconds * SLOWEST, own, efficiency)
    return _Default(known, space, seconds, limit, start).run


def most_profiles(space: Space) -> int:
    """Returns how many measurements a search of this space may ask for."""
    return max(int(space.size * SHARE), _FEWEST)


class _Default:
    def __init__(
        self,
        known: Observations,
        space: Space,
        seconds: float,
        limit: int,
        start: Candidate | None,
    ) -> None:
        self.space, self.known, self.start = space, known, start
        self.seconds, self.limit = seconds, limit
        self.kept = min(max(limit // 4, 1), 16)  # asks to tell the best apart

    def run(self, measure: Measure) -> Chosen:
        self.measure = measure
        try:
            self._search()
            complete, ended_by = True, ""
        except SearchEnded as ended:
            # Fewer were asked for than it may need.
            complete = ended.complete and self.limit >= most_profiles(self.space)
            used_up = f"the {self.limit} profiles of a search were used up"
            ended_by = used_up if ended.complete else "the budget was spent"
        return self.known.chosen(complete, skipped(self.known, ended_by))

    def _search(self) -> None:
        self._climb(0)
        self._refine(lambda: in_row(self.known, 0, gap=2))
        self._survey()
        self._refine(lambda: everywhere(self.known))
        self.kept = 0
        before = -1
        while before < self.known.asked:
            before = self.known.asked
            self._economise()
            self._compare()
            self._refine(lambda: everywhere(self.known, reach=2))

    def _climb(self, row: int) -> None:
        known, candidates = self.known, self.known.rows[row]
        self._land(row)
        if known.own and not known.is_done(known.own) and known.barred(known.own) is None:
            self._ask(known.own)
        while done := known.measured_in(row):
            target = above(known, row, _STRIDE)
            reach, worth = math.inf, WORTH
            if len(done) >= 2:
                reach = bound(known, row, len(candidates) - 1)
                if sat(*(known.latest(candidates[i]) for i in done[-2:])) < ALPHA:
                    worth = WORTH_FULL
            if target <= done[-1] or reach <= self._best() * (1 + worth):
                return
            self._ask(candidates[target])

    def _survey(self) -> None:
        """Looks at each number of GMIs, until two in succession are worse."""
        splits = self.space.splits
        counts = sorted({split.gmi_per_gpu for split in splits})
        kind: object = None
        worse = 0
        for count in counts[1:]:
            rows = [row for row, split in enumerate(splits) if split.gmi_per_gpu == count]
            rows = [row for row in rows if kind in (None, _kind(splits[row]))] or rows
            before = self._best()
            for row in rows:
                self._land(row)
            first = max(rows, key=self._best)
            kind = kind or _kind(splits[first])
            worse = worse + 1 if self._best(first) <= before * WORSE else 0
            if worse == 2:
                return

    def _land(self, row: int) -> None:
        """Takes a first look at a row; at fewer environments when it fails."""
        candidates = self.known.rows[row]
        index = landing(self.known, row, self.known.best() or self.start)
        self._ask(candidates[index])
        while index > 0 and not self.known.measured_in(row):
            index = max(index - _STRIDE, 0)
            self._ask(candidates[index])

    def _refine(self, places: Callable[[], list[Place]]) -> None:
        """Asks for what can reach more than the best, or may by noise while asks are left."""
        while open_places := places():
            highest, candidate = max(open_places, key=lambda place: (place[0], place[1].samples))
            best = self.known.best()
            if best is not None:
                is_reserve = self.known.asked >= self.limit - self.kept
                noisy = is_reserve and self.known.error(best) > QUIET
                if highest <= max(self._best() * (1 + WORTH), self._hope(best) if noisy else 0.0):
                    return
            self._ask(candidate)

    def _compare(self) -> None:
        """Measures the less certain of the best and its strongest rival, while there is one."""
        known = self.known
        while (best := known.best()) is not None:
            rival = max((c for c in known.usable() if c != best), key=self._hope, default=best)
            candidate = max(best, rival, key=known.error)
            doubt = 1 + DOUBT * math.hypot(known.error(best), known.error(rival))
            alone = rival == best or known.steps_per_s(rival) * doubt <= self._best() * (1 + WORTH)
            if alone or known.error(candidate) <= _SURE:
                return
            self._ask(candidate, self.seconds * LONGEST)

    def _economise(self) -> None:
        """Looks for as many steps/s with fewer environments, in the winner's row."""
        known = self.known
        while (winner := known.winner()) not in (None, known.own):
            assert winner is not None
            row = known.row_of(winner)
            index = known.rows[row].index(winner)
            below = max((i for i in known.measured_in(row) if i < index), default=-1)
            target = (below + index) // 2
            enough = bound(known, row, target) >= self._best() * (1 - SAME)
            if target <= below or not enough or known.is_done(known.rows[row][target]):
                return
            self._ask(known.rows[row][target])

    def _hope(self, candidate: Candidate) -> float:
        """Returns the rate that a candidate may truly have, as far as noise can hide it."""
        return self.known.steps_per_s(candidate) * (1 + DOUBT * self.known.error(candidate))

    def _best(self, row: int | None = None) -> float:
        best = self.known.best(row)
        return self.known.steps_per_s(best) if best else 0.0

    def _ask(self, candidate: Candidate, seconds: float | None = None) -> None:
        """Asks for `seconds`, or as long as the noise seen and its iterations make necessary."""
        known, longest = self.known, self.seconds * LONGEST
        if known.asked >= self.limit:
            raise SearchEnded(complete=True)
        if seconds is None:
            certain_s = (known.noise() / FIRST_ERROR) ** 2
            # The rates of rows that were not looked at are guesses: half as long again.
            seconds = min(max(self.seconds, certain_s, 1.5 * known.needs_s(candidate)), longest)
        ask = Ask(candidate, seconds)
        answer = self.measure(ask)
        slow = isinstance(answer, Failed) and answer.reason == "slow"
        if slow and seconds < longest and known.asked + 1 < self.limit:
            known.asked += 1
            ask = Ask(candidate, longest)
            answer = self.measure(ask)
        known.add(ask, answer)


def _kind(split: DeviceSplit) -> tuple[str, float, bool, bool]:
    """Returns how a row shares a device and what follows, whatever the number of GMIs."""
    return split.backend, split.sm_overcommit, split.percents is not None, split.grown


def in_row(known: Observations, row: int, gap: int = 1) -> list[Place]:
    """Lists places in a row that was looked at: in gaps wider than `gap`, and beyond both ends."""
    candidates, done, top = known.rows[row], known.measured_in(row), known.top(row)
    if not done:
        return []
    places = [(range(i + 1, j), (i + j) // 2) for i, j in pairwise(done) if j - i > gap]
    for index in (above(known, row, _STEP), max(done[0] - _STEP, 0)):
        places.append((range(index, index + 1), index))
    return [
        (max(bound(known, row, i) for i in within), candidates[index])
        for within, index in places
        if not known.is_done(candidates[index]) and index < top
    ]


def above(known: Observations, row: int, step: int) -> int:
    """Finds the place `step` half steps above a row's last measured, or half-way to a failure."""
    last, top, candidates = known.measured_in(row)[-1], known.top(row), known.rows[row]
    failed = top < len(candidates) and known.is_done(candidates[top])
    return max(min(last + step, (last + top) // 2 if failed else top - 1), last)


def bound(known: Observations, row: int, at: int, once: float = HOPE) -> float:
    """Returns what a row's points let its `at`-th candidate reach, a single one `once` times it."""
    points = known.points(row)
    if not points:
        return math.inf
    error = max(known.error(known.rows[row][i]) for i in known.measured_in(row))
    looked = len(points) == 1 and not known.failed_in(row)
    limit = points[0].steps_per_s * once if looked else math.inf
    margin = 1 + (_MARGIN * error if error > QUIET else 0.0)
    return min(throughput_bound(points, known.rows[row][at].num_env, error) * margin, limit)


def everywhere(known: Observations, reach: int = 1) -> list[Place]:
    """Lists all of `in_row`, and in rows of near numbers of GMIs what lies where the best does."""
    places = [place for row in range(len(known.rows)) for place in in_row(known, row)]
    best = known.best()
    if best is None:
        return places
    counts = sorted({candidates[0].row.gmi_per_gpu for candidates in known.rows})
    index = counts.index(best.row.gmi_per_gpu)
    near = counts[max(index - reach, 0) : index + reach + 1]
    for row, candidates in enumerate(known.rows):
        if candidates[0].row.gmi_per_gpu in near and candidates[0].row != best.row:
            for like in [best, *_peaks(known, best)]:
                for total in (True, False):
                    place = landing(known, row, like, total)
                    if not known.is_done(candidates[place]) and place < known.top(row):
                        limit = bound(known, row, place, once=math.inf)
                        hope = known.steps_per_s(best) * HOPE
                        places.append((min(limit, hope), candidates[place]))
    return places


def _peaks(known: Observations, best: Candidate) -> list[Candidate]:
    """Finds other peaks of the first row, and of the best's: before a cliff and after it."""
    peaks = []
    for row in {0, known.row_of(best)}:
        done = [known.rows[row][i] for i in known.measured_in(row)]
        rates = [known.steps_per_s(c) for c in done]
        for i in range(1, len(done) - 1):
            margin = 1 + 3 * known.error(done[i])
            is_peak = rates[i] > max(rates[i - 1], rates[i + 1]) * margin
            if is_peak and rates[i] > max(rates) * _RIDGE and done[i] != known.best(row):
                peaks.append(done[i])
    return peaks


def landing(known: Observations, row: int, like: Candidate | None, total: bool = True) -> int:
    """Finds where to look in a row first: as many environments on a device, or GMI, as `like`."""
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
    """Lists each candidate not measured, and why; `ended`: what ended the search, or ""."""
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
            return f"{reach:,.0f} {known.unit} at most, by what its row measured"
    if ended:
        return ended
    if best and not known.measured_in(row):
        return f"rows nearer to the best ({best.row.gmi_per_gpu} GMIs) were better"
    return "what it could reach was too little"
