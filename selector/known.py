"""What a search has been told: estimates, what is barred and why, and what it concludes."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

from .candidate import Answer, Ask, Candidate, Chosen, Failed, Measured, Skipped, Space, Spent
from .saturation import Point, most, project_memory

FULL: Final = 0.95  # memory that a candidate may be projected to fill
ITERATIONS: Final = 3  # that have to fit in the seconds of a profile
SAME: Final = 0.01  # candidates this near to each other in steps/s are alike at most
_LEAST_ERROR: Final = 0.002  # relative: nothing is known better than this


class Ended(Exception):
    """The search is to return what it knows: the budget is spent, or it used its profiles."""

    def __init__(self, complete: bool) -> None:
        super().__init__(complete)
        self.complete = complete


class Known:
    """The answers so far. Answers for one candidate are combined by 1 / error^2."""

    def __init__(self, space: Space, longest_s: float) -> None:
        self.rows = [list(row) for row in space.rows]
        self.longest_s = longest_s
        self.asked = 0
        self.answers: dict[Candidate, list[Measured]] = {}
        self.failed: dict[Candidate, Failed] = {}
        self._row_of = {its[0].row: number for number, its in enumerate(self.rows)}

    def add(self, ask: Ask, answer: Answer) -> None:
        """Note an answer. Ended for Spent."""
        if isinstance(answer, Spent):
            raise Ended(complete=False)
        self.asked += 1
        if isinstance(answer, Failed):
            self.failed[ask.candidate] = answer
        elif answer.steps_per_s > 0 and math.isfinite(answer.steps_per_s):
            self.answers.setdefault(ask.candidate, []).append(answer)
        else:
            self.failed[ask.candidate] = Failed("crash", f"{answer.steps_per_s} steps/s")

    def measured(self) -> list[Candidate]:
        """Those with an answer that did not fail later."""
        return [one for one in self.answers if one not in self.failed]

    def usable(self) -> list[Candidate]:
        """Those measured that leave some memory free, for a run that takes long; all, if none."""
        its = self.measured()
        return [one for one in its if self.answers[one][-1].memory <= FULL] or its

    def steps_per_s(self, candidate: Candidate) -> float:
        """The combined estimate."""
        its = self.answers[candidate]
        weights = [1 / max(one.error, _LEAST_ERROR) ** 2 for one in its]
        return sum(w * one.steps_per_s for w, one in zip(weights, its, strict=True)) / sum(weights)

    def error(self, candidate: Candidate) -> float:
        """Its relative standard error."""
        its = self.answers[candidate]
        return sum(1 / max(one.error, _LEAST_ERROR) ** 2 for one in its) ** -0.5

    def noise(self) -> float:
        """The relative error of one second of measuring, root mean square of all answers."""
        its = [one for answers in self.answers.values() for one in answers]
        squares = [one.error**2 * max(one.seconds, 1e-3) for one in its]
        return math.sqrt(sum(squares) / len(squares)) if squares else 0.0

    def points(self, row: int) -> list[Point]:
        """The measured points of a row, by rising num_env."""
        its = [one for one in self.rows[row] if one in self.answers and one not in self.failed]
        return [Point(c.num_env, self.steps_per_s(c), self.answers[c][-1].memory) for c in its]

    def best(self, row: int | None = None) -> Candidate | None:
        """The one with the most steps/s, of a row or of all."""
        its = [c for c in self.usable() if row is None or self._row_of[c.row] == row]
        return max(its, key=lambda c: (self.steps_per_s(c), -c.samples), default=None)

    def barred(self, candidate: Candidate) -> str | None:
        """Why it is not to be measured: an end of its row, memory, or time. None: it may be."""
        row = self.rows[self._row_of[candidate.row]]
        for one in row:
            failed = self.failed.get(one)
            if one is candidate and failed:
                return f"failed ({failed.reason}): {failed.text}"
            if one.num_env < candidate.num_env and failed and failed.reason != "refused":
                return f"{one.num_env:,} environments failed already ({failed.reason})"
        if candidate in self.answers:
            return None
        points = self.points(self._row_of[candidate.row])
        memory = project_memory(points, candidate.num_env)
        if memory is not None and memory > FULL:
            return f"memory would be {memory:.0%} full"
        seconds = self.needs_s(candidate)
        if seconds > self.longest_s:
            return f"{ITERATIONS} iterations would take {seconds:.0f} s"
        return None

    def needs_s(self, candidate: Candidate) -> float:
        """Seconds that ITERATIONS of it take at least, by its row; 0 when nothing is known."""
        points = self.points(self._row_of[candidate.row])
        if points:
            return ITERATIONS * candidate.samples / most(points, candidate.num_env)
        best = self.best()
        return ITERATIONS * candidate.samples / self.steps_per_s(best) if best else 0.0

    def top(self, row: int) -> int:
        """How many of a row, from its first, are not barred by failures, memory or time."""
        its = self.rows[row]
        return bisect_left(its, 1, key=lambda c: self._stops(c))

    def _stops(self, candidate: Candidate) -> int:
        failed = self.failed.get(candidate)
        if failed and failed.reason == "refused":
            return 0
        return int(self.barred(candidate) is not None)

    def chosen(self, complete: bool, why_not: dict[Candidate, str]) -> Chosen:
        """The best within the noise, with the fewest samples; `why_not` for those not measured."""
        skipped = tuple(
            Skipped(one, self.barred(one) or why_not.get(one, "the search ended before"))
            for row in self.rows
            for one in row
            if one not in self.answers and one not in self.failed
        )
        best = self.best()
        if best is None:
            return Chosen(None, None, skipped, complete, "nothing could be measured")
        alike = [c for c in self.usable() if self._alike(c, best)]
        winner = min(alike, key=self._modesty)
        others = [c for c in self.usable() if c != winner]
        second = max(others, key=lambda c: (self.steps_per_s(c), -c.samples), default=None)
        return Chosen(winner, second, skipped, complete, self._why(winner, best, alike))

    def _alike(self, one: Candidate, best: Candidate) -> bool:
        """No worse than noise can make it, and never by more than SAME."""
        noise = math.hypot(self.error(one), self.error(best))
        return self.steps_per_s(one) >= self.steps_per_s(best) * (1 - min(noise, SAME))

    def _modesty(self, one: Candidate) -> tuple[float, ...]:
        memory = self.answers[one][-1].memory
        return one.samples, memory, one.row.gmi_per_gpu, -self.steps_per_s(one)

    def _why(self, winner: Candidate, best: Candidate, alike: list[Candidate]) -> str:
        if winner == best:
            return f"the most steps/s of {len(self.measured())} measured"
        return (
            f"within the noise of the most steps/s ({self.steps_per_s(best):,.0f}) with the fewest "
            f"samples between updates of {len(alike)} that are alike: smaller batches learn better"
        )
