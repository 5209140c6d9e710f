"""The search that `gmi-drl tune` does unless told otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Final

from .candidate import Answer, Ask, Candidate, Failed, Search, Space
from .known import FULL, Ended, Known
from .saturation import most, project_memory, sat

SHARE: Final = 0.25  # of the space: what is asked for at most
ALPHA: Final = 0.1  # Sat below: memory grows for nothing
WORTH: Final = 0.01  # of the best: what a point must promise to be measured
WORTH_FULL: Final = 0.03  # the same where Sat says that memory grows for nothing
HOPE: Final = 1.4  # a row's best over the first look at it, at most
FIRST_ERROR: Final = 0.07  # relative: a first look takes longer where it would be less certain
Z = 2.5
M = 0.5
SURE = 0.01
QUIET: Final = 0.02  # relative error of what needs no second look
LONGEST: Final = 8  # times `seconds`, at most
_STRIDE: Final = 4  # half steps: four times the environments
_FEWEST: Final = 8  # asks that are allowed in the smallest space

_Steps = Generator[Ask, Answer, None]


def default(space: Space, seconds: float, *, profiles: int | None = None) -> Search:
    """Ask for at most `profiles` measurements (None: a quarter of the space, no less than 8).

    `seconds` is what a first look at a quiet candidate takes; noisy ones, long iterations and the
    last few get up to eight times as much.
    """
    if not seconds > 0:
        raise ValueError(f"seconds={seconds}: a profile takes more than 0 s.")
    limit = max(int(space.size * SHARE), _FEWEST) if profiles is None else profiles
    search = _Default(space, seconds, limit)
    try:
        yield from search.run()
        complete = True
    except Ended as ended:
        complete = ended.complete
    return search.known.chosen(complete, search.why_not())


class _Default:
    def __init__(self, space: Space, seconds: float, limit: int) -> None:
        self.known = Known(space, seconds * LONGEST)
        self.rows = self.known.rows
        self.seconds = seconds
        self.limit = limit
        self.held = min(max(limit // 4, 1), 16)  # asks kept for the end, where answers are noisy
        self.counts = sorted({row[0].row.gmi_per_gpu for row in self.rows})

    def run(self) -> _Steps:
        yield from self._climb(0)
        yield from self._refine(lambda: self._places(0, gap=2))
        yield from self._survey()
        yield from self._refine(self._everywhere)
        self.held = 0
        before = -1
        while before < self.known.asked:
            before = self.known.asked
            yield from self._compare()
            yield from self._refine(self._everywhere)

    # ---- asks

    def _ask(self, candidate: Candidate, times: float = 1.0) -> _Steps:
        """Ask for as long as the noise seen, or its iterations, make necessary."""
        known = self.known
        if known.asked >= self.limit:
            raise Ended(complete=True)
        wanted = (known.noise() / FIRST_ERROR) ** 2
        longest = self.seconds * LONGEST
        seconds = max(self.seconds, wanted, 1.5 * known.needs_s(candidate)) * times
        ask = Ask(candidate, min(seconds, longest))
        answer = yield ask
        if isinstance(answer, Failed) and answer.reason == "slow" and ask.seconds < longest:
            known.asked += 1
            ask = Ask(candidate, longest)
            answer = yield ask
        known.add(ask, answer)

    def _value(self, candidate: Candidate | None) -> float:
        return self.known.steps_per_s(candidate) if candidate else 0.0

    def _refine(self, options: Callable[[], list[tuple[float, Candidate]]]) -> _Steps:
        """Ask for what promises most, until nothing promises more than the best."""
        while found := options():
            promise, one = max(found, key=lambda it: (it[0], it[1].samples))
            best = self.known.best()
            if best and promise <= self._value(best) * (1 + WORTH):
                return
            if best and self.known.asked >= self.limit - self.held and promise <= self._hope(best):
                return
            yield from self._ask(one)

    # ---- a row

    def _climb(self, row: int) -> _Steps:
        its = self.rows[row]
        yield from self._land(row, len(its) // 5)
        while points := self.known.points(row):
            last = next(i for i, c in enumerate(its) if c.num_env == points[-1].num_env)
            to = min(last + _STRIDE, self.known.top(row) - 1)
            error = self._error(row)
            margin = 1 + (M * error if error > QUIET else 0.0)
            promise = most(points, its[-1].num_env) * margin if len(points) >= 2 else math.inf
            if to <= last or promise <= self._value(self.known.best()) * (1 + self._worth(row)):
                return
            yield from self._ask(its[to])

    def _worth(self, row: int) -> float:
        its = [c for c in self.rows[row] if c in self.known.answers]
        if len(its) < 2:
            return WORTH
        before, after = (self.known.answers[c][-1] for c in its[-2:])
        return WORTH_FULL if sat(before, after) < ALPHA else WORTH

    def _land(self, row: int, at: int) -> _Steps:
        """A first point of a row; fewer environments when it fails."""
        its = self.rows[row]
        while True:
            yield from self._ask(its[at])
            if its[at] not in self.known.failed or at == 0:
                return
            at = max(min(at - _STRIDE, self.known.top(row) - 1), 0)

    # ---- rows

    def _survey(self) -> _Steps:
        """Look at each number of GMIs, until two in succession are worse."""
        family: object = None
        worse = 0
        for g in self.counts[1:]:
            rows = [i for i, its in enumerate(self.rows) if its[0].row.gmi_per_gpu == g]
            if family is not None:
                rows = [r for r in rows if _family(self.rows[r]) == family] or rows
            before = self._value(self.known.best())
            for row in rows:
                best = self.known.best()
                its = self.rows[row]
                at = self._match(row, best, True) if best else len(its) // 5
                while at and self._guess(its[at]) > FULL:
                    at -= 1
                yield from self._land(row, at)
            first = max(rows, key=lambda r: self._value(self.known.best(r)))
            family = family if family is not None else _family(self.rows[first])
            worse = worse + 1 if self._value(self.known.best(first)) * 1.1 < before else 0
            if worse == 2:
                return

    def _match(self, row: int, best: Candidate, total: bool) -> int:
        """Where in a row there are as many environments, of each GMI or (`total`) of a device."""
        its = self.rows[row]
        ratio = best.row.gmi_per_gpu / its[0].row.gmi_per_gpu if total else 1.0
        wanted = best.num_env * ratio
        return min(range(len(its)), key=lambda i: abs(math.log(its[i].num_env / wanted)))

    def _guess(self, one: Candidate) -> float:
        """Memory by the rows measured: what each GMI takes, times their number."""
        found = 0.0
        for row in range(len(self.rows)):
            points = self.known.points(row)
            if len(points) < 2:
                continue
            memory = project_memory(points, one.num_env) or 0.0
            found = memory * one.row.gmi_per_gpu / self.rows[row][0].row.gmi_per_gpu
        return found

    # ---- the best places

    def _everywhere(self) -> list[tuple[float, Candidate]]:
        best = self.known.best()
        found = [it for row in range(len(self.rows)) for it in self._places(row)]
        if best is None:
            return found
        at = self.counts.index(best.row.gmi_per_gpu)
        near = self.counts[max(at - 1, 0) : at + 2]
        for row, its in enumerate(self.rows):
            if its[0].row.gmi_per_gpu not in near or its[0].row == best.row:
                continue
            points = self.known.points(row)
            for total in (True, False):
                one = its[min(self._match(row, best, total), self.known.top(row) - 1)]
                if self._done(one) or (not points and self._guess(one) > FULL):
                    continue
                promise = most(points, one.num_env, self._error(row)) if points else math.inf
                found.append((min(promise, self._value(best) * HOPE), one))
        return found

    def _done(self, one: Candidate) -> bool:
        return one in self.known.answers or one in self.known.failed

    def _error(self, row: int) -> float:
        its = [c for c in self.rows[row] if c in self.known.answers and c not in self.known.failed]
        return max(map(self.known.error, its), default=0.0)

    def _places(self, row: int, gap: int = 1) -> list[tuple[float, Candidate]]:
        its, points = self.rows[row], self.known.points(row)
        if not points:
            return []
        counts = {p.num_env for p in points}
        done = [i for i, c in enumerate(its) if c.num_env in counts]
        error = self._error(row)
        margin = 1 + (M * error if error > QUIET else 0.0)
        limit = points[0].steps_per_s * HOPE if len(points) == 1 else math.inf
        places = [(range(i + 1, j), (i + j) // 2) for i, j in pairwise(done) if j - i > gap]
        for at in (min(done[-1] + 2, self.known.top(row) - 1), max(done[0] - 2, 0)):
            places.append((range(at, at + 1), at))
        return [
            (min(max(most(points, its[i].num_env, error) for i in within) * margin, limit), its[at])
            for within, at in places
            if not self._done(its[at])
        ]

    def _compare(self) -> _Steps:
        """Of the best and who may be better still, the less certain, until none may be."""
        known = self.known
        while (best := known.best()) is not None:
            others = [c for c in known.usable() if c != best]
            rival = max(others, key=self._hope, default=None)
            if rival is None or self._hope(rival) <= self._value(best) * (1 + WORTH):
                return
            one = max(best, rival, key=known.error)
            if known.error(one) <= SURE:
                return
            yield from self._ask(one, LONGEST)

    def _hope(self, one: Candidate) -> float:
        return self._value(one) * (1 + Z * self.known.error(one))

    def why_not(self) -> dict[Candidate, str]:
        found = {}
        best = self._value(self.known.best())
        for row, its in enumerate(self.rows):
            points = self.known.points(row)
            for one in its:
                if one in self.known.answers or not points:
                    continue
                promise = most(points, one.num_env)
                if promise <= best * (1 + WORTH_FULL):
                    found[one] = f"{promise:,.0f} steps/s at most, by its neighbours"
        return found


def _family(row: list[Candidate]) -> tuple[str, float, bool]:
    its = row[0].row
    return its.backend, its.sm_overcommit, its.percents is not None
