"""What a search has been told: estimates, what is barred and why, and what it concludes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gmi_drl.selector.record.findings import candidate_text

from .answers import apart, combined, margin, rate_of, weight
from .candidate import Answer, Ask, Candidate, Chosen, Failed, Measured, Skipped, Space, Spent
from .saturation import Point, most, project_memory

FULL: Final = 0.95  # of the memory: what is projected to fill more is not tried, nor chosen
ITERATIONS: Final = 3  # that have to fit in the seconds of a profile
_APART: Final = 1.25  # times the num_env of the point before: lines through nearer ones say nothing
SAME: Final = 0.01  # candidates further apart than this in steps/s are not alike


class Ended(Exception):
    """The search is to return what it knows: the budget is spent, or it used its profiles."""

    def __init__(self, complete: bool) -> None:
        super().__init__(complete)
        self.complete = complete


class Known:
    """The answers so far. Those for one candidate are combined by 1 / error^2.

    `own` is the candidate that is the config as it was given: nothing wins over it that is not
    faster beyond the noise.
    """

    def __init__(self, space: Space, longest_s: float, own: Candidate | None = None) -> None:
        self.rows = space.rows
        self.longest_s = longest_s
        self.own = own
        self.asked = 0
        self._answers: dict[Candidate, list[Measured]] = {}
        self._failed: dict[Candidate, Failed] = {}
        # What is asked for many times between two answers, by row.
        self._where: dict[int, list[int]] = {}
        self._points: dict[int, list[Point]] = {}
        self._top: dict[int, int] = {}
        self._best: dict[int | None, Candidate | None] = {}
        self._number = {its[0].row: number for number, its in enumerate(space.rows)}

    def add(self, ask: Ask, answer: Answer) -> None:
        """Note an answer. Ended for Spent."""
        if isinstance(answer, Spent):
            raise Ended(complete=False)
        self.asked += 1
        for kept in (self._where, self._points, self._top, self._best):
            kept.clear()
        if isinstance(answer, Failed):
            self._failed[ask.candidate] = answer
        elif answer.steps_per_s > 0:
            self._answers.setdefault(ask.candidate, []).append(answer)
        else:
            self._failed[ask.candidate] = Failed("hang", f"{answer.steps_per_s} steps/s")

    def is_done(self, candidate: Candidate) -> bool:
        """Whether there is an answer for it."""
        return candidate in self._answers or candidate in self._failed

    def row_of(self, candidate: Candidate) -> int:
        """The number of its row."""
        return self._number[candidate.row]

    def failed_in(self, row: int) -> bool:
        """Whether one of a row failed."""
        return any(self.row_of(one) == row for one in self._failed)

    def measured(self) -> list[Candidate]:
        """Those that were measured and did not fail later."""
        return [one for one in self._answers if one not in self._failed]

    def measured_in(self, row: int) -> list[int]:
        """Where in a row there are such, rising."""
        if row not in self._where:
            found = {c for c in self.measured() if self.row_of(c) == row}
            self._where[row] = [i for i, c in enumerate(self.rows[row]) if c in found]
        return self._where[row]

    def usable(self) -> list[Candidate]:
        """Those measured that leave some memory free, for a run that takes long; all, if none."""
        return usable({one: its[-1] for one, its in self._answers.items()}, self._failed)

    def last(self, candidate: Candidate) -> Measured:
        """The latest answer for it."""
        return self._answers[candidate][-1]

    def steps_per_s(self, candidate: Candidate) -> float:
        """The combined estimate."""
        return rate_of(self._answers[candidate])[0]

    def error(self, candidate: Candidate) -> float:
        """Its relative standard error."""
        return rate_of(self._answers[candidate])[1]

    def noise(self) -> float:
        """The relative error of one second of measuring, root mean square of all answers."""
        its = [one for answers in self._answers.values() for one in answers]
        squares = [max(one.seconds, 0.0) / weight(one) for one in its]
        return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0

    def points(self, row: int) -> list[Point]:
        """The measured points of a row, by rising num_env, without those that are near another.

        Between two near ones noise is more than the curve. A ladder's own steps are wider.
        """
        if row not in self._points:
            found: list[Point] = []
            for one in (self.rows[row][i] for i in self.measured_in(row)):
                if not found or one.num_env >= found[-1].num_env * _APART:
                    point = Point(one.num_env, self.steps_per_s(one), self.last(one).memory)
                    found.append(point)
            self._points[row] = found
        return self._points[row]

    def best(self, row: int | None = None) -> Candidate | None:
        """The one with the most steps/s, of a row or of all; None when nothing was measured."""
        if row not in self._best:
            its = [c for c in self.usable() if row is None or self.row_of(c) == row]
            self._best[row] = max(its, key=self._rank, default=None)
        return self._best[row]

    def barred(self, candidate: Candidate) -> str | None:
        """Why it is not to be measured: an end of its row, memory, or time. None: it may be."""
        if own := self._failed.get(candidate):
            return f"failed ({own.reason}): {own.text}"
        for one, failed in self._failed.items():
            ends = one.row == candidate.row and failed.reason != "refused"
            # More GMIs take no less memory.
            ends |= failed.reason == "memory" and _no_less(candidate, one)
            if ends and one.num_env <= candidate.num_env:
                those = f"{one.row.gmi_per_gpu} x {one.num_env:,} environments"
                return f"{those} failed already ({failed.reason})"
        if candidate in self._answers:
            return None
        memory = self.memory(candidate)
        if memory > FULL:
            return f"memory would be {memory:.0%} full"
        seconds = self.needs_s(candidate)
        if seconds > self.longest_s:
            return f"{ITERATIONS} iterations would take {seconds:.0f} s"
        return None

    def memory(self, candidate: Candidate) -> float:
        """The share of the memory it is projected to fill; 0 where nothing is known.

        By its row, where that has two points. Else as in the row with the nearest number of GMIs,
        for each GMI; by the one point of its row, and what more environments took in the other.
        """
        row, g = self.row_of(candidate), candidate.row.gmi_per_gpu
        points = self.points(row)
        memory = project_memory(points, candidate.num_env)
        if memory is not None:
            return memory
        rows = [r for r in range(len(self.rows)) if len(self.measured_in(r)) >= 2]
        near = min(rows, key=lambda r: abs(self.rows[r][0].row.gmi_per_gpu - g), default=None)
        if near is None:
            return 0.0
        times = g / self.rows[near][0].row.gmi_per_gpu
        at = [candidate.num_env, *(point.num_env for point in points)]
        there = [(project_memory(self.points(near), n) or 0.0) * times for n in at]
        return points[0].memory + there[0] - there[1] if points else there[0]

    def needs_s(self, candidate: Candidate) -> float:
        """Seconds that ITERATIONS of it take at least, by its row, or by the best of others."""
        points = self.points(self.row_of(candidate))
        best = self.best()
        if best is None:
            return 0.0
        rate = most(points, candidate.num_env) if points else math.inf
        return (
            ITERATIONS
            * candidate.samples
            / (rate if math.isfinite(rate) else self.steps_per_s(best))
        )

    def top(self, row: int) -> int:
        """How many of a row, from its first, are not barred by failures, memory or time."""
        if row not in self._top:
            self._top[row] = bisect_left(self.rows[row], True, key=self._stops)
        return self._top[row]

    def _stops(self, candidate: Candidate) -> bool:
        failed = self._failed.get(candidate)
        refused = failed is not None and failed.reason == "refused"
        return not refused and self.barred(candidate) is not None

    def _rank(self, candidate: Candidate) -> tuple[float, int]:
        return self.steps_per_s(candidate), -candidate.samples

    def winner(self) -> Candidate | None:
        """The config as given, if nothing is faster beyond the noise.

        Else, of the best and those that are alike, the one with the fewest samples between updates.
        """
        best = self.best()
        if best is None:
            return None
        own = self.own
        if own in self.usable() and not apart(self._together(own), self._together(best)):
            return own
        return min(self._alike(best), key=self._modesty)

    def chosen(self, complete: bool, skipped: Sequence[Skipped]) -> Chosen:
        """What to return. `skipped`: each candidate that was not measured."""
        best, winner = self.best(), self.winner()
        if best is None or winner is None:
            return Chosen(None, None, tuple(skipped), complete, "nothing could be measured")
        second = max((c for c in self.usable() if c != winner), key=self._rank, default=None)
        if winner == best:
            why = f"the most steps/s of {len(self.usable())} measured"
        elif winner == self.own:
            off = margin(self._together(winner), self._together(best)) / self.steps_per_s(best)
            why = (
                f"it is the config as given, and of {len(self.usable())} measured none is faster "
                f"beyond the noise of {off:.0%}"
            )
        else:
            why = (
                f"the fewest samples between two updates of {len(self._alike(best))} that are "
                f"alike: up to {self.steps_per_s(best):,.0f} steps/s, within {SAME:.0%} and the "
                "noise"
            )
        over = "".join(f"; {text}" for text in self._passed_over(best))
        return Chosen(winner, second, tuple(skipped), complete, f"{why}{over}")

    def _together(self, candidate: Candidate) -> Measured:
        return combined(self._answers[candidate])

    def _passed_over(self, best: Candidate) -> list[str]:
        """Who was faster than the best of the usable, and why it is none of these."""
        rows = [its[0].row for its in self.rows]
        faster = [one for one in self._answers if self._rank(one) > self._rank(best)]
        return [
            f"{candidate_text(one, rows)} was faster and "
            + (
                f"failed when it was measured again ({self._failed[one].reason})"
                if one in self._failed
                else f"fills {self.last(one).memory:.0%} of the memory"
            )
            for one in sorted(faster, key=self._rank, reverse=True)
        ]

    def _alike(self, best: Candidate) -> list[Candidate]:
        def least(one: Candidate) -> float:
            noise = math.hypot(self.error(one), self.error(best))
            return self.steps_per_s(best) * (1 - min(noise, SAME))

        return [one for one in self.usable() if self.steps_per_s(one) >= least(one)]

    def _modesty(self, one: Candidate) -> tuple[float, ...]:
        # A smaller batch learns better from as many samples; then what leaves most to others.
        memory = self.last(one).memory
        return one.samples, memory, one.row.gmi_per_gpu, -self.steps_per_s(one)


def usable(
    measured: Mapping[Candidate, Measured], failed: Collection[Candidate]
) -> list[Candidate]:
    """Those that may be chosen: measured, not failed since, and with memory left for a long run.

    Where all that ran fill it, all of them.
    """
    ran = [one for one in measured if one not in failed]
    return [one for one in ran if measured[one].memory <= FULL] or ran


def _no_less(candidate: Candidate, one: Candidate) -> bool:
    mine, its = candidate.row, one.row
    return mine.backend == its.backend and mine.gmi_per_gpu >= its.gmi_per_gpu
