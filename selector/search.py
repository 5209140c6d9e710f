"""The search that `gmi-drl tune` does unless told otherwise."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Final

from .candidate import Answer, Ask, Candidate, Failed, Search, Space
from .known import Ended, Known
from .saturation import most, project_memory, sat

SHARE: Final = 0.25  # of the space: what is asked for at most
ALPHA: Final = 0.1  # Sat below: memory grows for nothing
WORTH: Final = 0.01  # of the best: what a point must promise to be measured
WORTH_FULL: Final = 0.03  # the same where Sat says that memory grows for nothing
HOPE: Final = 1.4  # a row's best over the first look at it, at most
FIRST_ERROR: Final = 0.07  # relative: a first look takes longer where it would be less certain
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
        self.held = min(max(limit // 6, 1), 6)  # asks that are kept for the end
        self.ended: dict[int, str] = {}

    def run(self) -> _Steps:
        counts = sorted({row[0].row.gmi_per_gpu for row in self.rows})
        by_count = {
            g: [i for i, r in enumerate(self.rows) if r[0].row.gmi_per_gpu == g] for g in counts
        }
        try:
            first = by_count[counts[0]][0]
            yield from self._climb(first)
            yield from self._refine([first], 2)
            yield from self._visit_counts(counts, by_count)
            yield from self._refine(list(range(len(self.rows))), 1)
        except _Reserve:
            pass
        self.held = 0
        yield from self._compare()

    # ---- asks

    def _ask(self, candidate: Candidate, times: float = 1.0) -> _Steps:
        known = self.known
        if known.asked >= self.limit:
            raise Ended(complete=True)
        if known.asked >= self.limit - self.held:
            raise _Reserve
        wanted = (known.noise() / FIRST_ERROR) ** 2 if known.answers else 0.0
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

    def _target(self, worth: float = WORTH) -> float:
        """Steps/s that a point must promise."""
        best = self.known.best()
        if best is None:
            return 0.0
        return self._value(best) * (1 + worth)

    # ---- a row

    def _climb(self, row: int) -> _Steps:
        its = self.rows[row]
        at = min(len(its) // 5, len(its) - 1)
        yield from self._land(row, at)
        while True:
            points = self.known.points(row)
            if not points:
                return
            last = next(i for i, c in enumerate(its) if c.num_env == points[-1].num_env)
            top = self.known.top(row)
            to = min(last + _STRIDE, top - 1)
            if to <= last or its[to] in self.known.failed:
                return
            if len(points) >= 2 and most(points, its[-1].num_env) <= self._target(self._worth(row)):
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

    def _visit_counts(self, counts: list[int], by_count: dict[int, list[int]]) -> _Steps:
        for row in by_count[counts[0]][1:]:
            yield from self._visit(row)
        family: object = None
        worse = 0
        seen: list[int] = [counts[0]]
        for g in counts[1:]:
            rows = by_count[g]
            if family is not None:
                rows = [r for r in rows if _family(self.rows[r]) == family] or rows
            before = self._value(self.known.best())
            for row in rows:
                yield from self._visit(row)
            seen.append(g)
            best = max(rows, key=lambda r: self._value(self.known.best(r)))
            family = family if family is not None else _family(self.rows[best])
            worse = worse + 1 if self._value(self.known.best(best)) * 1.1 < before else 0
            if worse == 2:
                break
        top = self.known.best()
        if top is None:
            return
        near = seen.index(top.row.gmi_per_gpu)
        for g in seen[max(near - 1, 0) : near + 2]:
            for row in by_count[g]:
                if not self.known.points(row):
                    yield from self._visit(row)

    def _visit(self, row: int) -> _Steps:
        """One look at a row, about where the best so far would lie in it."""
        best = self.known.best()
        its = self.rows[row]
        if best is None:
            yield from self._land(row, len(its) // 5)
            return
        wanted = best.num_env * best.row.gmi_per_gpu / its[0].row.gmi_per_gpu
        at = min(range(len(its)), key=lambda i: abs(math.log(its[i].num_env / wanted)))
        while at and self._guess(its[at]) > 0.95:
            at -= 1
        yield from self._land(row, at)

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

    def _refine(self, rows: list[int], step: int) -> _Steps:
        while True:
            options = [o for row in rows for o in self._options(row, step)]
            if not options:
                return
            promise, one = max(options, key=lambda o: (o[0], -o[1].samples))
            if promise <= self._target():
                return
            yield from self._ask(one)

    def _options(self, row: int, step: int) -> list[tuple[float, Candidate]]:
        its, points = self.rows[row], self.known.points(row)
        if not points:
            return []
        top = self.known.top(row)
        done = [
            i for i, c in enumerate(its) if c in self.known.answers and c not in self.known.failed
        ]
        found = []
        cap = math.inf
        err = max(self.known.error(its[i]) for i in done)
        if len(points) == 1:
            cap = points[0].steps_per_s * HOPE
        for i, j in zip(done, done[1:], strict=False):
            if j - i > step:
                found.append((i + j) // 2)
        if done[-1] + 1 < top:
            found.append(min(done[-1] + 2, top - 1))
        if done[0] > 0:
            found.append(max(done[0] - 2, 0))
        return [
            (min(most(points, its[i].num_env, err), cap), its[i])
            for i in found
            if its[i] not in self.known.failed
        ]

    def _compare(self) -> _Steps:
        known = self.known
        times = 2.0
        while known.asked < self.limit:
            best = known.best()
            if best is None:
                return
            rivals = [
                c
                for c in known.measured()
                if known.steps_per_s(c) * (1 + 1.5 * math.hypot(known.error(c), known.error(best)))
                >= known.steps_per_s(best)
                and known.error(c) > 0.01
            ]
            rivals.sort(key=lambda c: -known.steps_per_s(c))
            rivals = rivals[: max((self.limit - known.asked) // 2, 1)]
            if len(rivals) < 2:
                return
            for one in rivals:
                yield from self._ask(one, times)
            times *= 2

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


class _Reserve(Exception):
    """What is left of the asks is kept for comparing the best."""


def _family(row: list[Candidate]) -> tuple[str, float, bool]:
    its = row[0].row
    return its.backend, its.sm_overcommit, its.percents is not None
